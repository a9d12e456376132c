//! Strings, binary values and lists. The values of a row are stored together, so all columns are copied in one pass over the rows
//! (bench: assembly, lists).

use super::{
    tails::Tails,
    write::{append_bits, write_end},
};
use crate::{TurnClock, cpu::prefetch::prefetch, frame::Tail, view::HeapItems};

/// Prefetch distance, in rows.
const AHEAD_ROWS: usize = 16;
/// Maximum number of values between two looks at the clock.
const TILE_VALUES: usize = 4096;
/// Time per value in addition to that of its bytes, as a number of bytes that take as long to copy.
const BYTES_PER_VALUE: usize = 64;

/// Size of a variable column in all rows of a batch.
#[derive(Clone, Copy, Default)]
pub(super) struct ColumnSize {
    /// Number of bytes of the values.
    pub(super) bytes: usize,
    /// True if an item of a list is null.
    pub(super) has_null_items: bool,
}

/// Variable column of a batch, with the position of its next value in the body.
pub(super) struct VariableColumn {
    pub(super) items: HeapItems,
    pub(super) lengths: Lengths,
    /// Position of the next value in the body.
    pub(super) values: usize,
    /// Validity of the items; `None` if none of them is null.
    pub(super) validity: Option<ItemValidity>,
}

/// Lengths of the values of a variable column in the body, in items, or in bytes for strings and binary.
pub(super) enum Lengths {
    /// Offsets. The end of the last value, `end`, is at `at`. Offsets have 64 bits if `wide`.
    Ends { at: usize, wide: bool, end: u64 },
    /// Lengths of 32 bits. The next one is at `at`.
    Items { at: usize },
}

/// Validity of the items of a list column in the body.
pub(super) struct ItemValidity {
    /// Node of the items in the layout.
    pub(super) node: usize,
    /// Start of the validity buffer.
    pub(super) start: usize,
    /// Size of the validity buffer in bytes.
    pub(super) bytes: usize,
    /// Number of items that were written.
    pub(super) items: usize,
    /// Number of nulls among them.
    pub(super) nulls: usize,
}

/// Number of rows between two looks at the clock.
fn tile_rows(columns: usize) -> usize {
    (TILE_VALUES / columns.max(1)).max(1)
}

/// Returns the size of each variable column in all rows.
pub(super) async fn sizes(tails: &Tails<'_>, turn: &mut TurnClock) -> Vec<ColumnSize> {
    let mut sizes = vec![ColumnSize::default(); tails.variable_columns()];
    if sizes.is_empty() {
        return sizes;
    }
    let tile = tile_rows(sizes.len());
    for first in (0..tails.rows()).step_by(tile) {
        let rows = first..(first + tile).min(tails.rows());
        turn.handled(rows.len() * tails.width()).await;
        for row in rows {
            let tail = tails.of(row);
            for (index, size) in sizes.iter_mut().enumerate() {
                let item = tail.item(index);
                size.bytes += item.bytes();
                size.has_null_items |= item.has_null_items();
            }
        }
    }
    sizes
}

/// Copies the values of all rows, with their lengths and the validity of their items. `heap_of` returns the values of a row.
pub(super) async fn write<'a>(
    columns: &mut [VariableColumn],
    tails: &Tails<'_>,
    heap_of: impl Fn(usize) -> &'a [u8],
    body: &mut [u8],
    turn: &mut TurnClock,
) {
    if columns.is_empty() {
        return;
    }
    for column in columns.iter_mut() {
        column.lengths.begin(body);
        if let Some(items) = &column.validity {
            body[items.start..][..items.bytes].fill(0);
        }
    }
    let tile = tile_rows(columns.len());
    for first in (0..tails.rows()).step_by(tile) {
        let rows = first..(first + tile).min(tails.rows());
        let mut bytes = rows.len() * columns.len() * BYTES_PER_VALUE;
        for row in rows {
            if row + AHEAD_ROWS < tails.rows() {
                prefetch(heap_of(row + AHEAD_ROWS));
            }
            let values = heap_of(row);
            bytes += values.len();
            write_row(columns, tails.of(row), values, body);
        }
        turn.handled(bytes).await;
    }
}

fn write_row(columns: &mut [VariableColumn], tail: Tail<'_>, mut values: &[u8], body: &mut [u8]) {
    for (index, column) in columns.iter_mut().enumerate() {
        let item = tail.item(index);
        let (value, rest) = values.split_at(item.bytes());
        let (validity, rest) = rest.split_at(item.validity_bytes(column.items));
        values = rest;
        body[column.values..][..value.len()].copy_from_slice(value);
        column.values += value.len();
        let items = column.items.count(value.len());
        column.lengths.push(items, body);
        if let Some(of_items) = &mut column.validity {
            of_items.push(items, validity, body);
        }
    }
}

impl Lengths {
    /// Writes what precedes the first value.
    fn begin(&self, body: &mut [u8]) {
        if let Self::Ends { at, wide, end } = self {
            write_end(&mut body[*at..], *wide, *end);
        }
    }

    /// Writes the length of the next value.
    #[inline]
    fn push(&mut self, items: usize, body: &mut [u8]) {
        match self {
            Self::Ends { at, wide, end } => {
                *end += items as u64;
                *at += if *wide { size_of::<i64>() } else { size_of::<i32>() };
                write_end(&mut body[*at..], *wide, *end);
            }
            Self::Items { at } => {
                body[*at..][..size_of::<i32>()].copy_from_slice(&(items as u32).to_le_bytes());
                *at += size_of::<i32>();
            }
        }
    }
}

impl ItemValidity {
    /// Writes the validity of the next `items` items. All of them are valid if `validity` is empty.
    #[inline]
    fn push(&mut self, items: usize, validity: &[u8], body: &mut [u8]) {
        let valid = append_bits(&mut body[self.start..][..self.bytes], self.items, items, validity);
        self.items += items;
        self.nulls += items - valid;
    }
}
