//! Memory tier: shared values under a byte budget.

use std::{
    hash::Hash,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use dashmap::{DashMap, Entry};
use tokio_util::sync::CancellationToken;

use crate::{Budget, Forecast, Policy};

/// Size and load time of a cached value.
pub trait Weigh {
    /// Size of the value in bytes.
    fn weight(&self) -> u64;

    /// Time that loading the value took, which a cache hit saves. Default: zero (unknown).
    fn load_time(&self) -> Duration {
        Duration::ZERO
    }
}

/// Memory tier: shared, immutable values under a byte budget. Cheap to clone; clones share the tier.
///
/// Keys should be cheap to clone.
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
    /// Loads in progress. The token is cancelled when a load ends, fails or is dropped. Waiting callers are then woken in
    /// the order in which they came.
    loads: DashMap<K, CancellationToken>,
    /// Eviction policy over the keys of `values`. Changed under the same lock.
    policy: Policy<K>,
    /// Size in bytes of all values, including those that are being loaded.
    resident_bytes: AtomicU64,
}

struct Value<V> {
    value: Arc<V>,
    weight: u64,
}

impl<K: Hash + Eq + Clone + Send + Sync, V: Weigh + Send + Sync> Memory<K, V> {
    /// Creates a tier of `capacity_bytes`, which evicts the value that is needed last according to `forecast`.
    pub fn new(capacity_bytes: u64, forecast: Arc<dyn Forecast<K>>) -> Self {
        metrics::gauge!("forebay_cache_capacity_bytes", "tier" => "memory").set(capacity_bytes as f64);
        Self {
            tier: Arc::new(Tier {
                budget: Budget::new(capacity_bytes),
                values: DashMap::new(),
                loads: DashMap::new(),
                policy: Policy::new(forecast),
                resident_bytes: AtomicU64::new(0),
            }),
        }
    }

    /// Budget from which readers reserve bytes for the values that they hold.
    pub fn budget(&self) -> &Budget {
        &self.tier.budget
    }

    /// Size in bytes of all values, including those that are being loaded.
    pub fn resident_bytes(&self) -> u64 {
        self.tier.resident_bytes.load(Ordering::Relaxed)
    }

    /// Weight of the value of `key`; `None` if it is not cached. Does not count as a use.
    pub fn weight(&self, key: &K) -> Option<u64> {
        self.tier.values.get(key).map(|entry| entry.weight)
    }

    /// Returns the value of `key`, loading it with `load` if it is not cached.
    ///
    /// Concurrent calls for one key share one load. If that load fails or is cancelled, the next waiting caller loads
    /// with its own `load`. `expected_bytes` is the estimated weight, for which values are evicted before the load
    /// starts.
    ///
    /// # Errors
    /// Errors of `load`.
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
            let running = match self.tier.loads.entry(key.clone()) {
                Entry::Occupied(entry) => entry.get().clone(),
                Entry::Vacant(entry) => {
                    let ended = CancellationToken::new();
                    entry.insert(ended.clone());
                    let load_guard = LoadGuard { memory: self, key, charged_bytes: 0, ended };
                    if let Some(value) = self.get(key) {
                        return Ok(value);
                    }
                    return load_guard.load(expected_bytes, load).await;
                }
            };
            metrics::counter!("forebay_cache_coalesced_loads_total", "tier" => "memory").increment(1);
            running.cancelled().await;
        }
    }

    /// Removes the values whose keys `predicate` selects. Returns their size in bytes.
    ///
    /// Values in use stay alive for their users, but no longer count as resident. Values that are being loaded are
    /// added afterwards. `predicate` must not use the tier.
    pub fn remove_where(&self, predicate: impl Fn(&K) -> bool) -> u64 {
        let keys = self.tier.values.iter().map(|entry| entry.key().clone());
        let selected: Vec<K> = keys.filter(|key| predicate(key)).collect();
        let removed: Vec<Value<V>> =
            selected.iter().filter_map(|key| self.remove_if(key, |_| true)).collect();
        removed.iter().map(|removed| removed.weight).sum()
    }

    /// Returns the value of `key` if it is cached, which counts as a use.
    pub fn get(&self, key: &K) -> Option<Arc<V>> {
        let entry = self.tier.values.get(key)?;
        let (value, weight) = (Arc::clone(&entry.value), entry.weight);
        drop(entry);
        self.tier.policy.touch(key);
        metrics::counter!("forebay_cache_hits_total", "tier" => "memory").increment(1);
        metrics::counter!("forebay_cache_hit_bytes_total", "tier" => "memory").increment(weight);
        metrics::gauge!("forebay_cache_saved_seconds_total", "tier" => "memory")
            .increment(value.load_time().as_secs_f64());
        Some(value)
    }

    /// Removes a value that satisfies `condition` and discharges its weight.
    fn remove_if(&self, key: &K, condition: impl FnOnce(&Value<V>) -> bool) -> Option<Value<V>> {
        let removable = |key: &K, value: &Value<V>| condition(value) && self.tier.policy.remove(key);
        let (_, removed) = self.tier.values.remove_if(key, removable)?;
        self.discharge(removed.weight);
        Some(removed)
    }

    /// Counts `bytes` as resident. Then evicts values that are not in use, in the order of the policy, until the tier
    /// is within its budget or no value can be evicted.
    fn charge(&self, bytes: u64) {
        self.tier.resident_bytes.fetch_add(bytes, Ordering::Relaxed);
        let capacity_bytes = self.tier.budget.tier_bytes();
        if self.resident_bytes() > capacity_bytes {
            self.evict(capacity_bytes);
        }
        resident_bytes_gauge().increment(bytes as f64);
    }

    /// Evicts values that are not in use until the tier has at most `capacity_bytes`, or no value can be evicted.
    fn evict(&self, capacity_bytes: u64) {
        let mut evicted = Vec::new();
        let mut scan = self.tier.policy.eviction_scan();
        while self.resident_bytes() > capacity_bytes {
            let Some(victim) = scan.victim() else { break };
            evicted.extend(self.remove_if(&victim.key, |value| Arc::strong_count(&value.value) == 1));
        }
        drop(scan);
        metrics::counter!("forebay_cache_evictions_total", "tier" => "memory")
            .increment(evicted.len() as u64);
    }

    fn discharge(&self, bytes: u64) {
        resident_bytes_gauge().decrement(bytes as f64);
        self.tier.resident_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl<K, V> Drop for Tier<K, V> {
    fn drop(&mut self) {
        resident_bytes_gauge().decrement(*self.resident_bytes.get_mut() as f64);
    }
}

/// The gauge is changed by differences: if two threads each set a total, the older one could be written last. It is raised after
/// `resident_bytes` and lowered before it, so it never shows more bytes than are resident.
fn resident_bytes_gauge() -> metrics::Gauge {
    metrics::gauge!("forebay_cache_resident_bytes", "tier" => "memory")
}

/// A load in progress. When it is dropped, the waiting callers are woken and a charge for an unfinished load is
/// released.
struct LoadGuard<'a, K: Hash + Eq + Clone + Send + Sync, V: Weigh + Send + Sync> {
    memory: &'a Memory<K, V>,
    key: &'a K,
    charged_bytes: u64,
    ended: CancellationToken,
}

impl<K: Hash + Eq + Clone + Send + Sync, V: Weigh + Send + Sync> LoadGuard<'_, K, V> {
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
        let entry = self.memory.tier.values.entry(self.key.clone());
        self.memory.tier.policy.insert(self.key.clone());
        entry.insert(Value { value: Arc::clone(&value), weight });
        metrics::counter!("forebay_cache_miss_bytes_total", "tier" => "memory").increment(weight);
        Ok(value)
    }
}

impl<K: Hash + Eq + Clone + Send + Sync, V: Weigh + Send + Sync> Drop for LoadGuard<'_, K, V> {
    fn drop(&mut self) {
        self.memory.discharge(self.charged_bytes);
        self.memory.tier.loads.remove(self.key);
        self.ended.cancel();
    }
}

#[cfg(test)]
mod tests;
