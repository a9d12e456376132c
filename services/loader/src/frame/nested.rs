//! Gathering of the rows of nested columns, some rows at a time.

use std::sync::Arc;

use arrow_array::{Array, ArrayRef, UInt64Array};
use arrow_data::ArrayData;
use arrow_select::{concat::concat, interleave::interleave, take::take};

use super::Frame;
use crate::{Error, RowRef, TurnClock};

/// Number of items of nested rows that are gathered at a time, on average. Arrow's kernels make 16 bytes for each.
const NESTED_ITEMS: usize = 1 << 20;
/// Maximum number of nested rows that are gathered at a time.
const NESTED_ROWS: usize = 4096;

/// Gathers the rows of nested column `index`, some rows at a time and in turns, and calls `check` with each piece.
///
/// # Errors
/// The first error of `check`, and [`Error::Internal`] for offsets that are too large.
pub(crate) async fn gather_nested(
    frames: &[Arc<Frame>],
    rows: &[RowRef],
    index: usize,
    mut check: impl FnMut(&ArrayRef) -> Result<(), Error>,
    turn: &mut TurnClock,
) -> Result<ArrayRef, Error> {
    let mut pieces = Vec::new();
    for rows in rows.chunks(rows_at_a_time(frames.iter().map(|frame| &frame.nested[index]))) {
        let piece = interleave_nested(frames, rows, index)?;
        check(&piece)?;
        pieces.push(piece);
        turn.step().await;
    }
    match pieces.as_slice() {
        [] => interleave_nested(frames, rows, index),
        [only] => Ok(Arc::clone(only)),
        several => {
            let pieces: Vec<&dyn Array> = several.iter().map(AsRef::as_ref).collect();
            concat(&pieces).map_err(|error| Error::Internal(error.to_string()))
        }
    }
}

/// Number of rows of a nested column to gather at a time.
fn rows_at_a_time<'a>(arrays: impl Iterator<Item = &'a ArrayRef>) -> usize {
    let (mut rows, mut items) = (0, 0);
    for array in arrays {
        rows += array.len();
        items += max_items(&array.to_data());
    }
    (NESTED_ITEMS / items.div_ceil(rows.max(1)).max(1)).clamp(1, NESTED_ROWS)
}

/// Number of rows or items of the longest array in a nested array.
fn max_items(array: &ArrayData) -> usize {
    array.child_data().iter().map(max_items).fold(array.len(), usize::max)
}

/// Gathers the rows of nested column `index` with Arrow's kernels.
fn interleave_nested(frames: &[Arc<Frame>], rows: &[RowRef], index: usize) -> Result<ArrayRef, Error> {
    let arrays: Vec<&dyn Array> = frames.iter().map(|frame| frame.nested[index].as_ref()).collect();
    let indices: Vec<(usize, usize)> =
        rows.iter().map(|row| (row.frame as usize, row.row as usize)).collect();
    let internal = |error: arrow_schema::ArrowError| Error::Internal(error.to_string());
    match arrays.as_slice() {
        // `take` counts the items of fixed-size lists with 32 bits.
        [only] if max_items(&only.to_data()) <= i32::MAX as usize => {
            let rows: UInt64Array = indices.iter().map(|(_, row)| *row as u64).collect();
            take(*only, &rows, None).map_err(internal)
        }
        several => interleave(several, &indices).map_err(internal),
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::{BooleanArray, Int64Array, ListArray};
    use arrow_buffer::OffsetBuffer;
    use arrow_schema::Field;

    use super::*;

    /// Lists of `length` items.
    fn lists(rows: usize, length: usize, items: ArrayRef) -> ArrayRef {
        let item = Arc::new(Field::new("item", items.data_type().clone(), true));
        Arc::new(ListArray::new(item, OffsetBuffer::from_repeated_length(length, rows), items, None))
    }

    #[test]
    fn long_lists_are_gathered_a_few_rows_at_a_time() {
        let flags = |count: usize| -> ArrayRef { Arc::new(BooleanArray::from(vec![true; count])) };
        let masks = lists(64, 65_536, flags(64 * 65_536));
        assert_eq!(rows_at_a_time([&masks].into_iter()), 16);
        // Also if another frame has short lists, and if the lists are lists of lists.
        let short = lists(64, 1, flags(64));
        assert_eq!(rows_at_a_time([&masks, &short].into_iter()), 31);
        let nested = lists(8, 8, lists(64, 65_536, flags(64 * 65_536)));
        assert_eq!(rows_at_a_time([&nested].into_iter()), 2);
        let numbers = lists(10, 3, Arc::new(Int64Array::from(vec![1; 30])));
        assert_eq!(rows_at_a_time([&numbers].into_iter()), NESTED_ROWS);
        assert_eq!(rows_at_a_time([&numbers.slice(0, 0)].into_iter()), NESTED_ROWS.min(NESTED_ITEMS / 30));
        assert_eq!(rows_at_a_time(std::iter::empty()), NESTED_ROWS);
    }
}
