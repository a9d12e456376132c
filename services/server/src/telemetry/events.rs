//! Operational events: the last ones are kept for the dashboard and the API, and subscribers are notified of new ones.

mod event;

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::auth::Access;

pub(crate) use event::{Event, Kind, Severity};

/// Ring buffer of the last `limits.max_events` events. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Events {
    shared: Arc<Shared>,
}

struct Shared {
    /// Oldest first, with consecutive ids.
    kept: Mutex<VecDeque<Arc<Event>>>,
    max_events: usize,
    /// Id of the last event, 0 before the first.
    last: watch::Sender<u64>,
}

impl Events {
    /// Creates an empty buffer that drops the oldest event when it holds more than `max_events`.
    pub(crate) fn new(max_events: usize) -> Self {
        let kept = Mutex::new(VecDeque::new());
        Self { shared: Arc::new(Shared { kept, max_events, last: watch::Sender::new(0) }) }
    }

    /// Stores, counts and logs an event. Callers do not log it themselves.
    pub(crate) fn note(&self, mut event: Event) {
        metrics::counter!("forebay_events_total", "kind" => event.kind.name()).increment(1);
        event.log();
        let mut kept = self.shared.kept.lock();
        event.id = *self.shared.last.borrow() + 1;
        event.timestamp = unix_seconds(SystemTime::now());
        let id = event.id;
        let oldest = if kept.len() >= self.shared.max_events { kept.pop_front() } else { None };
        kept.push_back(Arc::new(event));
        // Under the lock, so that subscribers see ids in order.
        self.shared.last.send_replace(id);
        drop(kept);
        drop(oldest);
    }

    /// Returns the events after `id` that are visible to `access`, oldest first. An id beyond the last event, which stems from
    /// before a restart of the server, returns all events.
    pub(crate) fn after(&self, id: u64, access: &Access) -> Vec<Arc<Event>> {
        let kept = self.shared.kept.lock();
        let id = if id > *self.shared.last.borrow() { 0 } else { id };
        let start = kept.partition_point(|event| event.id <= id);
        let mut events: Vec<_> = kept.range(start..).cloned().collect();
        drop(kept);
        events.retain(|event| event.is_visible_to(access));
        events
    }

    /// Subscribes to the id of the last event; 0 before the first.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.shared.last.subscribe()
    }
}

/// Converts a time to Unix seconds, 0 for times before 1970.
pub(crate) fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

#[cfg(test)]
mod tests;
