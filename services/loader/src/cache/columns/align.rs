//! Splitting of the columns of one block at the same rows.
//!
//! The number of rows decoded at a time depends on the columns decoded together: it is smaller if values are long.

use arrow_array::{Array, ArrayRef};

/// Splits all columns at the same rows without copying. Returns `None` if the columns differ in their number of rows.
pub(super) fn align(columns: &[&[ArrayRef]]) -> Option<Vec<Vec<ArrayRef>>> {
    let mut cursors: Vec<Cursor<'_>> = columns.iter().map(|chunks| Cursor { chunks, taken: 0 }).collect();
    let mut pieces = Vec::new();
    loop {
        let left = || cursors.iter().map(Cursor::left);
        let Some(rows) = left().min().filter(|rows| *rows > 0) else {
            return left().all(|rows| rows == 0).then_some(pieces);
        };
        pieces.push(cursors.iter_mut().map(|cursor| cursor.take(rows)).collect());
    }
}

/// Position of the last split of a column, within its first remaining chunk.
struct Cursor<'a> {
    chunks: &'a [ArrayRef],
    taken: usize,
}

impl Cursor<'_> {
    /// Number of rows left in the chunk; 0 after the last chunk.
    fn left(&self) -> usize {
        self.chunks.first().map_or(0, |chunk| chunk.len() - self.taken)
    }

    fn take(&mut self, rows: usize) -> ArrayRef {
        let piece = self.chunks[0].slice(self.taken, rows);
        self.taken += rows;
        if self.left() == 0 {
            self.chunks = &self.chunks[1..];
            self.taken = 0;
        }
        piece
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::Int64Array;

    use super::*;

    fn column(ends: &[i64]) -> Vec<ArrayRef> {
        let chunk = |ends: &[i64]| Arc::new(Int64Array::from_iter_values(ends[0]..ends[1])) as ArrayRef;
        ends.windows(2).map(chunk).collect()
    }

    #[test]
    fn columns_are_cut_where_any_of_them_is() {
        let columns = [column(&[0, 4, 8, 10]), column(&[0, 10]), column(&[0, 3, 8, 10])];
        let pieces = align(&columns.each_ref().map(Vec::as_slice)).unwrap();
        let expected = column(&[0, 3, 4, 8, 10]);
        assert_eq!(pieces, expected.into_iter().map(|piece| vec![piece; 3]).collect::<Vec<_>>());
    }

    #[test]
    fn columns_of_unequal_rows_are_refused_and_none_is_no_piece() {
        assert!(align(&[&column(&[0, 4, 8]), &column(&[0, 4])]).is_none());
        assert_eq!(align(&[&[], &[]]), Some(Vec::new()));
        assert_eq!(align(&[]), Some(Vec::new()));
    }
}
