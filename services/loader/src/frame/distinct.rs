//! Rows of a tensor that many rows of a frame have in common, each kept once.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::{BuildHasherDefault, Hasher},
    sync::Arc,
};

use arrow_array::ArrayRef;
use xxhash_rust::xxh3::Xxh3;

use super::Frame;
use crate::{Error, groups::keys_as_bytes};

/// The distinct rows of one tensor in a frame, in the order in which they come.
#[derive(Debug)]
pub(super) struct Table {
    rows: Vec<u8>,
    /// Of each row, what it is found by: a hash of its key and its bytes.
    hashes: Vec<u128>,
}

impl Table {
    pub(super) fn len_bytes(&self) -> usize {
        self.rows.len() + self.hashes.len() * size_of::<u128>()
    }

    pub(super) fn capacity(&self) -> usize {
        self.rows.capacity() + self.hashes.capacity() * size_of::<u128>()
    }

    fn row(&self, number: u32, width: usize) -> &[u8] {
        &self.rows[number as usize * width..][..width]
    }
}

/// Hashes are spread evenly already.
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

/// Makes a [`Table`] from the rows of a frame.
pub(super) struct TableBuilder {
    width: usize,
    table: Table,
    by_hash: ByHash,
}

impl TableBuilder {
    /// For rows of `width` bytes.
    pub(super) fn new(width: usize) -> Self {
        Self { width, table: Table { rows: Vec::new(), hashes: Vec::new() }, by_hash: ByHash::default() }
    }

    /// Takes more rows, of which `keys` are the values by which they belong together; returns the number of each in the
    /// table, as little-endian `u32`s.
    pub(super) fn append(&mut self, keys: &[ArrayRef], rows: &[u8]) -> Result<Vec<u8>, Error> {
        let keys = keys_as_bytes(keys)?;
        let mut numbers = Vec::with_capacity(keys.num_rows() * size_of::<u32>());
        let mut before = None;
        for (key, row) in keys.iter().zip(rows.chunks_exact(self.width)) {
            // Rows that belong together often follow one another.
            let number = match before {
                Some((last_key, last_row, number)) if last_key == key && last_row == row => number,
                _ => self.number(key.as_ref(), row),
            };
            before = Some((key, row, number));
            numbers.extend_from_slice(&number.to_le_bytes());
        }
        Ok(numbers)
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
        self.table.rows.shrink_to_fit();
        self.table.hashes.shrink_to_fit();
        self.table
    }
}

/// The distinct rows of one tensor among rows of several frames, numbered in the order in which they come first.
pub(crate) struct Distinct<'a> {
    tables: Vec<&'a Table>,
    width: usize,
    by_hash: ByHash,
    /// Frame, and number there.
    rows: Vec<(u32, u32)>,
    /// The row that was asked for last, and its number.
    last: Option<((u32, u32), u32)>,
}

impl<'a> Distinct<'a> {
    /// Over table `index` of `frames`, of rows of `width` bytes.
    pub(crate) fn new(frames: &'a [Arc<Frame>], index: usize, width: usize) -> Self {
        let tables = frames.iter().map(|frame| &frame.tables[index]).collect();
        Self { tables, width, by_hash: ByHash::default(), rows: Vec::new(), last: None }
    }

    /// The number among these of row `number` of the table of `frame`.
    #[inline]
    pub(crate) fn number(&mut self, frame: u32, number: u32) -> u32 {
        let row = (frame, number);
        match self.last {
            Some((last, known)) if last == row => known,
            _ => {
                let known = self.find(row);
                self.last = Some((row, known));
                known
            }
        }
    }

    fn find(&mut self, row: (u32, u32)) -> u32 {
        let hash = self.tables[row.0 as usize].hashes[row.1 as usize];
        let next = self.rows.len() as u32;
        match self.by_hash.entry(hash) {
            Entry::Occupied(known) => {
                let (known, other) = (*known.get(), self.rows[*known.get() as usize]);
                if other == row || self.bytes(other) == self.bytes(row) {
                    return known;
                }
            }
            Entry::Vacant(entry) => drop(entry.insert(next)),
        }
        self.rows.push(row);
        next
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// The bytes of each.
    pub(crate) fn rows(&self) -> impl Iterator<Item = &'a [u8]> {
        self.rows.iter().map(|row| self.bytes(*row))
    }

    fn bytes(&self, (frame, number): (u32, u32)) -> &'a [u8] {
        self.tables[frame as usize].row(number, self.width)
    }

    /// A table of these.
    pub(super) fn table(&self) -> Table {
        let hashes =
            self.rows.iter().map(|(frame, number)| self.tables[*frame as usize].hashes[*number as usize]);
        Table { rows: self.rows().flatten().copied().collect(), hashes: hashes.collect() }
    }
}
