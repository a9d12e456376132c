//! Entries of a policy: their last uses, and which of them changed since the last eviction scan.

use std::{collections::HashMap, hash::Hash};

use super::candidate::Candidate;

/// Minimum number of changed keys that are listed individually.
const MIN_LISTED_CHANGES: usize = 16;

/// Entries of a policy with their last uses.
pub(crate) struct Entries<K> {
    /// Stamp of the last use of any entry. Each use has a unique stamp.
    clock: u64,
    last_use: HashMap<K, u64>,
    /// Value of `clock` when the changed keys were last taken.
    synced_at: u64,
    /// Keys that were added or used since then. May contain keys that were removed again.
    changed: Vec<K>,
    /// True if too many keys changed to list them, so that all entries count as changed.
    all_changed: bool,
    /// Number of keys removed since all entries were listed.
    removed: usize,
}

impl<K: Hash + Eq + Clone> Entries<K> {
    pub(crate) fn new() -> Self {
        Self {
            clock: 0,
            last_use: HashMap::new(),
            synced_at: 0,
            changed: Vec::new(),
            all_changed: true,
            removed: 0,
        }
    }

    /// True if the candidate is still an entry and was not used since its forecast.
    pub(crate) fn is_current(&self, candidate: &Candidate<K>) -> bool {
        self.last_use.get(&candidate.key) == Some(&candidate.last_use)
    }

    /// Removes an entry. Returns true if it existed.
    pub(crate) fn remove(&mut self, key: &K) -> bool {
        let existed = self.last_use.remove(key).is_some();
        self.removed += usize::from(existed);
        existed
    }

    /// Adds an entry as the most recently used.
    pub(crate) fn insert(&mut self, key: K) {
        if self.touch(&key) {
            return;
        }
        let stamp = self.tick();
        self.last_use.insert(key.clone(), stamp);
        self.mark_changed(key);
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.last_use.len()
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Records a use of an entry. Returns false if there is no such entry.
    pub(crate) fn touch(&mut self, key: &K) -> bool {
        let stamp = self.clock + 1;
        let Some(last_use) = self.last_use.get_mut(key) else { return false };
        let before = std::mem::replace(last_use, stamp);
        self.clock = stamp;
        if before <= self.synced_at {
            self.mark_changed(key.clone());
        }
        true
    }

    fn mark_changed(&mut self, key: K) {
        if self.all_changed {
            return;
        }
        self.changed.push(key);
        // Listing all entries is then about as cheap.
        if self.changed.len() > self.last_use.len() / 4 + MIN_LISTED_CHANGES {
            self.changed = Vec::new();
            self.all_changed = true;
        }
    }

    /// Takes the entries that were added or used since the last call, with their last uses. Returns `None` if all
    /// entries should be listed instead: too many changed, or at least `refill_after` were removed.
    pub(crate) fn take_changed(&mut self, refill_after: usize) -> Option<Vec<(K, u64)>> {
        if self.all_changed || self.removed >= refill_after {
            return None;
        }
        self.synced_at = self.clock;
        let changed = std::mem::take(&mut self.changed).into_iter();
        let mut changed: Vec<(K, u64)> =
            changed.filter_map(|key| self.last_use.get(&key).map(|&last_use| (key, last_use))).collect();
        // A key that was removed and added again occurs twice.
        changed.sort_unstable_by_key(|&(_, last_use)| last_use);
        changed.dedup_by_key(|&mut (_, last_use)| last_use);
        Some(changed)
    }

    /// Lists all entries with their last uses, in no particular order. The stamps are unique and can be used for
    /// sorting.
    pub(crate) fn list(&mut self) -> Vec<(K, u64)> {
        self.synced_at = self.clock;
        self.changed.clear();
        self.all_changed = false;
        self.removed = 0;
        self.last_use.iter().map(|(key, last_use)| (key.clone(), *last_use)).collect()
    }
}
