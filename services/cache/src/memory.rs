//! The memory tier.

use std::{
    collections::BTreeMap,
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use dashmap::{DashMap, Entry};
use tokio::sync::watch;

use crate::Budget;

/// How many bytes a value takes.
pub trait Weigh {
    /// Bytes of memory that the value holds.
    fn weight(&self) -> u64;
}

/// Shared values under a byte budget. Cheap to clone; clones share the tier.
///
/// `K` is cheap to clone; a value never changes once it is in.
pub struct Memory<K, V> {
    tier: Arc<Tier<K, V>>,
}

impl<K, V> Clone for Memory<K, V> {
    fn clone(&self) -> Self {
        Self { tier: Arc::clone(&self.tier) }
    }
}

struct Tier<K, V> {
    budget: Budget,
    values: DashMap<K, Value<V>>,
    /// Loads under way. The sender is dropped when the load has ended, however it ended.
    flights: DashMap<K, watch::Receiver<()>>,
    ledger: Mutex<Ledger<K>>,
}

struct Value<V> {
    value: Arc<V>,
    weight: u64,
    used: u64,
}

struct Ledger<K> {
    /// Bytes of the values, and of those being loaded.
    resident_bytes: u64,
    clock: u64,
    /// Keys by time of last use, the oldest first.
    by_use: BTreeMap<u64, K>,
}

impl<K: Hash + Eq + Clone + Send + Sync, V: Weigh + Send + Sync> Memory<K, V> {
    /// A tier of `capacity_bytes`.
    pub fn new(capacity_bytes: u64) -> Self {
        metrics::gauge!("forebay_cache_capacity_bytes", "tier" => "memory").set(capacity_bytes as f64);
        let ledger = Ledger { resident_bytes: 0, clock: 0, by_use: BTreeMap::new() };
        Self {
            tier: Arc::new(Tier {
                budget: Budget::new(capacity_bytes),
                values: DashMap::new(),
                flights: DashMap::new(),
                ledger: Mutex::new(ledger),
            }),
        }
    }

    /// The budget from which readers reserve what they are going to hold.
    pub fn budget(&self) -> &Budget {
        &self.tier.budget
    }

    /// Bytes of the values that are in, and of those that are being loaded.
    pub fn resident_bytes(&self) -> u64 {
        self.ledger().resident_bytes
    }

    /// The weight of the value under `key`, if it is in. Does not count as a use.
    pub fn weight(&self, key: &K) -> Option<u64> {
        self.tier.values.get(key).map(|entry| entry.weight)
    }

    /// The value under `key`; `load` makes it when it is missing, once for all who ask meanwhile.
    ///
    /// `expected_bytes` is the estimate by which room is made before the load starts. When the load
    /// fails or is cancelled, the next waiter loads with its own `load`.
    ///
    /// # Errors
    /// Those of `load`.
    pub async fn get_or_load<E, F>(
        &self,
        key: &K,
        expected_bytes: u64,
        load: impl FnOnce() -> F,
    ) -> Result<Arc<V>, E>
    where
        F: Future<Output = Result<V, E>>,
    {
        loop {
            if let Some(value) = self.get(key) {
                metrics::counter!("forebay_cache_hits_total", "tier" => "memory").increment(1);
                return Ok(value);
            }
            let mut flight = match self.tier.flights.entry(key.clone()) {
                Entry::Occupied(entry) => entry.get().clone(),
                Entry::Vacant(entry) => {
                    let (ended, flight) = watch::channel(());
                    entry.insert(flight);
                    let landing = Landing { memory: self, key, charged_bytes: 0, _ended: ended };
                    if let Some(value) = self.get(key) {
                        return Ok(value);
                    }
                    return landing.load(expected_bytes, load).await;
                }
            };
            metrics::counter!("forebay_cache_single_flight_joins_total", "tier" => "memory").increment(1);
            // Nothing is ever sent: this ends, with an error, when the sender is dropped.
            drop(flight.changed().await);
        }
    }

    fn get(&self, key: &K) -> Option<Arc<V>> {
        let mut entry = self.tier.values.get_mut(key)?;
        let value = Arc::clone(&entry.value);
        let before = entry.used;
        let mut ledger = self.ledger();
        entry.used = ledger.touch(key, Some(before));
        Some(value)
    }

    /// Counts `bytes` as resident and evicts unheld values, the least recently used first, until the
    /// tier is within its budget or nothing more can go.
    fn charge(&self, bytes: u64) {
        let mut ledger = self.ledger();
        ledger.resident_bytes += bytes;
        let mut excess = ledger.resident_bytes.saturating_sub(self.tier.budget.capacity_bytes());
        if excess == 0 {
            return;
        }
        let mut evicted = Vec::new();
        let mut after = 0;
        while excess > 0 {
            let Some((&used, key)) = ledger.by_use.range(after..).next() else { break };
            let key = key.clone();
            after = used + 1;
            drop(ledger);
            let unheld = |_: &K, entry: &Value<V>| entry.used == used && Arc::strong_count(&entry.value) == 1;
            let removed = self.tier.values.remove_if(&key, unheld);
            ledger = self.ledger();
            if let Some((_, entry)) = removed {
                ledger.by_use.remove(&used);
                ledger.resident_bytes -= entry.weight;
                excess = excess.saturating_sub(entry.weight);
                evicted.push(entry);
            }
        }
        drop(ledger);
        metrics::counter!("forebay_cache_evictions_total", "tier" => "memory")
            .increment(evicted.len() as u64);
    }

    fn discharge(&self, bytes: u64) {
        self.ledger().resident_bytes -= bytes;
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger<K>> {
        self.tier.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Clone> Ledger<K> {
    fn touch(&mut self, key: &K, before: Option<u64>) -> u64 {
        if let Some(before) = before {
            self.by_use.remove(&before);
        }
        self.clock += 1;
        self.by_use.insert(self.clock, key.clone());
        self.clock
    }
}

/// The leader of a flight. However it ends, the waiters are woken and its charge is settled.
struct Landing<'a, K: Hash + Eq + Clone + Send + Sync, V: Weigh + Send + Sync> {
    memory: &'a Memory<K, V>,
    key: &'a K,
    charged_bytes: u64,
    _ended: watch::Sender<()>,
}

impl<K: Hash + Eq + Clone + Send + Sync, V: Weigh + Send + Sync> Landing<'_, K, V> {
    async fn load<E, F>(mut self, expected_bytes: u64, load: impl FnOnce() -> F) -> Result<Arc<V>, E>
    where
        F: Future<Output = Result<V, E>>,
    {
        metrics::counter!("forebay_cache_misses_total", "tier" => "memory").increment(1);
        self.charged_bytes = expected_bytes;
        self.memory.charge(expected_bytes);
        let value = Arc::new(load().await?);
        let weight = value.weight();
        self.memory.charge(weight.saturating_sub(expected_bytes));
        self.memory.discharge(expected_bytes.saturating_sub(weight));
        self.charged_bytes = 0;
        let used = self.memory.ledger().touch(self.key, None);
        let entry = Value { value: Arc::clone(&value), weight, used };
        self.memory.tier.values.insert(self.key.clone(), entry);
        metrics::gauge!("forebay_cache_resident_bytes", "tier" => "memory")
            .set(self.memory.resident_bytes() as f64);
        Ok(value)
    }
}

impl<K: Hash + Eq + Clone + Send + Sync, V: Weigh + Send + Sync> Drop for Landing<'_, K, V> {
    fn drop(&mut self) {
        self.memory.discharge(self.charged_bytes);
        self.memory.tier.flights.remove(self.key);
    }
}

#[cfg(test)]
mod tests;
