//! Eviction policy: the entry that is needed last is evicted first (Belady), and among equals the least recently used.
//!
//! Evaluating the forecast of every entry at every eviction would take quadratic time. The forecasts of all entries are
//! therefore evaluated together at intervals, and the farthest entries are queued. In between, only entries that were
//! added or used are evaluated again. A queued entry is evaluated once more before it is returned, because forecasts
//! change.

mod candidate;
mod entries;
mod forecast;

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashSet},
    hash::Hash,
    sync::Arc,
};

use parking_lot::{Mutex, MutexGuard};

pub use self::forecast::{Forecast, NoForecast};
use self::{candidate::Candidate, entries::Entries};

/// Fraction of all entries that is queued: one in this number.
const QUEUED_ONE_IN: usize = 64;
/// Minimum number of entries that are queued.
const QUEUED_AT_LEAST: usize = 16;
/// Number of candidates per entry above which the queue is refilled. At least half of them are outdated then.
const MAX_CANDIDATES_PER_ENTRY: usize = 2;

/// Eviction order of the entries of a tier. Holds keys only; the tier holds the values.
pub struct Policy<K> {
    forecast: Arc<dyn Forecast<K>>,
    /// Never locked during a call of the forecast.
    entries: Mutex<Entries<K>>,
    /// Locked during an eviction scan, before `entries`.
    queue: Mutex<Queue<K>>,
}

/// Queue of the farthest entries, from which victims are taken.
struct Queue<K> {
    /// Candidates, including outdated ones of entries that were used or removed since they were queued.
    farthest: BinaryHeap<Candidate<K>>,
    /// Nearest entry at the last refill. Every entry that is farther is queued. `None` before a refill.
    nearest: Option<Candidate<K>>,
    /// Number of removals after which the queue is refilled, to detect changed forecasts.
    refill_after: usize,
}

/// Entry that should be evicted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Victim<K> {
    /// Key of the entry.
    pub key: K,
    /// Current forecast of its next use.
    pub next_use: u64,
}

/// Iteration over eviction candidates, latest next use first. At most one scan per policy runs at a time.
///
/// An entry that was returned but not removed is returned again by the next scan.
pub struct EvictionScan<'a, K: Hash + Eq + Clone> {
    policy: &'a Policy<K>,
    queue: MutexGuard<'a, Queue<K>>,
    offered: Vec<Candidate<K>>,
    /// Next use below which a queued entry is no longer farther than all entries outside of the queue.
    nearest_use: u64,
    /// Number of refills during this scan.
    refills: u32,
}

impl<K: Hash + Eq + Clone> Policy<K> {
    /// Creates a policy without entries.
    pub fn new(forecast: Arc<dyn Forecast<K>>) -> Self {
        let queue = Queue { farthest: BinaryHeap::new(), nearest: None, refill_after: 0 };
        Self { forecast, entries: Mutex::new(Entries::new()), queue: Mutex::new(queue) }
    }

    /// Forecast of the next use of `key`, which does not need to be an entry.
    pub fn next_use(&self, key: &K) -> u64 {
        self.forecast.next_use(key)
    }

    /// Adds an entry as the most recently used.
    pub fn insert(&self, key: K) {
        self.entries.lock().insert(key);
    }

    /// Records a use of an entry. Other keys are ignored.
    pub fn touch(&self, key: &K) {
        self.entries.lock().touch(key);
    }

    /// Removes an entry. Returns true if it existed.
    pub fn remove(&self, key: &K) -> bool {
        self.entries.lock().remove(key)
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.lock().len()
    }

    /// True if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Starts an eviction scan. Blocks while another scan is running.
    pub fn eviction_scan(&self) -> EvictionScan<'_, K> {
        let queue = self.queue.lock();
        let mut scan = EvictionScan { policy: self, queue, offered: Vec::new(), nearest_use: 0, refills: 0 };
        scan.queue_changed();
        scan
    }

    /// Evaluates the forecast of an entry.
    fn candidate(&self, key: K, last_use: u64) -> Candidate<K> {
        Candidate { next_use: self.forecast.next_use(&key), last_use, key }
    }
}

impl<K: Hash + Eq + Clone> EvictionScan<'_, K> {
    /// Returns the next eviction candidate; `None` if all entries were returned. The caller evicts the value and
    /// [removes](Policy::remove) the entry.
    pub fn victim(&mut self) -> Option<Victim<K>> {
        let mut just_refilled = false;
        loop {
            let Some(candidate) = self.queue.farthest.pop() else {
                self.refill();
                if self.queue.farthest.is_empty() {
                    return None;
                }
                just_refilled = true;
                continue;
            };
            if !self.policy.entries.lock().is_current(&candidate) {
                continue;
            }
            let next_use = self.policy.next_use(&candidate.key);
            // Directly after a refill the first candidate is accepted. A forecast that keeps changing would otherwise
            // cause endless refills.
            if next_use < self.nearest_use && !just_refilled {
                continue;
            }
            let key = candidate.key.clone();
            self.offered.push(candidate);
            return Some(Victim { key, next_use });
        }
    }

    /// Queues the entries that were added or used since the last scan and are farther than the nearest queued entry. If all entries should be evaluated instead, because of many changes or
    /// of many outdated candidates, empties the queue. It is then refilled before the first victim is taken.
    fn queue_changed(&mut self) {
        let mut entries = self.policy.entries.lock();
        // Outdated candidates can be behind all others. As long as no entry is removed, nothing else limits their number.
        let is_overlong =
            self.queue.farthest.len() > entries.len() * MAX_CANDIDATES_PER_ENTRY + QUEUED_AT_LEAST;
        let changed = if is_overlong { None } else { entries.take_changed(self.queue.refill_after) };
        drop(entries);
        let (Some(changed), Some(nearest)) = (changed, self.queue.nearest.clone()) else {
            self.queue.farthest.clear();
            self.queue.nearest = None;
            return;
        };
        // The passing of time changes the forecasts of all entries alike. The current forecast of the nearest entry is
        // therefore the new threshold, unless the entry itself was used or removed.
        let now = self.policy.next_use(&nearest.key);
        let unused = self.policy.entries.lock().is_current(&nearest);
        self.nearest_use = if unused { now } else { now.min(nearest.next_use) };
        // Queued entries are ordered by their forecasts at the last refill, so the others get the forecast of that time.
        // The forecasts of a stream that pauses change otherwise, so the farthest entry is a second witness.
        let passed_of = |candidate: &Candidate<K>| {
            candidate.next_use.saturating_sub(self.policy.next_use(&candidate.key))
        };
        let passed = match self.queue.farthest.peek() {
            Some(farthest) if unused => nearest.next_use.saturating_sub(now).min(passed_of(farthest)),
            _ => 0,
        };
        let nearest = Candidate { next_use: self.nearest_use, ..nearest };
        let changed = changed.into_iter().map(|(key, last_use)| self.policy.candidate(key, last_use));
        let farther = changed.filter(|candidate| *candidate > nearest);
        let at_refill = |candidate: Candidate<K>| Candidate {
            next_use: candidate.next_use.saturating_add(passed),
            ..candidate
        };
        self.queue.farthest.extend(farther.map(at_refill));
    }

    /// Evaluates the forecast of all entries and queues the farthest of those that were not returned yet.
    fn refill(&mut self) {
        let offered: HashSet<u64> = self.offered.iter().map(|candidate| candidate.last_use).collect();
        let listed = self.policy.entries.lock().list();
        // The number grows with each refill, so that a scan over entries that cannot be evicted ends soon.
        let batch = (listed.len() / QUEUED_ONE_IN).max(QUEUED_AT_LEAST);
        let count = batch << (2 * self.refills.min(8));
        self.refills += 1;
        let unoffered = listed.into_iter().filter(|(_, last_use)| !offered.contains(last_use));
        let mut candidates: Vec<Candidate<K>> =
            unoffered.map(|(key, last_use)| self.policy.candidate(key, last_use)).collect();
        if candidates.len() > count {
            candidates.select_nth_unstable_by_key(count, |candidate| Reverse(candidate.rank()));
            candidates.truncate(count);
        }
        self.queue.nearest = candidates.iter().min().cloned();
        self.queue.refill_after = batch;
        self.nearest_use = self.queue.nearest.as_ref().map_or(0, |nearest| nearest.next_use);
        self.queue.farthest = BinaryHeap::from(candidates);
    }
}

impl<K: Hash + Eq + Clone> Drop for EvictionScan<'_, K> {
    fn drop(&mut self) {
        let entries = self.policy.entries.lock();
        let offered = std::mem::take(&mut self.offered).into_iter();
        let kept = offered.filter(|candidate| entries.is_current(candidate));
        self.queue.farthest.extend(kept);
    }
}

#[cfg(test)]
mod tests;
