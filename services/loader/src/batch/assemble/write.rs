//! Writers for single buffers of a body.

use crate::frame::Distinct;

/// Number of rows gathered together. A tile stays in the L1 cache while each column is copied from it. It is a multiple
/// of 8, because bits are packed one tile at a time.
pub(super) const TILE_ROWS: usize = 64;

/// A list column whose first list has all `count` items.
pub(super) struct Ends {
    pub(super) ends: usize,
    pub(super) values: usize,
    pub(super) count: usize,
}

/// Writes 0 and the running sums of `lengths`, as 32-bit offsets.
fn write_ends(lengths: impl Iterator<Item = usize>, out: &mut [u8]) {
    let (out, _) = out.as_chunks_mut::<4>();
    let mut end = 0_u32;
    out[0] = end.to_le_bytes();
    for (length, out) in lengths.zip(&mut out[1..]) {
        end += length as u32;
        *out = end.to_le_bytes();
    }
}

/// Writes the offsets of lists of which the first has all items.
pub(super) fn write_first_list(lists: &Ends, rows: usize, body: &mut [u8]) {
    let lengths = (0..rows).map(|row| if row == 0 { lists.count } else { 0 });
    write_ends(lengths, &mut body[lists.ends..][..(rows + 1) * size_of::<i32>()]);
}

/// Writes the distinct rows and the index of each row's distinct row. Each distinct row goes into the list of the first
/// row that has it.
pub(super) fn write_distinct(distinct: &Distinct<'_>, [ends, values, index]: [usize; 3], body: &mut [u8]) {
    let numbers = distinct.numbers();
    let mut seen = 0;
    let lengths = numbers.iter().map(|number| {
        let is_first = *number == seen;
        seen += u32::from(is_first);
        usize::from(is_first)
    });
    write_ends(lengths, &mut body[ends..][..(numbers.len() + 1) * size_of::<i32>()]);
    let mut at = values;
    for row in distinct.rows() {
        body[at..at + row.len()].copy_from_slice(row);
        at += row.len();
    }
    let (out, _) = body[index..][..size_of_val(numbers)].as_chunks_mut();
    numbers.iter().zip(out).for_each(|(number, out)| *out = number.to_le_bytes());
}

/// Writes one offset at the start of `out`, little-endian, with 64 bits if `wide` and with 32 bits otherwise.
#[inline]
pub(super) fn write_end(out: &mut [u8], wide: bool, end: u64) {
    let end = end.to_le_bytes();
    match wide {
        true => out[..8].copy_from_slice(&end),
        false => out[..4].copy_from_slice(&end[..4]),
    }
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

/// Appends `len` bits to the first `at` bits of `out`, whose later bits are zero: those of `bits`, or set bits if `bits` is empty.
/// Returns the number of set bits.
#[inline]
pub(super) fn append_bits(out: &mut [u8], at: usize, len: usize, bits: &[u8]) -> usize {
    let (out, shift) = (&mut out[at / 8..], at % 8);
    let mut set = 0;
    for (position, first) in (0..len).step_by(8).enumerate() {
        let count = (len - first).min(8);
        let mask = u8::MAX >> (8 - count);
        let byte = if bits.is_empty() { mask } else { bits[position] & mask };
        set += byte.count_ones() as usize;
        let [low, high] = (u16::from(byte) << shift).to_le_bytes();
        out[position] |= low;
        if shift + count > 8 {
            out[position + 1] |= high;
        }
    }
    set
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_appended_at_any_position() {
        let bits: Vec<bool> = (0..100).map(|bit| bit % 3 == 0 || bit % 7 == 2).collect();
        let packed = |bits: &[bool]| {
            let mut out = vec![0; bits.len().div_ceil(8)];
            write_bits(&mut out, bits.iter().copied());
            out
        };
        for (first, second) in [(0, 0), (0, 9), (1, 7), (3, 5), (7, 1), (8, 16), (13, 40), (20, 80)] {
            let (all, mut out) = (&bits[..first + second], vec![0; (first + second).div_ceil(8)]);
            let set = |bits: &[bool]| bits.iter().filter(|bit| **bit).count();
            assert_eq!(append_bits(&mut out, 0, first, &packed(&all[..first])), set(&all[..first]));
            // Bits after the end are ignored.
            let mut rest = packed(&all[first..]);
            rest.push(u8::MAX);
            assert_eq!(append_bits(&mut out, first, second, &rest), set(&all[first..]));
            assert_eq!(out, packed(all), "{second} bits after {first}");
            let mut out = vec![0; (first + second).div_ceil(8)];
            append_bits(&mut out, 0, first, &packed(&all[..first]));
            assert_eq!(append_bits(&mut out, first, second, &[]), second);
            let expected: Vec<bool> = all[..first].iter().copied().chain(vec![true; second]).collect();
            assert_eq!(out, packed(&expected), "{second} set bits after {first}");
        }
    }
}
