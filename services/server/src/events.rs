//! What happened lately, for people: the last events of a server, and word to those who watch that there is another one.

mod event;

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use tokio::sync::watch;

use crate::door::Access;

pub(crate) use event::{Event, Kind, Note, Severity};

/// The last `limits.max_events` events. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Events {
    shared: Arc<Shared>,
}

struct Shared {
    /// The oldest first; their numbers follow each other.
    kept: Mutex<VecDeque<Arc<Event>>>,
    max_events: usize,
    /// The number of the last one.
    last: watch::Sender<u64>,
}

impl Events {
    /// None yet; the oldest goes when there are more than `max_events`.
    pub(crate) fn new(max_events: usize) -> Self {
        let kept = Mutex::new(VecDeque::new());
        Self { shared: Arc::new(Shared { kept, max_events, last: watch::Sender::new(0) }) }
    }

    /// Keeps, counts and logs what happened; nobody else has to log it.
    pub(crate) fn note(&self, note: Note) {
        metrics::counter!("forebay_events_total", "kind" => note.kind.name()).increment(1);
        note.log();
        let mut kept = self.shared.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let id = *self.shared.last.borrow() + 1;
        let oldest = if kept.len() >= self.shared.max_events { kept.pop_front() } else { None };
        kept.push_back(Arc::new(note.into_event(id, unix_seconds(SystemTime::now()))));
        // Within the lock, so that nobody hears of a later one first.
        self.shared.last.send_replace(id);
        drop(kept);
        drop(oldest);
    }

    /// Those after the one with number `id` that `access` may know of, the oldest first. A number that was not given yet is that of
    /// another life of this server, and means all.
    pub(crate) fn after(&self, id: u64, access: &Access) -> Vec<Arc<Event>> {
        let kept = self.shared.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let id = if id > *self.shared.last.borrow() { 0 } else { id };
        let behind = kept.partition_point(|event| event.id <= id);
        let mut events: Vec<_> = kept.range(behind..).cloned().collect();
        drop(kept);
        events.retain(|event| event.is_for(access));
        events
    }

    /// The number of the last event, now and whenever there is another one; 0 before the first.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.shared.last.subscribe()
    }
}

/// As the API writes times.
pub(crate) fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

#[cfg(test)]
mod tests;
