//! Writers for single buffers of a body.

use crate::frame::Distinct;

/// A list column whose first list has all `count` items.
pub(super) struct Ends {
    pub(super) ends: usize,
    pub(super) values: usize,
    pub(super) count: usize,
}

/// Writes 0 and the running sums of `lengths`, little-endian, as 64-bit values if `wide` and as 32-bit values
/// otherwise.
pub(super) fn write_ends(lengths: impl Iterator<Item = usize>, wide: bool, out: &mut [u8]) {
    let width = if wide { 8 } else { 4 };
    let mut end = 0u64;
    out[..width].fill(0);
    for (len, out) in lengths.zip(out[width..].chunks_exact_mut(width)) {
        end += len as u64;
        out.copy_from_slice(&end.to_le_bytes()[..width]);
    }
}

/// Writes the offsets of lists of which the first has all items.
pub(super) fn write_first_list(lists: &Ends, rows: usize, body: &mut [u8]) {
    let lengths = (0..rows).map(|row| if row == 0 { lists.count } else { 0 });
    write_ends(lengths, false, &mut body[lists.ends..][..(rows + 1) * size_of::<i32>()]);
}

/// Writes the distinct rows and the index of each row's distinct row. TensorValues distinct row goes into the list of the first
/// row that has it.
pub(super) fn write_distinct(distinct: &Distinct<'_>, [ends, values, index]: [usize; 3], body: &mut [u8]) {
    let numbers = distinct.numbers();
    let mut seen = 0;
    let lengths = numbers.iter().map(|number| {
        let is_first = *number == seen;
        seen += u32::from(is_first);
        usize::from(is_first)
    });
    write_ends(lengths, false, &mut body[ends..][..(numbers.len() + 1) * size_of::<i32>()]);
    let mut at = values;
    for row in distinct.rows() {
        body[at..at + row.len()].copy_from_slice(row);
        at += row.len();
    }
    let (out, _) = body[index..][..size_of_val(numbers)].as_chunks_mut();
    numbers.iter().zip(out).for_each(|(number, out)| *out = number.to_le_bytes());
}

/// Copies the `width` bytes at `offset` of each row to consecutive places in `out`.
pub(super) fn transpose(rows: &[&[u8]], offset: usize, width: usize, out: &mut [u8]) {
    match width {
        1 => transpose_by::<1>(rows, offset, out),
        2 => transpose_by::<2>(rows, offset, out),
        4 => transpose_by::<4>(rows, offset, out),
        8 => transpose_by::<8>(rows, offset, out),
        16 => transpose_by::<16>(rows, offset, out),
        width => {
            for (row, value) in rows.iter().zip(out.chunks_exact_mut(width)) {
                value.copy_from_slice(&row[offset..offset + width]);
            }
        }
    }
}

fn transpose_by<const W: usize>(rows: &[&[u8]], offset: usize, out: &mut [u8]) {
    for (row, value) in rows.iter().zip(out.chunks_exact_mut(W)) {
        value.copy_from_slice(&row[offset..offset + W]);
    }
}

/// Packs bits into `out`, least significant bit first.
pub(super) fn write_bits(out: &mut [u8], bits: impl Iterator<Item = bool>) {
    out.fill(0);
    for (position, bit) in bits.enumerate() {
        out[position / 8] |= u8::from(bit) << (position % 8);
    }
}
