//! A clock shared by several threads.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use parking_lot::{Mutex, MutexGuard};

use crate::{bucket::Stage, clock::Clock};

/// The [`Clock`] of one trainer, shared by its open streams. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Session {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    clock: Mutex<Clock>,
    next_lane: AtomicU64,
}

/// Handle to one stream of a trainer, used by the threads that work for it. Cheap to clone; dropping the last clone ends the
/// stream.
#[derive(Debug, Clone)]
pub struct Lane {
    inner: Arc<LaneInner>,
}

#[derive(Debug)]
struct LaneInner {
    session: Option<Session>,
    id: u64,
}

impl Session {
    /// Creates a session that begins at `now`; `reports` is true if the trainer will report.
    pub fn new(now: Instant, reports: bool) -> Self {
        let shared = Shared { clock: Mutex::new(Clock::new(now, reports)), next_lane: AtomicU64::new(0) };
        Self { shared: Arc::new(shared) }
    }

    /// Adds a stream that begins at `now` with the batch of epoch and step `due`.
    pub fn enter(&self, now: Instant, due: (u64, u64)) -> Lane {
        let id = self.shared.next_lane.fetch_add(1, Ordering::Relaxed);
        self.clock().enter(now, id, due);
        Lane { inner: Arc::new(LaneInner { session: Some(self.clone()), id }) }
    }

    /// Locks the clock. Hold the guard only briefly: all threads that work for the trainer record events in it.
    pub fn clock(&self) -> MutexGuard<'_, Clock> {
        self.shared.clock.lock()
    }
}

impl Lane {
    /// Returns a lane without a session; its events are discarded.
    pub fn detached() -> Self {
        Self { inner: Arc::new(LaneInner { session: None, id: 0 }) }
    }

    /// Calls [`Clock::batch_requested`] with the current time.
    pub fn batch_requested(&self) {
        self.record(Clock::batch_requested);
    }

    /// Calls [`Clock::batch_sent`] with the current time.
    pub fn batch_sent(&self, due: (u64, u64)) {
        self.record(|clock, now, lane| clock.batch_sent(now, lane, due));
    }

    /// Calls [`Clock::begin`] with the current time.
    pub fn begin(&self, stage: Stage) {
        self.record(|clock, now, lane| clock.begin(now, lane, stage));
    }

    /// Calls [`Clock::end`] with the current time.
    pub fn end(&self, stage: Stage) {
        self.record(|clock, now, lane| clock.end(now, lane, stage));
    }

    /// Ends the stream, also while clones of the lane exist.
    pub fn leave(&self) {
        self.record(Clock::leave);
    }

    /// True if both are handles to the same stream.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// True if the lane belongs to a session.
    pub fn is_attached(&self) -> bool {
        self.inner.session.is_some()
    }

    #[expect(clippy::disallowed_methods, reason = "the only place that reads the clock for events")]
    fn record<T>(&self, change: impl FnOnce(&mut Clock, Instant, u64) -> T) {
        let Some(session) = &self.inner.session else { return };
        let mut clock = session.clock();
        // Read the time under the lock, so that events are recorded in the order of their times.
        change(&mut clock, Instant::now(), self.inner.id);
    }
}

impl Drop for LaneInner {
    #[expect(clippy::disallowed_methods, reason = "a lane ends now")]
    fn drop(&mut self) {
        if let Some(session) = &self.session {
            let mut clock = session.clock();
            clock.leave(Instant::now(), self.id);
        }
    }
}
