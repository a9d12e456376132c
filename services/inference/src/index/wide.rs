//! Keys of any kind: a slot has some bits of a key's hash and the number of its row, whose key is then compared.

use forebay_loader::{Error, prefetch, prefetch_value};

use super::{BlockKeys, first_of, is_meant, room_for, shard_of};
use crate::keys::{EncodedKeys, hash};

/// A slot that is free.
const EMPTY: u64 = u64::MAX;
/// Bits of a slot that are the row's number; the others are the key's hash.
const ROW_BITS: u32 = 40;
/// Rows that can be indexed.
pub(super) const MAX_ROWS: u64 = (1 << ROW_BITS) - 1;
/// Keys of no fixed width are found from the start of so many.
const CHUNK_ROWS: usize = 1 << 16;

/// ```text
/// shard by the hash's last bits: | slot | slot | slot | ...   24 bits of hash, 40 of row number; linear probing
/// keys by row number:            | key | key | key | ...      as bytes
/// ```
#[derive(Debug)]
pub(super) struct Wide {
    pub(super) keys: Keys,
    pub(super) shards: Vec<Box<[u64]>>,
}

/// The keys of all rows, by the rows' numbers.
#[derive(Debug, Default)]
pub(super) struct Keys {
    pub(super) width: Option<usize>,
    pub(super) bytes: Vec<u8>,
    /// Without a width: where each ends, from the start of its chunk on.
    pub(super) ends: Vec<u32>,
    /// Where each chunk starts.
    pub(super) chunks: Vec<u64>,
    pub(super) rows: u64,
}

impl Wide {
    /// A table that was written before, of so many rows and keys of this width; `None` for one that was not.
    pub(super) fn read(shards: Vec<Box<[u64]>>, keys: Keys) -> Option<Self> {
        let is_row = |slot: &u64| *slot == EMPTY || slot & MAX_ROWS < keys.rows;
        let is_table = |shard: &[u64]| shard.contains(&EMPTY) && shard.iter().all(is_row);
        (keys.are_whole() && shards.iter().all(|shard| is_table(shard))).then_some(Self { keys, shards })
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        let slots = self.shards.iter().map(|shard| size_of_val(&**shard)).sum::<usize>();
        let Keys { bytes, ends, chunks, .. } = &self.keys;
        slots + bytes.len() + size_of_val(&ends[..]) + size_of_val(&chunks[..])
    }

    /// For each of `keys` the number of its row, if there is one.
    pub(super) fn rows(&self, keys: &EncodedKeys) -> Vec<Option<u64>> {
        // Step by step for all keys: what each step reads is on its way while it is taken for others.
        let mut probes: Vec<Option<Probe<'_>>> =
            (0..keys.len()).map(|row| Some(Probe::new(keys.get(row)?, &self.shards))).collect();
        for probe in probes.iter_mut().flatten() {
            if let Some(row) = probe.candidate() {
                prefetch(self.keys.get(row));
            }
        }
        probes.into_iter().map(|probe| probe?.row(&self.keys)).collect()
    }
}

/// A key on its way to its row.
struct Probe<'a> {
    key: &'a [u8],
    fingerprint: u64,
    slots: &'a [u64],
    at: usize,
}

impl<'a> Probe<'a> {
    #[inline]
    fn new(key: &'a [u8], shards: &'a [Box<[u64]>]) -> Self {
        let hash = hash(key);
        let slots = &*shards[shard_of(hash, shards.len())];
        let at = first_of(hash, slots.len());
        prefetch_value(&slots[at]);
        Self { key, fingerprint: fingerprint(hash), slots, at }
    }

    /// The row in the next slot whose key has the same bits of hash; `None` if there is none any more.
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

    /// The key's row.
    #[inline]
    fn row(mut self, keys: &Keys) -> Option<u64> {
        loop {
            let row = self.candidate()?;
            if keys.get(row) == self.key {
                return Some(row);
            }
            self.step();
        }
    }
}

/// The bits of a hash that a slot has.
fn fingerprint(hash: u64) -> u64 {
    // Those that choose neither shard nor slot.
    hash >> 8 & ((1 << (64 - ROW_BITS)) - 1)
}

/// The slots of one shard, and how many keys are in them.
pub(super) fn fill(blocks: &[BlockKeys], keys: &Keys, shard: usize) -> (Box<[u64]>, u64) {
    let rows: usize = blocks.iter().map(|block| block.of_shards[shard].len()).sum();
    // One at least is free.
    let mut slots = vec![EMPTY; room_for(rows as u64) as usize + 1].into_boxed_slice();
    let mut count = 0;
    for block in blocks {
        for (hash, row) in &block.of_shards[shard] {
            let row = block.first_row + u64::from(*row);
            let key = keys.get(row);
            let mut at = first_of(*hash, slots.len());
            loop {
                let slot = slots[at];
                if slot == EMPTY {
                    slots[at] = fingerprint(*hash) << ROW_BITS | row;
                    count += 1;
                    break;
                }
                if slot >> ROW_BITS == fingerprint(*hash) && keys.get(slot & MAX_ROWS) == key {
                    if is_meant(blocks, row, slot & MAX_ROWS) {
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

impl Keys {
    /// Those of all rows.
    ///
    /// # Errors
    /// [`Error::Invalid`] for keys that are too long.
    pub(super) fn of(blocks: &[BlockKeys]) -> Result<Self, Error> {
        let mut keys = Self::default();
        for block in blocks {
            keys.append(&block.keys)?;
        }
        Ok(keys)
    }

    /// Whether there is a key for each row.
    fn are_whole(&self) -> bool {
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
            let end = u32::try_from(at - start)
                .map_err(|_| Error::invalid("key", format!("{CHUNK_ROWS} keys have more than 4 GiB")))?;
            self.ends.push(end);
            self.rows += 1;
        }
        self.bytes.extend_from_slice(block.bytes());
        Ok(())
    }

    /// The key of a row.
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
