//! Keys of four or eight bytes. They lie in the slots, so that a lookup reads memory in one place.

use forebay_loader::prefetch_value;

use super::{BlockKeys, first_slot, is_meant, shard_of, slots_of};
use crate::keys::{EncodedKeys, hash};

/// In place of a row's number: the slot is free.
const FREE: u32 = u32::MAX;
/// Rows that can be indexed.
pub(super) const MAX_ROWS: u64 = FREE as u64;

/// A key's words, and the number of its row.
pub(super) type Slot<const WORDS: usize> = [u32; WORDS];

/// ```text
/// shard by the hash's last bits: | key, row | key, row | ...      linear probing
/// ```
#[derive(Debug)]
pub(super) struct Narrow<const WORDS: usize> {
    pub(super) shards: Vec<Box<[Slot<WORDS>]>>,
}

impl<const WORDS: usize> Narrow<WORDS> {
    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        self.shards.iter().map(|shard| size_of_val(&**shard)).sum()
    }

    /// For each of `keys`, which have this width, the number of its row, if there is one.
    pub(super) fn rows(&self, keys: &EncodedKeys) -> Vec<Option<u64>> {
        // First for all: what is read then is on its way while it is asked for others.
        let probes: Vec<Option<Probe<'_, WORDS>>> =
            (0..keys.len()).map(|row| Some(self.probe(keys.get(row)?))).collect();
        probes.into_iter().map(|probe| probe?.row()).collect()
    }

    #[inline]
    fn probe(&self, key: &[u8]) -> Probe<'_, WORDS> {
        let hash = hash_of::<WORDS>(key);
        let slots = &*self.shards[shard_of(hash, self.shards.len())];
        let at = first_slot(hash, slots.len());
        prefetch_value(&slots[at]);
        Probe { key: words(key), slots, at }
    }
}

/// The slots of one shard, and how many keys are in them.
pub(super) fn fill<const WORDS: usize>(blocks: &[BlockKeys], shard: usize) -> (Box<[Slot<WORDS>]>, u64) {
    let mut slots = vec![[FREE; WORDS]; slots_of(blocks, shard)].into_boxed_slice();
    let mut count = 0;
    for block in blocks {
        for (hash, row) in &block.buckets[shard] {
            let Some(key) = block.keys.get(*row as usize) else { continue };
            let (mut slot, row) = (words(key), block.first_row + u64::from(*row));
            slot[WORDS - 1] = row as u32;
            let at = Probe { key: slot, at: first_slot(*hash, slots.len()), slots: &slots }.end();
            let earlier = slots[at][WORDS - 1];
            count += u64::from(earlier == FREE);
            if earlier == FREE || is_meant(blocks, row, earlier.into()) {
                slots[at] = slot;
            }
        }
    }
    (slots, count)
}

/// A key's words, in a slot without a row.
#[inline]
fn words<const WORDS: usize>(key: &[u8]) -> Slot<WORDS> {
    let mut slot = [FREE; WORDS];
    for (word, bytes) in slot[..WORDS - 1].iter_mut().zip(key.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    slot
}

/// The hash of a key, of a width that is known when this is compiled: then it takes a few instructions.
#[inline]
fn hash_of<const WORDS: usize>(key: &[u8]) -> u64 {
    match (key.as_array::<4>(), key.as_array::<8>()) {
        (Some(key), _) if WORDS == 2 => hash(key),
        (_, Some(key)) if WORDS == 3 => hash(key),
        _ => hash(key),
    }
}

/// A key on its way to its row.
struct Probe<'a, const WORDS: usize> {
    key: Slot<WORDS>,
    slots: &'a [Slot<WORDS>],
    at: usize,
}

impl<const WORDS: usize> Probe<'_, WORDS> {
    /// The slot with the key, or else the free one where it would be. One of five is free.
    #[inline]
    fn end(mut self) -> usize {
        loop {
            let slot = &self.slots[self.at];
            if slot[WORDS - 1] == FREE || slot[..WORDS - 1] == self.key[..WORDS - 1] {
                return self.at;
            }
            self.at = if self.at + 1 == self.slots.len() { 0 } else { self.at + 1 };
        }
    }

    #[inline]
    fn row(self) -> Option<u64> {
        let slots = self.slots;
        let row = slots[self.end()][WORDS - 1];
        (row != FREE).then_some(row.into())
    }
}
