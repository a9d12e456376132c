//! Table for keys of four or eight bytes. Keys and row numbers share slots, so that a lookup reads memory in one place.

use std::io;

use forebay_cache::{Slab, Slabs};
use forebay_loader::prefetch_value;
use serde::{Deserialize, Serialize};

use super::{
    block_keys::{BlockKeys, replaces},
    key_hash::KeyHash,
    sharding::{home_of, shard_of, slots_for, step},
};
use crate::keys::EncodedKeys;

/// Row number of a free slot. All later slots of the bucket are free, too.
const FREE: u32 = u32::MAX;
/// Maximum number of rows of a snapshot.
pub(super) const MAX_ROWS: u64 = FREE as u64;
/// Bytes of a bucket: one cache line.
const BUCKET_BYTES: usize = 64;

type Bucket = [u8; BUCKET_BYTES];

/// Hash table of keys of `KEY` bytes, each in a slot of `SLOT` bytes with its row number.
///
/// ```text
/// shard by the low bits of the hash: | key, row, key, row, ... | key, row, ... | ...   buckets, linear probing
/// ```
#[derive(Debug)]
pub(super) struct NarrowTable<const KEY: usize, const SLOT: usize> {
    /// Buckets of all shards in one allocation, which the kernel can back with huge pages. With small pages, a random access
    /// costs a TLB miss, too.
    buckets: Slab,
    shards: Vec<Shard>,
}

/// Position of a shard's buckets. Part of the file format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Shard {
    first: usize,
    /// Number of home buckets. Buckets after them hold the overflow of the last ones.
    homes: usize,
}

/// Buckets of one shard. The last bucket is not full, which ends every probe.
pub(super) struct FilledShard {
    homes: usize,
    buckets: Vec<Bucket>,
}

#[cfg(test)]
impl FilledShard {
    /// Number of buckets between the home of each key and the bucket that holds it, in total.
    pub(super) fn probes<const KEY: usize, const SLOT: usize>(&self, hash: KeyHash) -> u64 {
        let mut probes = 0;
        for (at, bucket) in self.buckets.iter().enumerate() {
            let slots = bucket.as_chunks::<SLOT>().0.iter().map(parts::<KEY, SLOT>);
            let keys = slots.filter(|(_, row)| *row != FREE).map(|(key, _)| key);
            probes += keys.map(|key| (at - home_of(hash.hash(key), self.homes)) as u64).sum::<u64>();
        }
        probes
    }
}

/// Returns the bytes of a table of `keys` keys of `key_bytes` bytes.
pub(super) fn table_bytes(keys: u64, key_bytes: usize) -> u64 {
    let in_bucket = (BUCKET_BYTES / (key_bytes + size_of::<u32>())) as u64;
    slots_for(keys).div_ceil(in_bucket) * BUCKET_BYTES as u64
}

impl<const KEY: usize, const SLOT: usize> NarrowTable<KEY, SLOT> {
    /// Copies the shards into one table.
    ///
    /// # Errors
    /// If the memory cannot be allocated.
    pub(super) fn merge(filled: &[FilledShard]) -> io::Result<Self> {
        let mut buckets = memory(filled.iter().map(|shard| shard.buckets.len()).sum())?;
        let (mut shards, mut first, mut rest) = (Vec::new(), 0, &mut *buckets);
        for shard in filled {
            let (target, remaining) = rest.split_at_mut(shard.buckets.len() * BUCKET_BYTES);
            target.copy_from_slice(shard.buckets.as_flattened());
            shards.push(Shard { first, homes: shard.homes });
            (first, rest) = (first + shard.buckets.len(), remaining);
        }
        Ok(Self { buckets, shards })
    }

    /// Reads a saved table; `None` if `bytes` or `shards` are invalid.
    pub(super) fn read(shards: Vec<Shard>, bytes: &[u8]) -> Option<Self> {
        let count = bytes.len() / BUCKET_BYTES;
        let is_valid = |shard: &Shard| {
            shard.homes > 0 && shard.first.checked_add(shard.homes).is_some_and(|end| end <= count)
        };
        if shards.is_empty() || !shards.iter().all(is_valid) {
            return None;
        }
        let mut buckets = memory(count).ok()?;
        buckets.copy_from_slice(bytes.get(..count * BUCKET_BYTES)?);
        Some(Self { buckets, shards })
    }

    pub(super) fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// Returns the buckets in their file format.
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.buckets
    }

    /// Memory of the table, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.buckets.capacity()
    }

    /// Returns the row number of each of `keys`, which are `KEY` bytes wide; `None` for keys that are not in the table. `hash` is the
    /// function with which the table was filled.
    pub(super) fn rows(&self, keys: &EncodedKeys, hash: KeyHash) -> Vec<Option<u64>> {
        let (buckets, _) = self.buckets.as_chunks();
        let (values, _) = keys.bytes().as_chunks::<KEY>();
        // Prefetching all home buckets first overlaps their memory accesses.
        let homes: Vec<usize> =
            values.iter().map(|key| self.prefetch_home(buckets, hash.hash(key))).collect();
        let row =
            |(at, (key, home))| keys.is_present(at).then(|| row::<KEY, SLOT>(buckets, key, home)).flatten();
        values.iter().zip(homes).enumerate().map(row).collect()
    }

    /// Passes up to `count` keys at equal distances in the table to `take`.
    pub(super) fn sample(&self, count: usize, take: &mut dyn FnMut(&[u8])) {
        let (buckets, _) = self.buckets.as_chunks::<BUCKET_BYTES>();
        let keys = || {
            let slots = buckets.iter().flat_map(|bucket| bucket.as_chunks::<SLOT>().0);
            slots.map(parts::<KEY, SLOT>).filter(|(_, row)| *row != FREE).map(|(key, _)| key)
        };
        keys().step_by(step(keys().count(), count)).for_each(take);
    }

    /// Prefetches and returns the home bucket of a hash.
    #[inline]
    fn prefetch_home(&self, buckets: &[Bucket], hash: u64) -> usize {
        let Shard { first, homes } = self.shards[shard_of(hash, self.shards.len())];
        let home = first + home_of(hash, homes);
        prefetch_value(&buckets[home]);
        home
    }
}

/// Allocates memory for `buckets` buckets, without a pool: there is one table per snapshot.
fn memory(buckets: usize) -> io::Result<Slab> {
    Slabs::new(0).take(buckets * BUCKET_BYTES)
}

#[inline]
fn row<const KEY: usize, const SLOT: usize>(buckets: &[Bucket], key: &[u8; KEY], home: usize) -> Option<u64> {
    for bucket in &buckets[home..] {
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

/// Splits a slot into its key and row number.
#[inline]
fn parts<const KEY: usize, const SLOT: usize>(slot: &[u8; SLOT]) -> (&[u8], u32) {
    let (key, row) = slot.split_at(KEY);
    (key, row.as_array().map_or(FREE, |row| u32::from_le_bytes(*row)))
}

/// Builds the buckets of one shard. Returns them with the number of keys.
pub(super) fn fill<const KEY: usize, const SLOT: usize>(
    blocks: &[BlockKeys],
    shard: usize,
) -> (FilledShard, u64) {
    let rows: usize = blocks.iter().map(|block| block.shards[shard].len()).sum();
    let homes = (table_bytes(rows as u64, KEY) as usize / BUCKET_BYTES).max(1);
    let mut buckets = vec![[u8::MAX; BUCKET_BYTES]; homes];
    let mut count = 0;
    for block in blocks {
        for (hash, row) in &block.shards[shard] {
            let Some(key) = block.keys.get(*row as usize) else { continue };
            let row = block.first_row + u64::from(*row);
            let slot = slot_of::<KEY, SLOT>(&mut buckets, key, home_of(*hash, homes));
            let (_, earlier) = parts::<KEY, SLOT>(slot);
            count += u64::from(earlier == FREE);
            if earlier == FREE || replaces(blocks, row, earlier.into()) {
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
    (FilledShard { homes, buckets }, count)
}

/// Finds the slot of a key, or a free slot for it. Appends a bucket if all buckets from its home on are full.
fn slot_of<'a, const KEY: usize, const SLOT: usize>(
    buckets: &'a mut Vec<Bucket>,
    key: &[u8],
    home: usize,
) -> &'a mut [u8; SLOT] {
    let matches = |slot: &[u8; SLOT]| {
        let (found, row) = parts::<KEY, SLOT>(slot);
        row == FREE || found == key
    };
    let mut bucket = home;
    let slot = loop {
        if bucket == buckets.len() {
            buckets.push([u8::MAX; BUCKET_BYTES]);
        }
        if let Some(slot) = buckets[bucket].as_chunks::<SLOT>().0.iter().position(matches) {
            break slot;
        }
        bucket += 1;
    };
    &mut buckets[bucket].as_chunks_mut::<SLOT>().0[slot]
}
