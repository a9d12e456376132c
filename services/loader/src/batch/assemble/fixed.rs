//! Values of fixed width.

use super::write::{TILE_ROWS, transpose, write_bits};
use crate::{
    RowRef, TurnClock,
    cpu::prefetch::{AHEAD_BYTES, prefetch},
    frame::Rows,
    view::Output,
};

/// Rows of a batch, with the values of fixed width at their beginning.
pub(super) struct FixedRows<'a> {
    pub(super) source: &'a Rows<'a>,
    pub(super) rows: &'a [RowRef],
    /// Size of the values of fixed width of a row, in bytes; at least 1.
    pub(super) width: usize,
}

impl<'a> FixedRows<'a> {
    /// Copies the values of `fixed` to their positions in the body one tile at a time: the tensors of each row, then each plain column
    /// of all rows. The next tile and its place in the body are prefetched (bench: assembly; with a buffer for the tile it takes
    /// twice as long).
    pub(super) async fn write(&self, fixed: &[(&Output, usize)], body: &mut [u8], turn: &mut TurnClock) {
        let has_plain = fixed.iter().any(|(output, _)| matches!(output, Output::Fixed { .. }));
        let ahead = if has_plain { TILE_ROWS } else { (AHEAD_BYTES / self.width).clamp(1, TILE_ROWS) };
        self.rows.iter().take(ahead).for_each(|row| prefetch(self.values_of(row)));
        let mut sources: Vec<&[u8]> = Vec::with_capacity(TILE_ROWS);
        for first in (0..self.rows.len()).step_by(TILE_ROWS) {
            self.write_tile(fixed, first, ahead, &mut sources, body);
            turn.handled(sources.len() * self.width).await;
        }
    }

    #[inline]
    fn values_of(&self, row: &RowRef) -> &'a [u8] {
        &self.source.row(*row)[..self.width]
    }

    /// Copies the tile that begins at row `first`. `sources` is a buffer for its rows.
    fn write_tile(
        &self,
        fixed: &[(&Output, usize)],
        first: usize,
        ahead: usize,
        sources: &mut Vec<&'a [u8]>,
        body: &mut [u8],
    ) {
        let tile = &self.rows[first..(first + TILE_ROWS).min(self.rows.len())];
        sources.clear();
        for (position, row) in tile.iter().enumerate() {
            if let Some(next) = self.rows.get(first + position + ahead) {
                prefetch(self.values_of(next));
            }
            let row = self.values_of(row);
            sources.push(row);
            for (output, values) in fixed {
                if let Output::Tensor { source, offset, len, .. } = output {
                    let len = len * source.width;
                    let at = values + (first + position) * len;
                    body[at..at + len].copy_from_slice(&row[*offset..*offset + len]);
                }
            }
        }
        for (output, values) in fixed {
            let Output::Fixed { offset, width, bit, .. } = output else { continue };
            if *bit {
                let out = &mut body[values + first / 8..][..sources.len().div_ceil(8)];
                write_bits(out, sources.iter().map(|row| row[*offset] != 0));
            } else {
                let out = &mut body[values + first * width..values + self.rows.len() * width];
                let (out, next) = out.split_at_mut(tile.len() * width);
                prefetch(&next[..next.len().min(TILE_ROWS * width)]);
                transpose(sources, *offset, *width, out);
            }
        }
    }
}
