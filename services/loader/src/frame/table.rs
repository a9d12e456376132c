//! Distinct rows of a de-duplicated tensor in one frame.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::{BuildHasherDefault, Hasher},
};

use arrow_array::ArrayRef;
use xxhash_rust::xxh3::Xxh3;

use crate::{Error, selection::groups::keys_as_bytes};

/// Distinct rows of one tensor in a frame, in the order of first occurrence.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// Index of the distinct row of each row of the frame.
    pub(super) numbers: Vec<u32>,
    pub(super) rows: Vec<u8>,
    /// Hash of the key and the bytes of each distinct row.
    pub(super) hashes: Vec<u128>,
}

impl Table {
    pub(super) fn len_bytes(&self) -> usize {
        size_of_val(&self.numbers[..]) + self.rows.len() + size_of_val(&self.hashes[..])
    }

    pub(super) fn capacity(&self) -> usize {
        let (numbers, hashes) = (self.numbers.capacity(), self.hashes.capacity());
        numbers * size_of::<u32>() + self.rows.capacity() + hashes * size_of::<u128>()
    }

    pub(super) fn row(&self, number: u32, width: usize) -> &[u8] {
        &self.rows[number as usize * width..][..width]
    }
}

/// A map by hash. It uses the low bits of the key, which is already evenly distributed.
pub(super) type ByHash = HashMap<u128, u32, BuildHasherDefault<LowBits>>;

#[derive(Default)]
pub(super) struct LowBits(u64);

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

    /// Bytes of the distinct rows so far.
    pub(super) fn bytes(&self) -> usize {
        self.table.rows.len()
    }

    pub(super) fn finish(mut self) -> Table {
        self.table.numbers.shrink_to_fit();
        self.table.rows.shrink_to_fit();
        self.table.hashes.shrink_to_fit();
        self.table
    }
}
