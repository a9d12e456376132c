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
    let mut rest = values(page, max_rep_level, max_def_level).ok_or("the levels exceed the page")?;
    // A page of nulls may contain no encoded values.
    if rest.is_empty() {
        return Ok(());
    }
    for _ in 0..runs {
        let (count, after) = run(rest).ok_or("a run of lengths exceeds the page")?;
        if count > u64::from(page.num_values()) {
            return Err(format!("{count} lengths for {} values", page.num_values()));
        }
        rest = after;
    }
    Ok(())
}

/// Returns the part of a data page after its levels.
fn values(page: &Page, max_rep_level: i16, max_def_level: i16) -> Option<&[u8]> {
    match page {
        Page::DataPageV2 { buf, def_levels_byte_len, rep_levels_byte_len, .. } => {
            buf.get((*def_levels_byte_len as usize).checked_add(*rep_levels_byte_len as usize)?..)
        }
        Page::DataPage { buf, def_level_encoding, rep_level_encoding, .. } => {
            let mut rest = &buf[..];
            for (level, encoding) in
                [(max_rep_level, rep_level_encoding), (max_def_level, def_level_encoding)]
            {
                if level == 0 {
                    continue;
                }
                // The only other encoding of levels (bit-packed) predates the delta encodings.
                if *encoding != Encoding::RLE {
                    return None;
                }
                let (length, after) = rest.split_first_chunk::<4>()?;
                rest = after.get(u32::from_le_bytes(*length) as usize..)?;
            }
            Some(rest)
        }
        Page::DictionaryPage { .. } => Some(&[]),
    }
}

/// Returns the number of values of a run of delta-packed integers, and the bytes after the run.
fn run(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut bytes = bytes;
    let block_size = varint(&mut bytes)?;
    let parts = usize::try_from(varint(&mut bytes)?).ok()?;
    let count = varint(&mut bytes)?;
    let _first = varint(&mut bytes)?;
    let part_size = block_size.checked_div(parts as u64).filter(|size| *size > 0)?;

    let mut remaining = count.saturating_sub(1);
    while remaining > 0 {
        let _min_delta = varint(&mut bytes)?;
        let (widths, after) = bytes.split_at_checked(parts)?;
        bytes = after;
        for width in widths {
            if remaining == 0 {
                break;
            }
            let length = u64::from(*width).checked_mul(part_size)? / 8;
            bytes = bytes.get(usize::try_from(length).ok()?..)?;
            remaining = remaining.saturating_sub(part_size);
        }
    }
    Some((count, bytes))
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
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
