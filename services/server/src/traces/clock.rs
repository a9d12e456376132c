//! Times of day for times that were measured.

use std::time::SystemTime;

use tokio::time::Instant;

/// What time of day it was at some moment. Spans of one server agree with each other whatever becomes of the machine's clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    time: SystemTime,
    at: Instant,
}

impl Clock {
    pub(super) fn new() -> Self {
        Self { time: SystemTime::now(), at: Instant::now() }
    }

    /// The time of day at `instant`.
    pub(super) fn time_of(&self, instant: Instant) -> SystemTime {
        match instant.checked_duration_since(self.at) {
            Some(later) => self.time + later,
            None => self.time - self.at.duration_since(instant),
        }
    }
}
