//! Check of delta-encoded byte arrays, whose pages begin with counts that a decoder allocates.
//!
//! <https://github.com/apache/parquet-format/blob/master/Encodings.md#delta-encoding-delta_binary_packed--5>

use parquet::{basic::Encoding, column::page::Page};

/// Checks that a page with delta-encoded byte arrays has no more lengths than values. Other encodings pass.
///
/// # Errors
/// A description of the malformed part.
pub(crate) fn check_page(page: &Page, max_rep_level: i16, max_def_level: i16) -> Result<(), String> {
    let runs = match page.encoding() {
        Encoding::DELTA_LENGTH_BYTE_ARRAY => 1,
        Encoding::DELTA_BYTE_ARRAY => 2,
        _ => return Ok(()),
    };
    let (_, mut rest) = split(page, max_rep_level, max_def_level).ok_or("the levels exceed the page")?;
    // A page of nulls may contain no encoded values.
    if rest.is_empty() {
        return Ok(());
    }
    for _ in 0..runs {
        let exceeds = "a run of lengths exceeds the page";
        let run = Run::read(&mut rest).ok_or(exceeds)?;
        if run.count > u64::from(page.num_values()) {
            return Err(format!("{} lengths for {} values", run.count, page.num_values()));
        }
        run.walk(&mut rest, |_| Some(())).ok_or(exceeds)?;
    }
    Ok(())
}

/// Total size in bytes of the decoded values of a `DELTA_BYTE_ARRAY` page; `None` if the page is malformed.
pub(crate) fn value_bytes(page: &Page, max_rep_level: i16, max_def_level: i16) -> Option<u64> {
    let (_, mut rest) = split(page, max_rep_level, max_def_level)?;
    if rest.is_empty() {
        return Some(0);
    }
    let prefixes = lengths(&mut rest, page.num_values())?;
    let suffixes = lengths(&mut rest, page.num_values())?;
    let (mut total, mut length) = (0_u64, 0_u64);
    for (prefix, suffix) in prefixes.into_iter().zip(suffixes) {
        // A prefix is not longer than the value before. For the decoder a negative prefix is that value.
        length = length.min(u64::try_from(prefix).unwrap_or(u64::MAX));
        length = length.saturating_add(u64::try_from(suffix).ok()?);
        total = total.saturating_add(length);
    }
    Some(total)
}

/// Splits a data page after its levels. Returns the definition levels and the values; `None` if the levels exceed the
/// page or are not run-length encoded.
pub(crate) fn split(page: &Page, max_rep_level: i16, max_def_level: i16) -> Option<(&[u8], &[u8])> {
    match page {
        Page::DataPageV2 { buf, def_levels_byte_len, rep_levels_byte_len, .. } => {
            buf.get(*rep_levels_byte_len as usize..)?.split_at_checked(*def_levels_byte_len as usize)
        }
        Page::DataPage { buf, def_level_encoding, rep_level_encoding, .. } => {
            let (mut levels, mut rest) = (&[][..], &buf[..]);
            for (level, encoding) in
                [(max_rep_level, rep_level_encoding), (max_def_level, def_level_encoding)]
            {
                levels = &[];
                if level == 0 {
                    continue;
                }
                // The only other encoding of levels (bit-packed) predates the delta encodings.
                if *encoding != Encoding::RLE {
                    return None;
                }
                let (length, after) = rest.split_first_chunk::<4>()?;
                (levels, rest) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            }
            Some((levels, rest))
        }
        Page::DictionaryPage { .. } => Some((&[], &[])),
    }
}

/// Run of delta-packed integers.
struct Run {
    /// Number of integers.
    count: u64,
    first: i64,
    /// Number of parts that follow each other with a common header.
    parts: usize,
    /// Maximum number of integers in a part.
    part_size: u64,
}

/// Consecutive integers of a run, stored as their differences with the same number of bits.
struct Part<'a> {
    /// Number of integers.
    count: u64,
    /// Value to add to every difference.
    min_delta: i64,
    width: u8,
    packed: &'a [u8],
}

impl Run {
    /// Reads the header of a run.
    fn read(bytes: &mut &[u8]) -> Option<Self> {
        let block_size = varint(bytes)?;
        let parts = usize::try_from(varint(bytes)?).ok()?;
        let count = varint(bytes)?;
        let first = signed(varint(bytes)?);
        let part_size = block_size.checked_div(parts as u64).filter(|size| *size > 0)?;
        Some(Self { count, first, parts, part_size })
    }

    /// Walks the parts of the run after its header. Stops if `visit` returns `None`.
    fn walk<'a>(&self, bytes: &mut &'a [u8], mut visit: impl FnMut(Part<'a>) -> Option<()>) -> Option<()> {
        let mut remaining = self.count.saturating_sub(1);
        while remaining > 0 {
            let min_delta = signed(varint(bytes)?);
            let (widths, after) = bytes.split_at_checked(self.parts)?;
            *bytes = after;
            for width in widths {
                if remaining == 0 {
                    break;
                }
                let length = u64::from(*width).checked_mul(self.part_size)? / 8;
                let (packed, after) = bytes.split_at_checked(usize::try_from(length).ok()?)?;
                *bytes = after;
                visit(Part { count: remaining.min(self.part_size), min_delta, width: *width, packed })?;
                remaining = remaining.saturating_sub(self.part_size);
            }
        }
        Some(())
    }
}

/// Decodes a run of at most `max_count` lengths. Moves `bytes` after the run.
fn lengths(bytes: &mut &[u8], max_count: u32) -> Option<Vec<i32>> {
    let run = Run::read(bytes)?;
    if run.count > u64::from(max_count) {
        return None;
    }
    let mut last = i32::try_from(run.first).ok()?;
    let mut lengths = Vec::with_capacity(usize::try_from(run.count).ok()?);
    if run.count > 0 {
        lengths.push(last);
    }
    run.walk(bytes, |part| {
        let min_delta = i32::try_from(part.min_delta).ok()?;
        for index in 0..usize::try_from(part.count).ok()? {
            let delta = unpack(part.packed, index, part.width)?;
            last = last.wrapping_add(min_delta).wrapping_add(delta as i32);
            lengths.push(last);
        }
        Some(())
    })?;
    Some(lengths)
}

/// Returns the integer at `index` in a sequence of integers of `width` bits. `None` after the end of the bytes, and if
/// the width exceeds 32 bits.
pub(crate) fn unpack(bytes: &[u8], index: usize, width: u8) -> Option<u32> {
    if width > 32 {
        return None;
    }
    let start = index.checked_mul(usize::from(width))?;
    let end = start.checked_add(usize::from(width))?;
    let found = bytes.get(start / 8..end.div_ceil(8))?;
    let mut word = [0; 8];
    word[..found.len()].copy_from_slice(found);
    let mask = (1_u64 << width) - 1;
    Some(((u64::from_le_bytes(word) >> (start % 8)) & mask) as u32)
}

fn signed(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// Reads an integer of 7 bits per byte.
pub(crate) fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests;
