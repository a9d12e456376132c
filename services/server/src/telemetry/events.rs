//! Operational events: the last ones are kept for the dashboard and the API, and subscribers are notified of new ones.

mod event;
mod kept;

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::auth::Access;

pub(crate) use event::{Event, Kind, Severity};
use kept::Kept;

/// Buffer of `limits.max_events` events. If it is full, the oldest event of the audience with the most events is dropped. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Events {
    shared: Arc<Shared>,
}

struct Shared {
    kept: Mutex<Kept>,
    /// Id of the last event, 0 before the first.
    last: watch::Sender<u64>,
}

impl Events {
    /// Creates an empty buffer of at most `max_events` events.
    pub(crate) fn new(max_events: usize) -> Self {
        let kept = Mutex::new(Kept::new(max_events));
        Self { shared: Arc::new(Shared { kept, last: watch::Sender::new(0) }) }
    }

    /// Stores, counts and logs an event. Callers do not log it themselves.
    pub(crate) fn note(&self, mut event: Event) {
        metrics::counter!("forebay_events_total", "kind" => event.kind.name()).increment(1);
        event.log();
        let mut kept = self.shared.kept.lock();
        event.id = *self.shared.last.borrow() + 1;
        event.timestamp = unix_seconds(SystemTime::now());
        let id = event.id;
        let dropped = kept.push(Arc::new(event));
        // Under the lock, so that subscribers see ids in order.
        self.shared.last.send_replace(id);
        drop(kept);
        drop(dropped);
    }

    /// Returns the events after `id` that are visible to `access`, oldest first. An id beyond the last event, which stems from
    /// before a restart of the server, returns all events.
    pub(crate) fn after(&self, id: u64, access: &Access) -> Vec<Arc<Event>> {
        let kept = self.shared.kept.lock();
        let id = if id > *self.shared.last.borrow() { 0 } else { id };
        let mut events = kept.after(id);
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
