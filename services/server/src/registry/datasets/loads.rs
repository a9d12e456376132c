//! Loads of pinned snapshots. Concurrent calls for one snapshot share a load, and loads of different snapshots are concurrent.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::sync::OnceCell;

use crate::{
    Error,
    callers::{Caller, Permits},
};

/// Maximum number of calls that load a snapshot or wait for a load. The loads leave half of `storage.concurrent_local_reads` (8) to
/// other requests to a local state.
const CONCURRENT_CALLS: usize = 4;
/// Maximum number of further calls, which are queued.
const MAX_QUEUED_CALLS: usize = 4096;

/// Name of a dataset, and id of one of its snapshots.
pub(super) type Key = (String, String);

/// Loads of snapshots, whose outcomes are `T`.
pub(super) struct Loads<T> {
    permits: Permits,
    /// Outcomes of the loads that calls wait for.
    outcomes: Mutex<HashMap<Key, Weak<OnceCell<T>>>>,
}

impl<T: Clone> Loads<T> {
    pub(super) fn new() -> Self {
        Self { permits: Permits::new(CONCURRENT_CALLS, MAX_QUEUED_CALLS), outcomes: Mutex::default() }
    }

    /// Returns the outcome of the load of snapshot `key` that is in progress, or of `load` if there is none. If the call that loads
    /// is dropped, another one loads with its own `load`.
    ///
    /// # Errors
    /// Busy, if too many calls are queued.
    pub(super) async fn join<F>(
        &self,
        caller: &Caller,
        key: &Key,
        load: impl FnOnce() -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = T>,
    {
        // Each call has a permit of its own caller: it is not queued behind other requests of the caller whose load it joins.
        let Some(_permit) = self.permits.acquire(caller).await else {
            return Err(Error::busy(format!(
                "{MAX_QUEUED_CALLS} requests wait for a snapshot to be loaded, and no caller has more of them than {caller}"
            )));
        };
        let outcome = self.outcome(key);
        Ok(outcome.get_or_init(load).await.clone())
    }

    /// Returns the outcome of the load of snapshot `key` that is in progress, or a new one.
    fn outcome(&self, key: &Key) -> Arc<OnceCell<T>> {
        let mut outcomes = self.outcomes.lock();
        if let Some(outcome) = outcomes.get(key).and_then(Weak::upgrade) {
            return outcome;
        }
        outcomes.retain(|_, outcome| outcome.strong_count() > 0);
        let outcome = Arc::new(OnceCell::new());
        outcomes.insert(key.clone(), Arc::downgrade(&outcome));
        outcome
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use futures::poll;
    use tokio::sync::Semaphore;

    use super::*;

    /// Loads that wait for a permit of the gate. The outcome of each is its number, counted from 1.
    struct Gated {
        gate: Semaphore,
        started: AtomicU32,
    }

    impl Gated {
        fn new() -> Self {
            Self { gate: Semaphore::new(0), started: AtomicU32::new(0) }
        }

        async fn load(&self) -> u32 {
            let number = self.started.fetch_add(1, Ordering::Relaxed) + 1;
            self.gate.acquire().await.unwrap().forget();
            number
        }
    }

    fn token(name: &str) -> Caller {
        Caller::Token(name.to_owned())
    }

    fn key(id: &str) -> Key {
        ("users".to_owned(), id.to_owned())
    }

    #[tokio::test]
    async fn concurrent_calls_for_a_snapshot_share_one_load() {
        let (loads, gated, id) = (Loads::new(), Gated::new(), key("a"));
        let (one, other) = (token("one"), token("other"));
        let mut first = Box::pin(loads.join(&one, &id, || gated.load()));
        let mut second = Box::pin(loads.join(&one, &id, || gated.load()));
        let mut third = Box::pin(loads.join(&other, &id, || gated.load()));
        assert!(poll!(&mut first).is_pending() && poll!(&mut second).is_pending());
        assert!(poll!(&mut third).is_pending());
        gated.gate.add_permits(1);
        assert_eq!((first.await, second.await, third.await), (Ok(1), Ok(1), Ok(1)));
        gated.gate.add_permits(1);
        assert_eq!(loads.join(&one, &id, || gated.load()).await, Ok(2), "a later call loads again");
    }

    #[tokio::test]
    async fn loads_that_do_not_end_delay_no_other_snapshot_of_another_caller() {
        let (loads, greedy, other) = (Loads::new(), token("greedy"), token("other"));
        let ids: Vec<Key> = (0..100).map(|number| key(&number.to_string())).collect();
        let join = |id| Box::pin(loads.join(&greedy, id, std::future::pending::<u32>));
        let mut hung: Vec<_> = ids.iter().map(join).collect();
        for call in &mut hung {
            assert!(poll!(call).is_pending());
        }
        assert_eq!(loads.join(&other, &key("mine"), || async { 7 }).await, Ok(7));
    }

    #[tokio::test]
    async fn another_call_loads_if_the_one_that_loads_is_dropped_and_nothing_is_left_of_both() {
        let (loads, gated, id, one) = (Loads::new(), Gated::new(), key("a"), token("one"));
        let mut first = Box::pin(loads.join(&one, &id, || gated.load()));
        let mut second = Box::pin(loads.join(&one, &id, || gated.load()));
        assert!(poll!(&mut first).is_pending() && poll!(&mut second).is_pending());
        drop(first);
        gated.gate.add_permits(1);
        assert_eq!(second.await, Ok(2));
        gated.gate.add_permits(1);
        assert_eq!(loads.join(&one, &key("b"), || gated.load()).await, Ok(3));
        assert_eq!(loads.outcomes.lock().keys().collect::<Vec<_>>(), [&key("b")]);
    }
}
