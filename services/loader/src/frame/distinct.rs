//! Distinct rows of a de-duplicated tensor among the rows of a batch.

use std::{collections::hash_map::Entry, sync::Arc};

use super::{
    Frame, RowRef,
    table::{ByHash, Table},
};
use crate::{
    TurnClock,
    cpu::prefetch::{prefetch, prefetch_value},
};

/// Prefetch distances in rows: for the index of a row, and for its distinct row.
const NUMBERS_AHEAD: usize = 96;
const ROWS_AHEAD: usize = 48;
/// Number of rows after which the time is read.
const TIMED_ROWS: usize = 1024;

/// Distinct rows of one tensor among rows of several frames, numbered in the order of first occurrence.
pub(crate) struct Distinct<'a> {
    tables: Vec<&'a Table>,
    width: usize,
    by_hash: ByHash,
    /// Frame, and index in the table of that frame.
    distinct: Vec<(u32, u32)>,
    /// Index of the distinct row of each row.
    numbers: Vec<u32>,
}

impl<'a> Distinct<'a> {
    /// Finds the distinct rows of `rows` in table `index` of `frames`, in turns. Each row has `width` bytes.
    pub(crate) async fn new(
        frames: &'a [Arc<Frame>],
        index: usize,
        width: usize,
        rows: &[RowRef],
        turn: &mut TurnClock,
    ) -> Self {
        let tables = frames.iter().map(|frame| &frame.tables[index]).collect();
        let (by_hash, distinct) = (ByHash::default(), Vec::new());
        let mut found = Self { tables, width, by_hash, distinct, numbers: Vec::with_capacity(rows.len()) };
        let mut last = None;
        for (position, row) in rows.iter().enumerate() {
            if position % TIMED_ROWS == 0 {
                turn.step().await;
            }
            found.prefetch(rows, position);
            let own = found.own(*row);
            // Equal rows are often consecutive.
            let number = match last {
                Some((before, number)) if before == own => number,
                _ => found.find(own),
            };
            last = Some((own, number));
            found.numbers.push(number);
        }
        found
    }

    /// Returns the frame of a row and the index of its distinct row there.
    #[inline]
    fn own(&self, row: RowRef) -> (u32, u32) {
        (row.frame, self.tables[row.frame as usize].numbers[row.row as usize])
    }

    fn prefetch(&self, rows: &[RowRef], position: usize) {
        if let Some(row) = rows.get(position + NUMBERS_AHEAD) {
            prefetch_value(&self.tables[row.frame as usize].numbers[row.row as usize]);
        }
        if let Some(row) = rows.get(position + ROWS_AHEAD) {
            let (frame, number) = self.own(*row);
            let before = rows.get(position + ROWS_AHEAD - 1).map(|row| self.own(*row));
            if before != Some((frame, number)) {
                prefetch_value(&self.tables[frame as usize].hashes[number as usize]);
                prefetch(self.bytes((frame, number)));
            }
        }
    }

    fn find(&mut self, own: (u32, u32)) -> u32 {
        let hash = self.tables[own.0 as usize].hashes[own.1 as usize];
        let next = self.distinct.len() as u32;
        match self.by_hash.entry(hash) {
            Entry::Occupied(known) => {
                let (known, other) = (*known.get(), self.distinct[*known.get() as usize]);
                if other == own || self.bytes(other) == self.bytes(own) {
                    return known;
                }
            }
            Entry::Vacant(entry) => drop(entry.insert(next)),
        }
        self.distinct.push(own);
        next
    }

    /// Number of distinct rows.
    pub(crate) fn len(&self) -> usize {
        self.distinct.len()
    }

    /// Index of the distinct row of each row.
    pub(crate) fn numbers(&self) -> &[u32] {
        &self.numbers
    }

    /// Bytes of each distinct row.
    pub(crate) fn rows(&self) -> impl Iterator<Item = &'a [u8]> {
        self.distinct.iter().map(|own| self.bytes(*own))
    }

    fn bytes(&self, (frame, number): (u32, u32)) -> &'a [u8] {
        self.tables[frame as usize].row(number, self.width)
    }

    /// Converts the distinct rows to a table of a new frame.
    pub(super) fn into_table(self) -> Table {
        let hash = |(frame, number): &(u32, u32)| self.tables[*frame as usize].hashes[*number as usize];
        Table {
            rows: self.rows().flatten().copied().collect(),
            hashes: self.distinct.iter().map(hash).collect(),
            numbers: self.numbers,
        }
    }
}
