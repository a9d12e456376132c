//! The memory tier.

use std::{
    hash::Hash,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use dashmap::{DashMap, Entry};
use tokio::sync::watch;

use crate::{Budget, Forecast, Policy};

/// How many bytes a value takes, and what it costs to have none.
pub trait Weigh {
    /// Bytes of memory that the value holds.
    fn weight(&self) -> u64;

    /// How long it took to make: what whoever finds it need not do. Nothing where that is not known.
    fn made_in(&self) -> Duration {
        Duration::ZERO
    }
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
    /// Its entries are the keys of `values`, and change under the same lock.
    policy: Policy<K>,
    /// Bytes of the values, and of those being loaded.
    resident_bytes: AtomicU64,
}

struct Value<V> {
    value: Arc<V>,
    weight: u64,
}

impl<K: Hash + Eq + Clone + Send + Sync, V: Weigh + Send + Sync> Memory<K, V> {
    /// A tier of `capacity_bytes`, from which what `forecast` says is needed last goes first.
    pub fn new(capacity_bytes: u64, forecast: Arc<dyn Forecast<K>>) -> Self {
        metrics::gauge!("forebay_cache_capacity_bytes", "tier" => "memory").set(capacity_bytes as f64);
        Self {
            tier: Arc::new(Tier {
                budget: Budget::new(capacity_bytes),
                values: DashMap::new(),
                flights: DashMap::new(),
                policy: Policy::new(forecast),
                resident_bytes: AtomicU64::new(0),
            }),
        }
    }

    /// The budget from which readers reserve what they are going to hold.
    pub fn budget(&self) -> &Budget {
        &self.tier.budget
    }

    /// Bytes of the values that are in, and of those that are being loaded.
    pub fn resident_bytes(&self) -> u64 {
        self.tier.resident_bytes.load(Ordering::Relaxed)
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

    /// Drops the values under the keys that `predicate` picks, held ones too: whoever holds one keeps it,
    /// but its bytes no longer count as resident. Returns the bytes dropped. What is being loaded meanwhile
    /// comes in afterwards. `predicate` must not use the tier.
    pub fn remove_where(&self, predicate: impl Fn(&K) -> bool) -> u64 {
        let keys = self.tier.values.iter().map(|entry| entry.key().clone());
        let picked: Vec<K> = keys.filter(|key| predicate(key)).collect();
        let removed: Vec<Value<V>> = picked.iter().filter_map(|key| self.remove_if(key, |_| true)).collect();
        self.set_gauge();
        removed.iter().map(|removed| removed.weight).sum()
    }

    fn get(&self, key: &K) -> Option<Arc<V>> {
        let entry = self.tier.values.get(key)?;
        let (value, weight) = (Arc::clone(&entry.value), entry.weight);
        drop(entry);
        self.tier.policy.touch(key);
        metrics::counter!("forebay_cache_hits_total", "tier" => "memory").increment(1);
        metrics::counter!("forebay_cache_hit_bytes_total", "tier" => "memory").increment(weight);
        metrics::gauge!("forebay_cache_saved_seconds_total", "tier" => "memory")
            .increment(value.made_in().as_secs_f64());
        Some(value)
    }

    fn insert(&self, key: &K, value: Value<V>) {
        let entry = self.tier.values.entry(key.clone());
        self.tier.policy.insert(key.clone());
        entry.insert(value);
    }

    /// Takes a value out of the tier and settles its bytes.
    fn remove_if(&self, key: &K, condition: impl FnOnce(&Value<V>) -> bool) -> Option<Value<V>> {
        let removable = |key: &K, value: &Value<V>| condition(value) && self.tier.policy.remove(key);
        let (_, removed) = self.tier.values.remove_if(key, removable)?;
        self.discharge(removed.weight);
        Some(removed)
    }

    /// Counts `bytes` as resident and evicts unheld values, those that are needed last first, until the
    /// tier is within its budget or nothing more can go.
    fn charge(&self, bytes: u64) {
        self.tier.resident_bytes.fetch_add(bytes, Ordering::Relaxed);
        let capacity_bytes = self.tier.budget.capacity_bytes();
        if self.resident_bytes() <= capacity_bytes {
            return;
        }
        let mut evicted = Vec::new();
        let mut hunt = self.tier.policy.hunt();
        while self.resident_bytes() > capacity_bytes {
            let Some(victim) = hunt.victim() else { break };
            evicted.extend(self.remove_if(&victim.key, |value| Arc::strong_count(&value.value) == 1));
        }
        drop(hunt);
        metrics::counter!("forebay_cache_evictions_total", "tier" => "memory")
            .increment(evicted.len() as u64);
    }

    fn discharge(&self, bytes: u64) {
        self.tier.resident_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn set_gauge(&self) {
        metrics::gauge!("forebay_cache_resident_bytes", "tier" => "memory").set(self.resident_bytes() as f64);
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
        self.memory.insert(self.key, Value { value: Arc::clone(&value), weight });
        self.memory.set_gauge();
        metrics::counter!("forebay_cache_miss_bytes_total", "tier" => "memory").increment(weight);
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
