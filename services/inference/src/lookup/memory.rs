//! Memory of lookups: one budget of all datasets, in which undeclared views make room for what lookups need.

mod victims;

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use forebay_loader::{Error, Loader, LookupReservation, LookupRows};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::snapshot::{LoadedSnapshot, ViewKey};
pub(super) use victims::Claim;
use victims::{Candidate, victims};

/// Time without a use after which a view may be evicted to make room for any other one.
const EVICTABLE_AFTER: Duration = Duration::from_secs(60);
/// Maximum time for which lookups in progress hold the rows of an evicted view.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);

/// Memory of the lookups of all datasets of a server. Cheap to clone.
#[derive(Clone)]
pub struct LookupMemory {
    shared: Arc<Shared>,
}

struct Shared {
    loader: Loader,
    /// Snapshots whose views may be evicted.
    snapshots: Mutex<Vec<Weak<LoadedSnapshot>>>,
    created: Instant,
    /// Time of the last use of a view, in microseconds since `created`. Of several uses in one microsecond, each gets a time of
    /// its own.
    last_use: AtomicU64,
}

impl LookupMemory {
    /// Creates the memory that `loader` has [reserved for lookups](Loader::reserve_for_lookups).
    pub fn new(loader: Loader) -> Self {
        let shared = Shared {
            loader,
            snapshots: Mutex::default(),
            created: Instant::now(),
            last_use: AtomicU64::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Loader of the rows.
    pub(super) fn loader(&self) -> &Loader {
        &self.shared.loader
    }

    /// Adds a snapshot whose views may be evicted.
    pub(super) fn add(&self, snapshot: &Arc<LoadedSnapshot>) {
        let mut snapshots = self.shared.snapshots.lock();
        snapshots.retain(|snapshot| snapshot.strong_count() > 0);
        snapshots.push(Arc::downgrade(snapshot));
    }

    /// Microseconds since the memory was created.
    pub(super) fn now(&self) -> u64 {
        self.shared.created.elapsed().as_micros() as u64
    }

    /// Sets the time of the last use of a view.
    pub(super) fn record_use(&self, last_use: &AtomicU64) {
        let now = self.now();
        let next = |last: u64| Some(now.max(last + 1));
        let last = self.shared.last_use.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        last_use.store(last.map_or(now, |last| now.max(last + 1)), Ordering::Relaxed);
    }

    /// Takes `bytes` for `what`, an index or its building. Evicts views if necessary.
    ///
    /// # Errors
    /// [`Error::TooLarge`] if all evictable views together are too small.
    pub(super) async fn take(&self, what: &str, bytes: u64) -> Result<LookupReservation, Error> {
        loop {
            let taken = self.loader().take_lookup_memory(what, bytes);
            if !self.makes_room(Claim::INDEX, &taken).await {
                return taken;
            }
        }
    }

    /// Evicts views for `claim` if `loaded` has failed for lack of memory. Returns true if another attempt can succeed.
    pub(super) async fn makes_room<T>(&self, claim: Claim<'_>, loaded: &Result<T, Error>) -> bool {
        let Err(Error::TooLarge { needed, limit, .. }) = loaded else { return false };
        let evicted = self.evict(claim, *needed, needed.saturating_sub(*limit));
        if evicted.is_empty() {
            return false;
        }
        released(&evicted).await;
        true
    }

    /// Evicts views of at least `bytes` bytes for a claim of `needed` bytes. Evicts and returns nothing if there are too few.
    fn evict(&self, claim: Claim<'_>, needed: u64, bytes: u64) -> Vec<Weak<LookupRows>> {
        let snapshots: Vec<_> = self.shared.snapshots.lock().iter().filter_map(Weak::upgrade).collect();
        let mut views: Vec<(&Arc<LoadedSnapshot>, ViewKey)> = Vec::new();
        let mut candidates = Vec::new();
        for snapshot in &snapshots {
            for (key, view) in snapshot.views.lock().iter() {
                if let Some(rows) = view.rows.get()
                    && !view.is_declared
                    && key != claim.key
                {
                    let last_use = view.last_use.load(Ordering::Relaxed);
                    let owner = view.loaded_by.id();
                    candidates.push(Candidate { owner, last_use, bytes: rows.reserved_bytes() });
                    views.push((snapshot, key.clone()));
                }
            }
        }
        let idle_before = self.now().saturating_sub(EVICTABLE_AFTER.as_micros() as u64);
        let mut evicted = Vec::new();
        for victim in victims(&candidates, claim, needed, bytes, idle_before) {
            let (snapshot, key) = &views[victim];
            // Another call may have evicted it. Rows are dropped outside of the lock.
            let view = snapshot.views.lock().remove(key);
            evicted.extend(view.as_ref().and_then(|view| view.rows.get()).map(Arc::downgrade));
        }
        evicted
    }
}

/// Waits until lookups in progress have released the rows of evicted views.
async fn released(evicted: &[Weak<LookupRows>]) {
    let is_released = || evicted.iter().all(|rows| rows.strong_count() == 0);
    let wait = async {
        while !is_released() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    // After the timeout, the memory is in use by a caller that is slow, and other views are evicted.
    drop(tokio::time::timeout(RELEASE_TIMEOUT, wait).await);
}
