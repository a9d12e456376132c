//! Which entries go: what is needed last first (Belady), and among equals the least recently used.
//!
//! Asking for the future of every entry at every eviction would be quadratic. So the entries are asked
//! all together once in a while, the farthest of them wait in a queue, and only what was added or used
//! since is asked again. An entry is asked once more when its turn comes, since forecasts move.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, HashSet},
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The part of all entries that is queued at a time: one in so many.
const QUEUED_ONE_IN: usize = 64;
/// Entries that are queued at least.
const QUEUED_AT_LEAST: usize = 16;

/// When the value under a key is needed next.
///
/// Asked without any lock of the tier's values, often, and by whoever makes room: it should take well
/// under a microsecond.
pub trait Forecast<K>: Send + Sync {
    /// Predicted time until the next use, in any unit that makes keys comparable; `u64::MAX`: no use is
    /// known.
    fn next_use(&self, key: &K) -> u64;
}

/// Knows no use of anything, which makes a tier one that drops the least recently used.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoForecast;

impl<K> Forecast<K> for NoForecast {
    fn next_use(&self, _: &K) -> u64 {
        u64::MAX
    }
}

/// The order in which the entries of a tier go. Holds keys only; the values are the tier's.
pub struct Policy<K> {
    forecast: Arc<dyn Forecast<K>>,
    /// Never locked while the forecast is asked.
    entries: Mutex<Entries<K>>,
    /// Locked by whoever makes room, before the entries.
    queue: Mutex<Queue<K>>,
}

struct Entries<K> {
    /// Stamps are unique: one a use.
    clock: u64,
    last_use: HashMap<K, u64>,
    /// The clock when the queue last took note of what was used.
    noted_at: u64,
    /// Keys added or used since. Those that were removed again may be among them.
    unnoted: Vec<K>,
    /// There were too many to list.
    all_unnoted: bool,
    /// Keys removed since the queue was filled.
    removed: usize,
}

struct Queue<K> {
    farthest: BinaryHeap<Candidate<K>>,
    /// The nearest entry of the last filling. Everything that is farther is queued.
    nearest: Option<Candidate<K>>,
    /// Removals after which it is filled anew, to notice forecasts that changed by themselves.
    refill_after: usize,
}

/// An entry with what was forecast of it. Ordered by who goes first, which is the greatest.
#[derive(Clone)]
struct Candidate<K> {
    next_use: u64,
    last_use: u64,
    key: K,
}

/// An entry that should go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Victim<K> {
    /// Its key.
    pub key: K,
    /// What the forecast says of it now.
    pub next_use: u64,
}

/// A search for entries that can go, farthest first. One at a time a policy.
///
/// An entry that was offered and is still in the policy when the hunt ends is offered again by the next.
pub struct Hunt<'a, K: Hash + Eq + Clone> {
    policy: &'a Policy<K>,
    queue: MutexGuard<'a, Queue<K>>,
    offered: Vec<Candidate<K>>,
    /// Forecast under which a queued entry came nearer than entries that are not queued.
    nearest_use: u64,
    filled: u32,
}

impl<K: Hash + Eq + Clone> Policy<K> {
    /// A policy without entries.
    pub fn new(forecast: Arc<dyn Forecast<K>>) -> Self {
        Self { forecast, entries: Mutex::new(Entries::new()), queue: Mutex::new(Queue::new()) }
    }

    /// What the forecast says of `key`, whether it is an entry or not.
    pub fn next_use(&self, key: &K) -> u64 {
        self.forecast.next_use(key)
    }

    /// Adds an entry, as used just now.
    pub fn insert(&self, key: K) {
        let mut entries = self.entries();
        if entries.used(&key) {
            return;
        }
        let stamp = entries.tick();
        entries.last_use.insert(key.clone(), stamp);
        entries.note(key);
    }

    /// Notes a use of an entry. Other keys are ignored.
    pub fn touch(&self, key: &K) {
        self.entries().used(key);
    }

    /// Removes an entry; says whether it was one.
    pub fn remove(&self, key: &K) -> bool {
        let mut entries = self.entries();
        let known = entries.last_use.remove(key).is_some();
        entries.removed += usize::from(known);
        known
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries().last_use.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Begins to search for entries that can go. Waits while another hunt lasts.
    pub fn hunt(&self) -> Hunt<'_, K> {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let mut hunt = Hunt { policy: self, queue, offered: Vec::new(), nearest_use: 0, filled: 0 };
        hunt.note_uses();
        hunt
    }

    fn entries(&self) -> MutexGuard<'_, Entries<K>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Hash + Eq + Clone> Hunt<'_, K> {
    /// The next entry that should go; none when all were offered. Whoever lets it go
    /// [removes](Policy::remove) it.
    pub fn victim(&mut self) -> Option<Victim<K>> {
        let mut just_asked = false;
        loop {
            let Some(candidate) = self.queue.farthest.pop() else {
                self.fill();
                if self.queue.farthest.is_empty() {
                    return None;
                }
                just_asked = true;
                continue;
            };
            if !self.policy.entries().is_at(&candidate) {
                continue;
            }
            let next_use = self.policy.next_use(&candidate.key);
            // Just after all were asked the first is taken, lest a forecast that never settles be asked forever.
            if next_use < self.nearest_use && !just_asked {
                continue;
            }
            let key = candidate.key.clone();
            self.offered.push(candidate);
            return Some(Victim { key, next_use });
        }
    }

    /// Queues what was added or used since the last hunt and is farther than the nearest that is queued.
    fn note_uses(&mut self) {
        let unnoted = self.policy.entries().take_unnoted(self.queue.refill_after);
        let (Some(unnoted), Some(nearest)) = (unnoted, self.queue.nearest.clone()) else {
            self.queue.farthest.clear();
            return;
        };
        // Time went on and speeds changed for all alike, unless it was used itself, or is gone.
        let now = self.policy.next_use(&nearest.key);
        let unused = self.policy.entries().is_at(&nearest);
        self.nearest_use = if unused { now } else { now.min(nearest.next_use) };
        let nearest = Candidate { next_use: self.nearest_use, ..nearest };
        let unnoted = unnoted.into_iter().map(|(key, last_use)| self.policy.ask(key, last_use));
        self.queue.farthest.extend(unnoted.filter(|candidate| *candidate > nearest));
    }

    /// Asks for all entries and queues the farthest of those that were not offered yet.
    fn fill(&mut self) {
        let offered: HashSet<u64> = self.offered.iter().map(|candidate| candidate.last_use).collect();
        let listed = self.policy.entries().list();
        // More every time, so that a hunt among entries that can't go ends soon.
        let batch = (listed.len() / QUEUED_ONE_IN).max(QUEUED_AT_LEAST);
        let wanted = batch << (2 * self.filled.min(8));
        self.filled += 1;
        let unoffered = listed.into_iter().filter(|(_, last_use)| !offered.contains(last_use));
        let mut candidates: Vec<Candidate<K>> =
            unoffered.map(|(key, last_use)| self.policy.ask(key, last_use)).collect();
        if candidates.len() > wanted {
            candidates.select_nth_unstable_by_key(wanted, |candidate| Reverse(candidate.rank()));
            candidates.truncate(wanted);
        }
        self.queue.nearest = candidates.iter().min().cloned();
        self.queue.refill_after = batch;
        self.nearest_use = self.queue.nearest.as_ref().map_or(0, |nearest| nearest.next_use);
        self.queue.farthest = BinaryHeap::from(candidates);
    }
}

impl<K: Hash + Eq + Clone> Drop for Hunt<'_, K> {
    fn drop(&mut self) {
        let entries = self.policy.entries();
        let offered = std::mem::take(&mut self.offered).into_iter();
        let kept = offered.filter(|candidate| entries.is_at(candidate));
        self.queue.farthest.extend(kept);
    }
}

impl<K> Policy<K> {
    fn ask(&self, key: K, last_use: u64) -> Candidate<K> {
        Candidate { next_use: self.forecast.next_use(&key), last_use, key }
    }
}

impl<K: Hash + Eq + Clone> Entries<K> {
    fn new() -> Self {
        Self {
            clock: 0,
            last_use: HashMap::new(),
            noted_at: 0,
            unnoted: Vec::new(),
            all_unnoted: true,
            removed: 0,
        }
    }

    /// Whether this is still an entry, unused since.
    fn is_at(&self, candidate: &Candidate<K>) -> bool {
        self.last_use.get(&candidate.key) == Some(&candidate.last_use)
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn used(&mut self, key: &K) -> bool {
        let stamp = self.clock + 1;
        let Some(last_use) = self.last_use.get_mut(key) else { return false };
        let before = std::mem::replace(last_use, stamp);
        self.clock = stamp;
        if before <= self.noted_at {
            self.note(key.clone());
        }
        true
    }

    fn note(&mut self, key: K) {
        if self.all_unnoted {
            return;
        }
        self.unnoted.push(key);
        // Asking for all is then about as cheap.
        if self.unnoted.len() > self.last_use.len() / 4 + QUEUED_AT_LEAST {
            self.unnoted = Vec::new();
            self.all_unnoted = true;
        }
    }

    /// What was added or used since the last time; none when it is time to ask for all.
    fn take_unnoted(&mut self, refill_after: usize) -> Option<Vec<(K, u64)>> {
        if self.all_unnoted || self.removed >= refill_after {
            return None;
        }
        self.noted_at = self.clock;
        let unnoted = std::mem::take(&mut self.unnoted).into_iter();
        let mut unnoted: Vec<(K, u64)> =
            unnoted.filter_map(|key| self.last_use.get(&key).map(|&last_use| (key, last_use))).collect();
        // A key that was removed and added again is listed twice.
        unnoted.sort_unstable_by_key(|&(_, last_use)| last_use);
        unnoted.dedup_by_key(|&mut (_, last_use)| last_use);
        Some(unnoted)
    }

    fn list(&mut self) -> Vec<(K, u64)> {
        self.noted_at = self.clock;
        self.unnoted.clear();
        self.all_unnoted = false;
        self.removed = 0;
        // In no order; whoever takes this orders it by unique stamps.
        self.last_use.iter().map(|(key, last_use)| (key.clone(), *last_use)).collect()
    }
}

impl<K> Queue<K> {
    fn new() -> Self {
        Self { farthest: BinaryHeap::new(), nearest: None, refill_after: 0 }
    }
}

impl<K> Candidate<K> {
    fn rank(&self) -> (u64, Reverse<u64>) {
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

#[cfg(test)]
mod tests;
