//! Hash function of an index.

use std::hash::{BuildHasher, Hasher, RandomState};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Hash function of one index: XXH3-64 with a random seed, which the file of the index holds.
///
/// The writers of a dataset choose its keys. Without a seed they could compute keys that all have the same home in the table, so that
/// a build would compare every key with every other one. The seed leaves the server only in the file, which they can't read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeyHash {
    seed: u64,
}

impl KeyHash {
    /// Returns a hash function with a random seed.
    pub(super) fn random() -> Self {
        // The standard library seeds it from the random numbers of the operating system.
        Self { seed: RandomState::new().build_hasher().finish() }
    }

    /// Returns the hash function without a seed, whose collisions are easy to compute.
    #[cfg(test)]
    pub(super) fn unkeyed() -> Self {
        Self { seed: 0 }
    }

    /// Returns the hash of an encoded key.
    #[inline]
    pub(super) fn hash(self, key: &[u8]) -> u64 {
        xxh3_64_with_seed(key, self.seed)
    }
}

#[cfg(test)]
mod tests;
