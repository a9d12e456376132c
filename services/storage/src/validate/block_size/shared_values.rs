//! Decoded size of byte arrays that share stored bytes: values of a dictionary, and values with common prefixes.
//!
//! A page can store such bytes once, while any number of decoded values repeat them.

use parquet::{basic::Encoding, column::page::Page, errors::ParquetError};

use crate::validate::delta_lengths::{self, unpack, varint};

/// Decoded size in bytes of the values of a column chunk that share stored bytes. The counting ends as soon as the size
/// exceeds `limit`.
///
/// The size is exact for valid pages. A value that cannot be decoded counts as the longest dictionary value, or as
/// the whole page for delta encoding.
pub(super) fn shared_bytes(
    pages: impl Iterator<Item = Result<Page, ParquetError>>,
    max_rep_level: i16,
    max_def_level: i16,
    limit: u64,
) -> Result<u64, ParquetError> {
    let mut dictionary = Dictionary::default();
    let mut total = 0_u64;
    for page in pages {
        let page = page?;
        if let Page::DictionaryPage { buf, .. } = &page {
            dictionary = Dictionary::new(buf);
            continue;
        }
        let values = u64::from(page.num_values());
        let bytes = match page.encoding() {
            Encoding::PLAIN_DICTIONARY | Encoding::RLE_DICTIONARY => {
                match delta_lengths::split(&page, max_rep_level, max_def_level) {
                    Some((levels, indices)) => {
                        dictionary.decoded_bytes(indices, present_values(levels, max_def_level, values))
                    }
                    None => dictionary.upper_bound(values),
                }
            }
            Encoding::DELTA_BYTE_ARRAY => {
                let exact = delta_lengths::value_bytes(&page, max_rep_level, max_def_level);
                exact.unwrap_or_else(|| values.saturating_mul(page.buffer().len() as u64))
            }
            _ => 0,
        };
        total = total.saturating_add(bytes);
        if total > limit {
            break;
        }
    }
    Ok(total)
}

/// Lengths in bytes of the values of a dictionary page. Stops at the first value that extends past the end of the
/// page.
pub(super) fn dictionary_lengths(page: &[u8]) -> impl Iterator<Item = u32> {
    let mut rest = page;
    std::iter::from_fn(move || {
        let (length, after) = rest.split_first_chunk::<4>()?;
        let length = u32::from_le_bytes(*length);
        rest = after.get(length as usize..)?;
        Some(length)
    })
}

/// Lengths of the values of a dictionary.
#[derive(Default)]
struct Dictionary {
    lengths: Vec<u32>,
    longest: u32,
}

impl Dictionary {
    fn new(page: &[u8]) -> Self {
        let lengths: Vec<u32> = dictionary_lengths(page).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        Self { lengths, longest }
    }

    /// Size in bytes of `values` copies of the longest value.
    fn upper_bound(&self, values: u64) -> u64 {
        values.saturating_mul(self.longest.into())
    }

    /// Length in bytes of the value at `index`.
    fn length(&self, index: u32) -> u64 {
        self.lengths.get(index as usize).copied().unwrap_or(self.longest).into()
    }

    /// Size in bytes of the first `values` values of a page with these indices. Their first byte is the number of bits
    /// of each index.
    fn decoded_bytes(&self, indices: &[u8], values: u64) -> u64 {
        let Some((width, runs)) = indices.split_first() else { return self.upper_bound(values) };
        let Runs { sum, malformed } = sum_runs(runs, *width, values, |index| self.length(index));
        sum.saturating_add(self.upper_bound(malformed))
    }
}

/// Number of values that are not null, among `values` definition levels. Malformed levels count as values.
fn present_values(levels: &[u8], max_def_level: i16, values: u64) -> u64 {
    let present = u32::from(max_def_level.unsigned_abs());
    if present == 0 {
        return values;
    }
    let width = (u32::BITS - present.leading_zeros()) as u8;
    let Runs { sum, malformed } = sum_runs(levels, width, values, |level| u64::from(level >= present));
    sum + malformed
}

/// Sum over encoded integers.
pub(super) struct Runs {
    pub(super) sum: u64,
    /// Number of integers that could not be decoded.
    pub(super) malformed: u64,
}

/// Sums `weight` over the first `count` integers of `width` bits, which are run-length encoded or bit-packed.
///
/// <https://github.com/apache/parquet-format/blob/master/Encodings.md#run-length-encoding--bit-packing-hybrid-rle--3>
pub(super) fn sum_runs(mut runs: &[u8], width: u8, count: u64, weight: impl Fn(u32) -> u64) -> Runs {
    let (mut sum, mut left) = (0_u64, count);
    while left > 0 {
        let Some((count, of_run)) = sum_run(&mut runs, width, left, &weight) else { break };
        sum = sum.saturating_add(of_run);
        left -= count;
    }
    Runs { sum, malformed: left }
}

/// Advances `runs` past one run. Returns the number of its integers, at most `max_count`, and the sum of their
/// weights; `None` if the run is malformed.
fn sum_run(runs: &mut &[u8], width: u8, max_count: u64, weight: &impl Fn(u32) -> u64) -> Option<(u64, u64)> {
    let header = varint(runs)?;
    let (length, is_packed) = (header >> 1, header & 1 == 1);
    if width > 32 || length > u64::from(u32::MAX / 8) || header == 0 {
        return None;
    }
    // In a packed run, the length is the number of groups of 8 integers.
    let count = if is_packed { 8 * length } else { length }.min(max_count);
    if is_packed && width > 0 {
        let bytes = usize::try_from(length).ok()? * usize::from(width);
        // Some writers omit the unused end of the last run.
        let (packed, after) = runs.split_at_checked(bytes).unwrap_or((runs, &[]));
        *runs = after;
        let mut sum = 0_u64;
        for index in 0..usize::try_from(count).ok()? {
            sum = sum.saturating_add(weight(unpack(packed, index, width)?));
        }
        return Some((count, sum));
    }
    let bytes = if is_packed { 0 } else { usize::from(width.div_ceil(8)) };
    let (repeated, after) = runs.split_at_checked(bytes)?;
    *runs = after;
    let repeated = unpack(repeated, 0, 8 * bytes as u8)?;
    Some((count, count.saturating_mul(weight(repeated))))
}

#[cfg(test)]
mod tests;
