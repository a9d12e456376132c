//! Index of a snapshot.

use super::{key_hash::KeyHash, table::Table};
use crate::keys::{EncodedKeys, KeyType};

/// Row numbers of a snapshot by key. A lookup compares whole keys, so that hash collisions never return a wrong row.
#[derive(Debug)]
pub struct KeyIndex {
    pub(super) key: KeyType,
    pub(super) hash: KeyHash,
    pub(super) table: Table,
    /// Number of distinct keys.
    pub(super) count: u64,
}

impl KeyIndex {
    /// Names and types of the key columns.
    pub fn key(&self) -> &KeyType {
        &self.key
    }

    /// Number of distinct keys.
    pub fn len(&self) -> u64 {
        self.count
    }

    /// True if the index has no keys.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Memory of the index, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.table.memory_bytes() as u64
    }

    /// Returns up to `count` of the keys, the same ones in each call. Each key has the same chance, because they are chosen by position
    /// in a hash table.
    pub(crate) fn sample(&self, count: usize) -> EncodedKeys {
        let mut sample = EncodedKeys::empty(&self.key);
        self.table.sample(count, &mut |key| sample.push(key));
        sample
    }

    /// Returns the row number of each of `keys`; `None` for keys that are not in the snapshot.
    pub fn rows(&self, keys: &EncodedKeys) -> Vec<Option<u64>> {
        self.table.rows(keys, self.hash)
    }
}
