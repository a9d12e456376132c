//! The tails of the rows of a batch.

use super::write::TILE_ROWS;
use crate::{
    RowRef, TurnClock, View,
    cpu::prefetch::prefetch,
    frame::{Rows, Tail},
};

/// Prefetch distance, in rows.
const AHEAD_ROWS: usize = 32;

/// Copies of the tails of the rows of a batch, so that each row is read only once for all lengths and nulls.
pub(super) struct Tails<'a> {
    view: &'a View,
    rows: usize,
    /// Size of a tail in bytes.
    width: usize,
    bytes: Vec<u8>,
}

impl<'a> Tails<'a> {
    pub(super) async fn gather(
        view: &'a View,
        source: &Rows<'_>,
        rows: &[RowRef],
        turn: &mut TurnClock,
    ) -> Self {
        let width = view.stride - view.tail;
        let mut bytes = Vec::with_capacity(rows.len() * width);
        if width > 0 {
            for (number, tile) in rows.chunks(TILE_ROWS).enumerate() {
                for (position, row) in tile.iter().enumerate() {
                    if let Some(next) = rows.get(number * TILE_ROWS + position + AHEAD_ROWS) {
                        prefetch(&source.row(*next)[view.tail..]);
                    }
                    bytes.extend_from_slice(&source.row(*row)[view.tail..]);
                }
                turn.handled(tile.len() * width).await;
            }
        }
        Self { view, rows: rows.len(), width, bytes }
    }

    /// Number of rows.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Size of a tail in bytes.
    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// Number of variable columns.
    pub(super) fn variable_columns(&self) -> usize {
        self.view.variable_items.len()
    }

    /// Start and lengths of the values of a row in the heap.
    #[inline]
    pub(super) fn of(&self, row: usize) -> Tail<'_> {
        Tail::new(self.view, &self.bytes[row * self.width..])
    }

    /// Validity bits of a row.
    #[inline]
    pub(super) fn validity(&self, row: usize) -> &[u8] {
        &self.bytes[row * self.width..(row + 1) * self.width][self.view.validity - self.view.tail..]
    }
}
