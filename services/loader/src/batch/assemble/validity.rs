//! Validity of the rows of nullable columns.

use super::{
    tails::Tails,
    write::{TILE_ROWS, write_bits},
};
use crate::TurnClock;

/// Column with a null in the rows of a batch.
pub(super) struct NullableColumn {
    /// Validity bit in a row.
    pub(super) bit: usize,
    /// Node of the column in the layout.
    pub(super) node: usize,
    /// Start of the validity buffer in the body.
    pub(super) start: usize,
    /// Number of nulls in the rows that were written.
    pub(super) nulls: usize,
}

/// Returns the validity bits that are set in all rows.
pub(super) async fn valid_in_all(tails: &Tails<'_>, turn: &mut TurnClock) -> Vec<u8> {
    if tails.rows() == 0 {
        return Vec::new();
    }
    let mut all = vec![u8::MAX; tails.validity(0).len()];
    if all.is_empty() {
        return all;
    }
    for row in 0..tails.rows() {
        let bits = tails.validity(row);
        all.iter_mut().zip(bits).for_each(|(all, bits)| *all &= bits);
        turn.handled(bits.len()).await;
    }
    all
}

/// Writes the validity buffers of `columns`, and counts their nulls.
pub(super) async fn write(
    columns: &mut [NullableColumn],
    tails: &Tails<'_>,
    body: &mut [u8],
    turn: &mut TurnClock,
) {
    if columns.is_empty() {
        return;
    }
    for first in (0..tails.rows()).step_by(TILE_ROWS) {
        let rows = first..(first + TILE_ROWS).min(tails.rows());
        for column in columns.iter_mut() {
            let (byte, bit) = (column.bit / 8, column.bit % 8);
            let out = &mut body[column.start + first / 8..][..rows.len().div_ceil(8)];
            write_bits(out, rows.clone().map(|row| tails.validity(row)[byte] >> bit & 1 == 1));
            let valid: u32 = out.iter().map(|byte| byte.count_ones()).sum();
            column.nulls += rows.len() - valid as usize;
        }
        turn.handled(rows.len() * columns.len()).await;
    }
}
