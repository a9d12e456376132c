//! Permits for operations of one kind, which callers share fairly.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::caller::Caller;

/// Permits for operations of one kind, such as explanations. Cheap to clone.
///
/// - One caller holds at most all permits but one, so that the operations of another caller need not wait for its operations.
/// - A free permit goes to the queued caller that holds the fewest permits. Of several, it goes to the one that got or returned a
///   permit, or joined the queue, the longest ago.
/// - If too many requests are queued, the newest request of the caller with the most of them is rejected.
#[derive(Clone)]
pub(crate) struct Permits {
    queue: Arc<Mutex<Queue>>,
}

/// A permit. Dropping it returns it.
pub(crate) struct Permit {
    permits: Permits,
    caller: Caller,
    /// Number of the request.
    number: u64,
}

/// Requests that hold a permit, and requests that are queued for one.
struct Queue {
    /// Number of permits, at least 1.
    permits: usize,
    max_queued: usize,
    /// Callers that have requests.
    callers: BTreeMap<Caller, Requests>,
    /// Number of changes so far. Requests are numbered by the change that added them.
    changes: u64,
}

/// Requests of one caller.
#[derive(Default)]
struct Requests {
    /// Numbers of the requests that hold a permit.
    running: Vec<u64>,
    /// Queued requests, oldest first.
    queued: VecDeque<Queued>,
    /// Last change that gave the caller a permit, returned a permit of it, or made it join the queue.
    changed: u64,
}

struct Queued {
    number: u64,
    granted: oneshot::Sender<()>,
}

impl Permits {
    /// Creates `permits` permits, at least one, for which up to `max_queued` requests are queued.
    pub(crate) fn new(permits: usize, max_queued: usize) -> Self {
        Self { queue: Arc::new(Mutex::new(Queue::new(permits, max_queued))) }
    }

    /// Waits for a permit. Dropping the returned future ends the request. Returns `None` if too many requests are queued and no
    /// caller has more of them.
    pub(crate) async fn acquire(&self, caller: &Caller) -> Option<Permit> {
        let (number, granted) = self.queue.lock().push(caller);
        // If this call is dropped, the drop of the permit ends the request.
        let permit = Permit { permits: self.clone(), caller: caller.clone(), number };
        granted.await.ok()?;
        Some(permit)
    }

    /// Number of permits that one caller can hold.
    pub(crate) fn max_of_caller(&self) -> usize {
        self.queue.lock().max_of_caller()
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.permits.queue.lock().end(&self.caller, self.number);
    }
}

impl Queue {
    fn new(permits: usize, max_queued: usize) -> Self {
        Self { permits: permits.max(1), max_queued, callers: BTreeMap::new(), changes: 0 }
    }

    /// Adds a request. Returns its number, and a channel that receives its permit or, if the request is rejected, is closed.
    fn push(&mut self, caller: &Caller) -> (u64, oneshot::Receiver<()>) {
        let number = self.next_change();
        let (granted, permit) = oneshot::channel();
        let requests = self.callers.entry(caller.clone()).or_default();
        if requests.queued.is_empty() {
            requests.changed = number;
        }
        requests.queued.push_back(Queued { number, granted });
        self.grant();
        self.reject_excess();
        (number, permit)
    }

    /// Ends a request in any state: returns its permit, or removes it from the queue.
    fn end(&mut self, caller: &Caller, number: u64) {
        let change = self.next_change();
        let Some(requests) = self.callers.get_mut(caller) else { return };
        requests.queued.retain(|queued| queued.number != number);
        if requests.running.contains(&number) {
            requests.running.retain(|running| *running != number);
            requests.changed = change;
        }
        if requests.running.is_empty() && requests.queued.is_empty() {
            self.callers.remove(caller);
        }
        self.grant();
    }

    /// Grants free permits to queued requests.
    fn grant(&mut self) {
        let max_of_caller = self.max_of_caller();
        loop {
            let running: usize = self.callers.values().map(|requests| requests.running.len()).sum();
            if running >= self.permits {
                return;
            }
            let change = self.next_change();
            let next = self
                .callers
                .values_mut()
                .filter(|requests| !requests.queued.is_empty() && requests.running.len() < max_of_caller)
                .min_by_key(|requests| (requests.running.len(), requests.changed));
            let Some(requests) = next else { return };
            let Some(Queued { number, granted }) = requests.queued.pop_front() else { return };
            requests.running.push(number);
            requests.changed = change;
            // If the call has ended, the drop of its permit is imminent.
            granted.send(()).ok();
        }
    }

    /// Rejects a request if too many are queued.
    fn reject_excess(&mut self) {
        let queued: usize = self.callers.values().map(|requests| requests.queued.len()).sum();
        if queued <= self.max_queued {
            return;
        }
        let most = self.callers.values_mut().max_by_key(|requests| {
            let newest = requests.queued.back().map(|queued| queued.number);
            (requests.queued.len(), newest)
        });
        if let Some(requests) = most {
            requests.queued.pop_back();
        }
    }

    fn max_of_caller(&self) -> usize {
        (self.permits - 1).max(1)
    }

    fn next_change(&mut self) -> u64 {
        self.changes += 1;
        self.changes
    }
}

#[cfg(test)]
mod tests;
