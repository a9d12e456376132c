//! The state that the subscribers of `/api/v1/live` share.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::OnceCell,
    time::{Instant, Interval, MissedTickBehavior, interval_at},
};

/// Time between two states. The regular messages also let clients detect broken connections.
const PERIOD: Duration = Duration::from_secs(1);

/// The state that the subscribers share.
pub(crate) struct Subscribers {
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
    pub(crate) fn new() -> Self {
        Self { began: Instant::now(), shared: Default::default() }
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
