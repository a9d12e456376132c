//! A clock that several threads tell of what happens.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use crate::{Clock, Stage};

/// The [`Clock`] of one trainer, shared by the streams that it has open. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Session {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    clock: Mutex<Clock>,
    next_lane: AtomicU64,
}

/// One stream of a trainer, as the threads that work for it see it. Cheap to clone; when the last clone is dropped, the stream
/// has ended.
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
    /// A session that begins at `now`, of a trainer that reports or doesn't.
    pub fn new(now: Instant, reports: bool) -> Self {
        let shared = Shared { clock: Mutex::new(Clock::new(now, reports)), next_lane: AtomicU64::new(0) };
        Self { shared: Arc::new(shared) }
    }

    /// A stream of it that begins at `now` with the batch of epoch and step `due`.
    pub fn enter(&self, now: Instant, due: (u64, u64)) -> Lane {
        let id = self.shared.next_lane.fetch_add(1, Ordering::Relaxed);
        self.clock().enter(now, id, due);
        Lane { inner: Arc::new(LaneInner { session: Some(self.clone()), id }) }
    }

    /// The clock. Not to be held for long: all who work for the trainer tell it.
    pub fn clock(&self) -> MutexGuard<'_, Clock> {
        self.shared.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lane {
    /// A stream that nobody's time is charged for.
    pub fn detached() -> Self {
        Self { inner: Arc::new(LaneInner { session: None, id: 0 }) }
    }

    /// As [`Clock::asks`].
    pub fn asks(&self) {
        self.tell(Clock::asks);
    }

    /// As [`Clock::served`].
    pub fn served(&self, due: (u64, u64)) {
        self.tell(|clock, now, lane| clock.served(now, lane, due));
    }

    /// As [`Clock::begin`].
    pub fn begin(&self, stage: Stage) {
        self.tell(|clock, now, lane| clock.begin(now, lane, stage));
    }

    /// As [`Clock::end`].
    pub fn end(&self, stage: Stage) {
        self.tell(|clock, now, lane| clock.end(now, lane, stage));
    }

    /// The stream has ended, whoever still works for it.
    pub fn leave(&self) {
        self.tell(Clock::leave);
    }

    /// Whether both are the same stream.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Whether anybody's time is charged for it.
    pub fn is_attached(&self) -> bool {
        self.inner.session.is_some()
    }

    fn tell<T>(&self, change: impl FnOnce(&mut Clock, Instant, u64) -> T) {
        let Some(session) = &self.inner.session else { return };
        let mut clock = session.clock();
        // Under the lock, so that events come in the order of their times.
        change(&mut clock, Instant::now(), self.inner.id);
    }
}

impl Drop for LaneInner {
    fn drop(&mut self) {
        if let Some(session) = &self.session {
            let mut clock = session.clock();
            clock.leave(Instant::now(), self.id);
        }
    }
}
