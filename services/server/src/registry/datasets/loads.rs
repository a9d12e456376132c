//! Loads of pinned snapshots. Concurrent calls for one snapshot share a load, and loads of different snapshots are concurrent.

use std::{
    collections::HashMap,
    mem,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::sync::{SetOnce, watch};

use crate::{
    Error,
    callers::{Caller, Permits},
};

/// Maximum number of concurrent loads for callers. They leave half of `storage.concurrent_local_reads` (8) to other requests to a
/// local state. Loads for the server itself are not counted.
const CONCURRENT_LOADS: usize = 4;
/// Maximum number of queued calls.
const MAX_QUEUED_CALLS: usize = 4096;

/// Name of a dataset, and id of one of its snapshots.
pub(super) type Key = (String, String);

/// Loads of snapshots, whose outcomes are `T`.
pub(super) struct Loads<T> {
    permits: Permits,
    /// Loads that calls wait for.
    joined: Mutex<HashMap<Key, Weak<Load<T>>>>,
}

/// A load for which one or more calls wait. One of them runs it.
struct Load<T> {
    outcome: SetOnce<T>,
    /// True while a call loads.
    is_running: watch::Sender<bool>,
}

/// The right of a call to run the load. If it is dropped without an outcome, another call can run the load.
struct Running<'a>(&'a watch::Sender<bool>);

impl<T: Clone> Loads<T> {
    pub(super) fn new() -> Self {
        Self { permits: Permits::new(CONCURRENT_LOADS, MAX_QUEUED_CALLS), joined: Mutex::default() }
    }

    /// Returns the outcome for snapshot `key`: that of the load in progress, or of the closure `load` if no load is in progress. If the
    /// call that loads is dropped, another waiting call runs its own closure. `caller` is `None` for calls of the server itself, which
    /// are not queued.
    ///
    /// # Errors
    /// Busy, if too many calls are queued.
    pub(super) async fn join<F>(
        &self,
        caller: Option<&Caller>,
        key: &Key,
        load: impl FnOnce() -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = T>,
    {
        let joined = self.joined(key);
        tokio::select! {
            biased;
            outcome = joined.outcome.wait() => Ok(outcome.clone()),
            outcome = self.run(caller, &joined, load) => outcome,
        }
    }

    /// Loads with a permit of the caller, once no other call loads. A call that waits for another one has no permit, and a queued call
    /// does not prevent others from loading. Calls of one caller for a slow snapshot therefore do not delay its other snapshots.
    async fn run<F>(
        &self,
        caller: Option<&Caller>,
        joined: &Load<T>,
        load: impl FnOnce() -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = T>,
    {
        loop {
            joined.not_running().await;
            let _permit = match caller {
                Some(caller) => Some(self.permits.acquire(caller).await.ok_or_else(|| too_many(caller))?),
                None => None,
            };
            // Another call may have begun to load while this one was queued.
            let Some(_running) = joined.begin() else { continue };
            if let Some(outcome) = joined.outcome.get() {
                return Ok(outcome.clone());
            }
            let outcome = load().await;
            joined.outcome.set(outcome.clone()).ok();
            return Ok(outcome);
        }
    }

    /// Returns the load of snapshot `key` that calls wait for, or a new one.
    fn joined(&self, key: &Key) -> Arc<Load<T>> {
        let mut joined = self.joined.lock();
        if let Some(load) = joined.get(key).and_then(Weak::upgrade) {
            return load;
        }
        joined.retain(|_, load| load.strong_count() > 0);
        let load = Arc::new(Load { outcome: SetOnce::new(), is_running: watch::Sender::new(false) });
        joined.insert(key.clone(), Arc::downgrade(&load));
        load
    }
}

impl<T> Load<T> {
    /// Waits until no call loads.
    async fn not_running(&self) {
        let mut is_running = self.is_running.subscribe();
        // The sender is not dropped before `self`.
        is_running.wait_for(|is_running| !is_running).await.ok();
    }

    /// Makes the call the one that loads, unless another one does.
    fn begin(&self) -> Option<Running<'_>> {
        let begins = self.is_running.send_if_modified(|is_running| !mem::replace(is_running, true));
        begins.then(|| Running(&self.is_running))
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.send_replace(false);
    }
}

fn too_many(caller: &Caller) -> Error {
    Error::busy(format!(
        "{MAX_QUEUED_CALLS} requests wait for a snapshot to be loaded, and no caller has more of them than {caller}"
    ))
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
        let mut first = Box::pin(loads.join(Some(&one), &id, || gated.load()));
        let mut second = Box::pin(loads.join(Some(&one), &id, || gated.load()));
        let mut third = Box::pin(loads.join(Some(&other), &id, || gated.load()));
        assert!(poll!(&mut first).is_pending() && poll!(&mut second).is_pending());
        assert!(poll!(&mut third).is_pending());
        gated.gate.add_permits(1);
        assert_eq!((first.await, second.await, third.await), (Ok(1), Ok(1), Ok(1)));
        gated.gate.add_permits(1);
        assert_eq!(loads.join(Some(&one), &id, || gated.load()).await, Ok(2), "a later call loads again");
    }

    #[tokio::test]
    async fn loads_that_do_not_end_delay_no_other_snapshot_of_another_caller() {
        let (loads, greedy, other) = (Loads::new(), token("greedy"), token("other"));
        let ids: Vec<Key> = (0..100).map(|number| key(&number.to_string())).collect();
        let join = |id| Box::pin(loads.join(Some(&greedy), id, std::future::pending::<u32>));
        let mut hung: Vec<_> = ids.iter().map(join).collect();
        for call in &mut hung {
            assert!(poll!(call).is_pending());
        }
        assert_eq!(loads.join(Some(&other), &key("mine"), || async { 7 }).await, Ok(7));
    }

    #[tokio::test]
    async fn calls_that_wait_for_a_slow_snapshot_do_not_delay_other_snapshots() {
        let (loads, slow) = (Loads::new(), key("slow"));
        let callers: Vec<Caller> = (0..20).map(|number| token(&format!("host {}", number / 4))).collect();
        let join = |caller| Box::pin(loads.join(Some(caller), &slow, std::future::pending::<u32>));
        let mut waiting: Vec<_> = callers.iter().map(join).collect();
        for call in &mut waiting {
            assert!(poll!(call).is_pending());
        }
        for caller in &callers {
            assert_eq!(loads.join(Some(caller), &key("fast"), || async { 7 }).await, Ok(7));
        }
    }

    #[tokio::test]
    async fn a_queued_call_gets_the_outcome_of_a_call_of_another_caller() {
        let (loads, gated, id) = (Loads::new(), Gated::new(), key("a"));
        let (greedy, other) = (token("greedy"), token("other"));
        let ids: Vec<Key> = (0..3).map(|number| key(&number.to_string())).collect();
        let join = |id| Box::pin(loads.join(Some(&greedy), id, std::future::pending::<u32>));
        let mut hung: Vec<_> = ids.iter().map(join).collect();
        for call in &mut hung {
            assert!(poll!(call).is_pending());
        }
        let mut queued = Box::pin(loads.join(Some(&greedy), &id, || gated.load()));
        assert!(poll!(&mut queued).is_pending());
        gated.gate.add_permits(1);
        assert_eq!(loads.join(Some(&other), &id, || gated.load()).await, Ok(1));
        assert_eq!(queued.await, Ok(1));
    }

    #[tokio::test]
    async fn loads_for_the_server_itself_neither_need_a_permit_nor_take_one() {
        let (loads, gated) = (Loads::new(), Gated::new());
        let ids: Vec<Key> = (0..10).map(|number| key(&number.to_string())).collect();
        let mut running = Vec::new();
        for id in &ids {
            let mut call = Box::pin(loads.join(None, id, || gated.load()));
            assert!(poll!(&mut call).is_pending());
            running.push(call);
        }
        assert_eq!(gated.started.load(Ordering::Relaxed), 10);
        assert_eq!(loads.join(Some(&Caller::Local), &key("mine"), || async { 7 }).await, Ok(7));
    }

    #[tokio::test]
    async fn a_call_of_another_caller_loads_if_the_one_that_loads_is_dropped() {
        let (loads, gated, id) = (Loads::new(), Gated::new(), key("a"));
        let (one, other) = (token("one"), token("other"));
        let mut first = Box::pin(loads.join(Some(&one), &id, || gated.load()));
        let mut waiting = Vec::new();
        assert!(poll!(&mut first).is_pending());
        for caller in [Some(&other), Some(&one), None] {
            let mut call = Box::pin(loads.join(caller, &id, || gated.load()));
            assert!(poll!(&mut call).is_pending());
            waiting.push(call);
        }
        drop(first);
        gated.gate.add_permits(1);
        assert_eq!(futures::future::join_all(waiting).await, [Ok(2), Ok(2), Ok(2)]);
        assert_eq!(gated.started.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn another_call_loads_if_the_one_that_loads_is_dropped_and_nothing_is_left_of_both() {
        let (loads, gated, id, one) = (Loads::new(), Gated::new(), key("a"), token("one"));
        let mut first = Box::pin(loads.join(Some(&one), &id, || gated.load()));
        let mut second = Box::pin(loads.join(Some(&one), &id, || gated.load()));
        assert!(poll!(&mut first).is_pending() && poll!(&mut second).is_pending());
        drop(first);
        gated.gate.add_permits(1);
        assert_eq!(second.await, Ok(2));
        gated.gate.add_permits(1);
        assert_eq!(loads.join(Some(&one), &key("b"), || gated.load()).await, Ok(3));
        assert_eq!(loads.joined.lock().keys().collect::<Vec<_>>(), [&key("b")]);
    }
}
