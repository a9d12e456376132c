//! Candidates for eviction and their order.

use std::cmp::Reverse;

/// Entry with its forecast. The greatest candidate is evicted first.
#[derive(Clone)]
pub(crate) struct Candidate<K> {
    pub(crate) next_use: u64,
    /// Unique stamp of the last use.
    pub(crate) last_use: u64,
    pub(crate) key: K,
}

impl<K> Candidate<K> {
    /// Sort key: next use, then least recent use.
    pub(crate) fn rank(&self) -> (u64, Reverse<u64>) {
        (self.next_use, Reverse(self.last_use))
    }
}

impl<K> PartialEq for Candidate<K> {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}

impl<K> Eq for Candidate<K> {}

impl<K> PartialOrd for Candidate<K> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<K> Ord for Candidate<K> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.rank().cmp(&other.rank())
    }
}
