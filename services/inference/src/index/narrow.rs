//! Keys of four or eight bytes. They lie beside the numbers of their rows, so that a lookup reads memory in one place.

use std::io;

use forebay_cache::{Slab, Slabs};
use forebay_loader::prefetch_value;
use serde::{Deserialize, Serialize};

use super::{BlockKeys, first_of, is_meant, room_for, shard_of};
use crate::keys::{EncodedKeys, hash};

/// In place of a row's number: the slot is free, and so are those behind it in its bucket.
const FREE: u32 = u32::MAX;
/// Rows that can be indexed.
pub(super) const MAX_ROWS: u64 = FREE as u64;
/// What memory moves at a time.
const BUCKET_BYTES: usize = 64;

type Bucket = [u8; BUCKET_BYTES];

/// Keys of `KEY` bytes, each in a slot of `SLOT` bytes with the number of its row.
///
/// ```text
/// shard by the hash's last bits: | key, row, key, row, ... | key, row, ... | ...      a bucket each, linear probing
/// ```
#[derive(Debug)]
pub(super) struct Narrow<const KEY: usize, const SLOT: usize> {
    /// Those of all shards in one piece, for which the kernel has huge pages: with small ones a random place costs another
    /// random place, that of its address.
    buckets: Slab,
    shards: Vec<Shard>,
}

/// Where the buckets of a shard are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Shard {
    first: usize,
    /// In how many buckets keys are looked for first. Behind them lies what did not fit into the last of them.
    homes: usize,
}

/// The buckets of one shard, the last of which is not full.
pub(super) struct Filled {
    homes: usize,
    buckets: Vec<Bucket>,
}

/// Bytes of a table of so many keys of so many bytes.
pub(super) fn table_bytes(keys: u64, key_bytes: usize) -> u64 {
    let in_bucket = (BUCKET_BYTES / (key_bytes + size_of::<u32>())) as u64;
    room_for(keys).div_ceil(in_bucket) * BUCKET_BYTES as u64
}

impl<const KEY: usize, const SLOT: usize> Narrow<KEY, SLOT> {
    /// Brings the shards together.
    ///
    /// # Errors
    /// When the system has no memory left.
    pub(super) fn of(filled: &[Filled]) -> io::Result<Self> {
        let mut buckets = memory(filled.iter().map(|shard| shard.buckets.len()).sum())?;
        let (mut shards, mut first, mut rest) = (Vec::new(), 0, &mut *buckets);
        for shard in filled {
            let (here, behind) = rest.split_at_mut(shard.buckets.len() * BUCKET_BYTES);
            here.copy_from_slice(shard.buckets.as_flattened());
            shards.push(Shard { first, homes: shard.homes });
            (first, rest) = (first + shard.buckets.len(), behind);
        }
        Ok(Self { buckets, shards })
    }

    /// A table that was written before; `None` for one that was not.
    pub(super) fn read(shards: Vec<Shard>, bytes: &[u8]) -> Option<Self> {
        let count = bytes.len() / BUCKET_BYTES;
        let is_there = |shard: &Shard| {
            shard.homes > 0 && shard.first.checked_add(shard.homes).is_some_and(|end| end <= count)
        };
        if shards.is_empty() || !shards.iter().all(is_there) {
            return None;
        }
        let mut buckets = memory(count).ok()?;
        buckets.copy_from_slice(bytes.get(..count * BUCKET_BYTES)?);
        Some(Self { buckets, shards })
    }

    pub(super) fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// The buckets as they are written.
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.buckets
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        self.buckets.capacity()
    }

    /// For each of `keys`, which have this width, the number of its row, if there is one.
    pub(super) fn rows(&self, keys: &EncodedKeys) -> Vec<Option<u64>> {
        let (buckets, _) = self.buckets.as_chunks();
        let (words, _) = keys.bytes().as_chunks::<KEY>();
        // First for all: what is read then is on its way while it is asked for others.
        let firsts: Vec<usize> = words.iter().map(|key| self.first(buckets, hash(key))).collect();
        let row =
            |(at, (key, first))| keys.is_present(at).then(|| row::<KEY, SLOT>(buckets, key, first)).flatten();
        words.iter().zip(firsts).enumerate().map(row).collect()
    }

    /// Where a key with this hash is looked for first.
    #[inline]
    fn first(&self, buckets: &[Bucket], hash: u64) -> usize {
        let Shard { first, homes } = self.shards[shard_of(hash, self.shards.len())];
        let first = first + first_of(hash, homes);
        prefetch_value(&buckets[first]);
        first
    }
}

/// Memory of so many buckets. None is kept for later: there is one table a snapshot.
fn memory(buckets: usize) -> io::Result<Slab> {
    Slabs::new(0).take(buckets * BUCKET_BYTES)
}

#[inline]
fn row<const KEY: usize, const SLOT: usize>(
    buckets: &[Bucket],
    key: &[u8; KEY],
    first: usize,
) -> Option<u64> {
    for bucket in &buckets[first..] {
        for slot in bucket.as_chunks::<SLOT>().0 {
            let (found, row) = parts::<KEY, SLOT>(slot);
            if row == FREE {
                return None;
            }
            if found == key {
                return Some(row.into());
            }
        }
    }
    None
}

/// The key in a slot, and the number of its row.
#[inline]
fn parts<const KEY: usize, const SLOT: usize>(slot: &[u8; SLOT]) -> (&[u8], u32) {
    let (key, row) = slot.split_at(KEY);
    (key, row.as_array().map_or(FREE, |row| u32::from_le_bytes(*row)))
}

/// The buckets of one shard, and how many keys are in them.
pub(super) fn fill<const KEY: usize, const SLOT: usize>(blocks: &[BlockKeys], shard: usize) -> (Filled, u64) {
    let rows: usize = blocks.iter().map(|block| block.of_shards[shard].len()).sum();
    let homes = (table_bytes(rows as u64, KEY) as usize / BUCKET_BYTES).max(1);
    let mut buckets = vec![[u8::MAX; BUCKET_BYTES]; homes];
    let mut count = 0;
    for block in blocks {
        for (hash, row) in &block.of_shards[shard] {
            let Some(key) = block.keys.get(*row as usize) else { continue };
            let row = block.first_row + u64::from(*row);
            let slot = slot_of::<KEY, SLOT>(&mut buckets, key, first_of(*hash, homes));
            let (_, earlier) = parts::<KEY, SLOT>(slot);
            count += u64::from(earlier == FREE);
            if earlier == FREE || is_meant(blocks, row, earlier.into()) {
                slot[..KEY].copy_from_slice(key);
                slot[KEY..].copy_from_slice(&(row as u32).to_le_bytes());
            }
        }
    }
    let is_full = |bucket: &Bucket| {
        let last = bucket.as_chunks::<SLOT>().0.last();
        last.is_some_and(|slot| parts::<KEY, SLOT>(slot).1 != FREE)
    };
    if buckets.last().is_some_and(is_full) {
        buckets.push([u8::MAX; BUCKET_BYTES]);
    }
    (Filled { homes, buckets }, count)
}

/// The slot with the key, or else the free one where it would be. Behind full buckets there is another one.
fn slot_of<'a, const KEY: usize, const SLOT: usize>(
    buckets: &'a mut Vec<Bucket>,
    key: &[u8],
    first: usize,
) -> &'a mut [u8; SLOT] {
    let is_it = |slot: &[u8; SLOT]| {
        let (found, row) = parts::<KEY, SLOT>(slot);
        row == FREE || found == key
    };
    let mut bucket = first;
    let slot = loop {
        if bucket == buckets.len() {
            buckets.push([u8::MAX; BUCKET_BYTES]);
        }
        if let Some(slot) = buckets[bucket].as_chunks::<SLOT>().0.iter().position(is_it) {
            break slot;
        }
        bucket += 1;
    };
    &mut buckets[bucket].as_chunks_mut::<SLOT>().0[slot]
}
