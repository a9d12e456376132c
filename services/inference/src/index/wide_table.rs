//! Table for keys of any width: a slot holds some bits of the hash and a row number, whose key is then compared.

use forebay_loader::{Error, prefetch, prefetch_value};

use super::{
    block_keys::{BlockKeys, replaces},
    key_hash::KeyHash,
    sharding::{home_of, shard_of, slots_for, step},
};
use crate::keys::EncodedKeys;

/// Value of a free slot.
pub(super) const EMPTY: u64 = u64::MAX;
/// Number of bits of a slot that hold the row number. The others hold bits of the hash.
const ROW_BITS: u32 = 40;
/// Maximum number of rows of a snapshot.
pub(super) const MAX_ROWS: u64 = (1 << ROW_BITS) - 1;
/// Number of rows per chunk. Ends of keys without a fixed width are relative to the start of their chunk.
const CHUNK_ROWS: usize = 1 << 16;

/// Hash table of row numbers, and the keys of all rows.
///
/// ```text
/// shard by the low bits of the hash: | slot | slot | slot | ...   24 bits of hash, 40 of row number; linear probing
/// keys by row number:                | key | key | key | ...      as bytes
/// ```
#[derive(Debug)]
pub(super) struct WideTable {
    pub(super) keys: StoredKeys,
    pub(super) shards: Vec<Box<[u64]>>,
}

/// Keys of all rows, by row number.
#[derive(Debug, Default)]
pub(super) struct StoredKeys {
    pub(super) width: Option<usize>,
    pub(super) bytes: Vec<u8>,
    /// Without a fixed width: the end of each key, relative to the start of its chunk.
    pub(super) ends: Vec<u32>,
    /// Without a fixed width: the start of each chunk.
    pub(super) chunks: Vec<u64>,
    pub(super) rows: u64,
}

impl WideTable {
    /// Reassembles a saved table; `None` if a slot or a key is invalid.
    pub(super) fn read(shards: Vec<Box<[u64]>>, keys: StoredKeys) -> Option<Self> {
        let is_row = |slot: &u64| *slot == EMPTY || slot & MAX_ROWS < keys.rows;
        let is_table = |shard: &[u64]| shard.contains(&EMPTY) && shard.iter().all(is_row);
        (keys.is_complete() && shards.iter().all(|shard| is_table(shard))).then_some(Self { keys, shards })
    }

    /// Memory of the table, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        let slots = self.shards.iter().map(|shard| size_of_val(&**shard)).sum::<usize>();
        let StoredKeys { bytes, ends, chunks, .. } = &self.keys;
        slots + bytes.len() + size_of_val(&ends[..]) + size_of_val(&chunks[..])
    }

    /// Passes up to `count` keys at equal distances in the table to `take`.
    pub(super) fn sample(&self, count: usize, take: &mut dyn FnMut(&[u8])) {
        let rows = || {
            let slots = self.shards.iter().flat_map(|shard| shard.iter());
            slots.filter(|slot| **slot != EMPTY).map(|slot| slot & MAX_ROWS)
        };
        rows().step_by(step(rows().count(), count)).for_each(|row| take(self.keys.get(row)));
    }

    /// Returns the row number of each of `keys`; `None` for keys that are not in the table. `hash` is the function with which the table
    /// was filled.
    pub(super) fn rows(&self, keys: &EncodedKeys, hash: KeyHash) -> Vec<Option<u64>> {
        // Each step runs for all keys before the next one, so that the prefetches of many keys overlap.
        let mut probes: Vec<Option<Probe<'_>>> =
            (0..keys.len()).map(|row| Some(Probe::new(keys.get(row)?, hash, &self.shards))).collect();
        for probe in probes.iter_mut().flatten() {
            if let Some(row) = probe.candidate() {
                prefetch(self.keys.get(row));
            }
        }
        probes.into_iter().map(|probe| probe?.row(&self.keys)).collect()
    }
}

/// Search for the row of a key.
struct Probe<'a> {
    key: &'a [u8],
    fingerprint: u64,
    slots: &'a [u64],
    at: usize,
}

impl<'a> Probe<'a> {
    #[inline]
    fn new(key: &'a [u8], hash: KeyHash, shards: &'a [Box<[u64]>]) -> Self {
        let hash = hash.hash(key);
        let slots = &*shards[shard_of(hash, shards.len())];
        let at = home_of(hash, slots.len());
        prefetch_value(&slots[at]);
        Self { key, fingerprint: fingerprint(hash), slots, at }
    }

    /// Returns the row of the current or next slot with the same bits of the hash; `None` at a free slot.
    #[inline]
    fn candidate(&mut self) -> Option<u64> {
        loop {
            let slot = self.slots[self.at];
            if slot == EMPTY {
                return None;
            }
            if slot >> ROW_BITS == self.fingerprint {
                return Some(slot & MAX_ROWS);
            }
            self.step();
        }
    }

    #[inline]
    fn step(&mut self) {
        self.at = if self.at + 1 == self.slots.len() { 0 } else { self.at + 1 };
    }

    /// Returns the row of the key.
    #[inline]
    fn row(mut self, keys: &StoredKeys) -> Option<u64> {
        loop {
            let row = self.candidate()?;
            if keys.get(row) == self.key {
                return Some(row);
            }
            self.step();
        }
    }
}

/// Bits of a hash that a slot holds.
fn fingerprint(hash: u64) -> u64 {
    // Neither the low bits, which select the shard, nor the high ones, which select the slot.
    hash >> 8 & ((1 << (64 - ROW_BITS)) - 1)
}

/// Builds the slots of one shard. Returns them with the number of keys.
pub(super) fn fill(blocks: &[BlockKeys], keys: &StoredKeys, shard: usize) -> (Box<[u64]>, u64) {
    let rows: usize = blocks.iter().map(|block| block.shards[shard].len()).sum();
    // At least one free slot, which ends every probe.
    let mut slots = vec![EMPTY; slots_for(rows as u64) as usize + 1].into_boxed_slice();
    let mut count = 0;
    for block in blocks {
        for (hash, row) in &block.shards[shard] {
            let row = block.first_row + u64::from(*row);
            let key = keys.get(row);
            let mut at = home_of(*hash, slots.len());
            loop {
                let slot = slots[at];
                if slot == EMPTY {
                    slots[at] = fingerprint(*hash) << ROW_BITS | row;
                    count += 1;
                    break;
                }
                if slot >> ROW_BITS == fingerprint(*hash) && keys.get(slot & MAX_ROWS) == key {
                    if replaces(blocks, row, slot & MAX_ROWS) {
                        slots[at] = fingerprint(*hash) << ROW_BITS | row;
                    }
                    break;
                }
                at = if at + 1 == slots.len() { 0 } else { at + 1 };
            }
        }
    }
    (slots, count)
}

impl StoredKeys {
    /// Collects the keys of all blocks.
    ///
    /// # Errors
    /// [`Error::Invalid`] for keys that are too long.
    pub(super) fn new(blocks: &[BlockKeys]) -> Result<Self, Error> {
        let mut keys = Self::default();
        for block in blocks {
            keys.append(&block.keys)?;
        }
        Ok(keys)
    }

    /// True if there is a valid key for each row.
    fn is_complete(&self) -> bool {
        if let Some(width) = self.width {
            return (self.rows as usize).checked_mul(width) == Some(self.bytes.len());
        }
        let mut chunks = self.ends.chunks(CHUNK_ROWS).zip(&self.chunks);
        self.ends.len() as u64 == self.rows
            && self.ends.len().div_ceil(CHUNK_ROWS) == self.chunks.len()
            && chunks.all(|(ends, start)| {
                let last = u64::from(ends.last().copied().unwrap_or(0));
                ends.is_sorted() && start.checked_add(last).is_some_and(|end| end <= self.bytes.len() as u64)
            })
    }

    fn append(&mut self, block: &EncodedKeys) -> Result<(), Error> {
        self.width = block.width();
        if self.width.is_some() {
            self.bytes.extend_from_slice(block.bytes());
            self.rows += block.len() as u64;
            return Ok(());
        }
        let mut at = self.bytes.len() as u64;
        for length in block.lengths() {
            if self.rows.is_multiple_of(CHUNK_ROWS as u64) {
                self.chunks.push(at);
            }
            at += length as u64;
            let start = self.chunks.last().copied().unwrap_or(0);
            let end = u32::try_from(at - start).map_err(|_| {
                Error::invalid("key", format!("{CHUNK_ROWS} consecutive keys have more than 4 GiB"))
            })?;
            self.ends.push(end);
            self.rows += 1;
        }
        self.bytes.extend_from_slice(block.bytes());
        Ok(())
    }

    /// Returns the key of a row.
    fn get(&self, row: u64) -> &[u8] {
        let row = row as usize;
        if let Some(width) = self.width {
            return &self.bytes[row * width..][..width];
        }
        let chunk = self.chunks[row / CHUNK_ROWS] as usize;
        let start = if row.is_multiple_of(CHUNK_ROWS) { 0 } else { self.ends[row - 1] as usize };
        &self.bytes[chunk + start..chunk + self.ends[row] as usize]
    }
}
