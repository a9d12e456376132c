//! Conversion of measured instants to system time.

use std::time::SystemTime;

use tokio::time::Instant;

/// Maps instants to system time by one reference point, so that spans stay consistent when the system clock is adjusted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    time: SystemTime,
    at: Instant,
}

impl Clock {
    pub(super) fn new() -> Self {
        Self { time: SystemTime::now(), at: Instant::now() }
    }

    /// Returns the system time at `instant`.
    pub(super) fn time_of(&self, instant: Instant) -> SystemTime {
        match instant.checked_duration_since(self.at) {
            Some(later) => self.time + later,
            None => self.time - self.at.duration_since(instant),
        }
    }
}
