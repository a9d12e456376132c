//! Subscribers of `/api/v1/live`: their number, and the state that they share.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::{OnceCell, OwnedSemaphorePermit, Semaphore},
    time::{Instant, Interval, MissedTickBehavior, interval_at},
};

use crate::Error;

/// Time between two states. The regular messages also let clients detect broken connections.
const PERIOD: Duration = Duration::from_secs(1);

/// Limit on subscribers, and the state that they share.
pub(crate) struct Subscribers {
    permits: Arc<Semaphore>,
    max: usize,
    began: Instant,
    /// Latest state for callers that may read everything: the first for readers, the second for administrators.
    shared: [Mutex<Shared>; 2],
}

/// State of one tick, computed by the first subscriber that needs it.
#[derive(Default)]
struct Shared {
    tick: u64,
    text: Arc<OnceCell<Arc<str>>>,
}

impl Subscribers {
    /// Creates a limit of `max` concurrent subscribers.
    pub(crate) fn new(max: usize) -> Self {
        let permits = Arc::new(Semaphore::new(max.min(Semaphore::MAX_PERMITS)));
        Self { permits, max, began: Instant::now(), shared: Default::default() }
    }

    /// Admits a subscriber until the permit is dropped.
    ///
    /// # Errors
    /// Service unavailable if there are too many subscribers.
    pub(super) fn enter(&self) -> Result<OwnedSemaphorePermit, Error> {
        let max = self.max;
        let message =
            format!("limits.max_live_subscribers ({max}) is reached: close a subscriber or raise the limit");
        let place = Arc::clone(&self.permits).try_acquire_owned();
        place.map_err(|_| Error::unavailable(message))
    }

    /// Waits until no subscriber is connected.
    pub(crate) async fn none_left(&self) {
        // The semaphore is never closed: all permits are free once all subscribers are disconnected.
        drop(self.permits.acquire_many(u32::try_from(self.max).unwrap_or(u32::MAX)).await);
    }

    /// Number of the current tick.
    fn tick(&self) -> u64 {
        self.began.elapsed().as_secs() / PERIOD.as_secs()
    }

    /// Returns the ticks, which all subscribers share. The current tick has begun, so the first one is due immediately.
    pub(super) fn ticks(&self) -> Interval {
        let first = self.began + PERIOD * u32::try_from(self.tick()).unwrap_or(u32::MAX);
        let mut ticks = interval_at(first, PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        ticks
    }

    /// Returns the cell of the current state.
    pub(super) fn text(&self, for_administrator: bool) -> Arc<OnceCell<Arc<str>>> {
        let tick = self.tick();
        let mut shared = self.shared[usize::from(for_administrator)].lock();
        if shared.tick < tick {
            *shared = Shared { tick, text: Arc::default() };
        }
        Arc::clone(&shared.text)
    }
}
