//! De-duplicated rows of a tensor.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::{BuildHasherDefault, Hasher},
    sync::Arc,
};

use arrow_array::ArrayRef;
use xxhash_rust::xxh3::Xxh3;

use super::{Frame, RowRef};
use crate::{
    Error,
    groups::keys_as_bytes,
    prefetch::{prefetch, prefetch_value},
};

/// Distinct rows of one tensor in a frame, in the order of first occurrence.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// Index of the distinct row of each row of the frame.
    numbers: Vec<u32>,
    rows: Vec<u8>,
    /// Hash of the key and the bytes of each distinct row.
    hashes: Vec<u128>,
}

impl Table {
    pub(super) fn len_bytes(&self) -> usize {
        size_of_val(&self.numbers[..]) + self.rows.len() + size_of_val(&self.hashes[..])
    }

    pub(super) fn capacity(&self) -> usize {
        let (numbers, hashes) = (self.numbers.capacity(), self.hashes.capacity());
        numbers * size_of::<u32>() + self.rows.capacity() + hashes * size_of::<u128>()
    }

    fn row(&self, number: u32, width: usize) -> &[u8] {
        &self.rows[number as usize * width..][..width]
    }
}

/// A map by hash. It uses the low bits of the key, which is already evenly distributed.
type ByHash = HashMap<u128, u32, BuildHasherDefault<LowBits>>;

#[derive(Default)]
struct LowBits(u64);

impl Hasher for LowBits {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |hash, byte| hash.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u128(&mut self, value: u128) {
        self.0 = value as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Builds a [`Table`] from the rows of a frame.
pub(super) struct TableBuilder {
    width: usize,
    table: Table,
    by_hash: ByHash,
}

impl TableBuilder {
    /// Creates a builder for rows of `width` bytes.
    pub(super) fn new(width: usize) -> Self {
        Self { width, table: Table::default(), by_hash: ByHash::default() }
    }

    /// Appends rows with their de-duplication keys.
    pub(super) fn append(&mut self, keys: &[ArrayRef], rows: &[u8]) -> Result<(), Error> {
        let keys = keys_as_bytes(keys)?;
        let mut before = None;
        for (key, row) in keys.iter().zip(rows.chunks_exact(self.width)) {
            // Equal rows are often consecutive.
            let number = match before {
                Some((last_key, last_row, number)) if last_key == key && last_row == row => number,
                _ => self.number(key.as_ref(), row),
            };
            before = Some((key, row, number));
            self.table.numbers.push(number);
        }
        Ok(())
    }

    fn number(&mut self, key: &[u8], row: &[u8]) -> u32 {
        let mut hash = Xxh3::new();
        hash.update(&(key.len() as u64).to_le_bytes());
        hash.update(key);
        hash.update(row);
        let (hash, next) = (hash.digest128(), self.table.hashes.len() as u32);
        match self.by_hash.entry(hash) {
            Entry::Occupied(known) if self.table.row(*known.get(), self.width) == row => return *known.get(),
            Entry::Occupied(_) => {}
            Entry::Vacant(entry) => drop(entry.insert(next)),
        }
        self.table.hashes.push(hash);
        self.table.rows.extend_from_slice(row);
        next
    }

    pub(super) fn finish(mut self) -> Table {
        self.table.numbers.shrink_to_fit();
        self.table.rows.shrink_to_fit();
        self.table.hashes.shrink_to_fit();
        self.table
    }
}

/// Prefetch distances in rows: for the index of a row, and for its distinct row.
const NUMBERS_AHEAD: usize = 96;
const ROWS_AHEAD: usize = 48;

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
    /// Finds the distinct rows of `rows` in table `index` of `frames`. Each has `width` bytes.
    pub(crate) fn new(frames: &'a [Arc<Frame>], index: usize, width: usize, rows: &[RowRef]) -> Self {
        let tables = frames.iter().map(|frame| &frame.tables[index]).collect();
        let (by_hash, distinct) = (ByHash::default(), Vec::new());
        let mut made = Self { tables, width, by_hash, distinct, numbers: Vec::with_capacity(rows.len()) };
        let mut last = None;
        for (position, row) in rows.iter().enumerate() {
            made.prefetch(rows, position);
            let own = made.own(*row);
            // Equal rows are often consecutive.
            let number = match last {
                Some((before, number)) if before == own => number,
                _ => made.find(own),
            };
            last = Some((own, number));
            made.numbers.push(number);
        }
        made
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
