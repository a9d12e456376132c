//! The time of the return to a preferred server.

use std::time::Duration;

use tokio::time::Instant;

/// Maximum factor by which the failback interval grows.
const MAX_FAILBACK_FACTOR: u32 = 32;

/// Time of the next probe of a preferred server that has failed.
#[derive(Debug)]
pub(super) struct Failback {
    /// Time of the next probe; `None` while the preferred server is in use.
    pub(super) due: Option<Instant>,
    /// Time between the failure of the preferred server and the first probe.
    wait: Duration,
    /// Time of the last return to the preferred server.
    returned: Option<Instant>,
}

impl Failback {
    /// Creates the state of a client that uses its preferred server.
    pub(super) fn new(interval: Duration) -> Self {
        Self { due: None, wait: interval, returned: None }
    }

    /// Records that the preferred server failed.
    pub(super) fn left(&mut self, now: Instant, interval: Duration) {
        let is_again = self.returned.is_some_and(|returned| now - returned < self.wait);
        let longest = interval.saturating_mul(MAX_FAILBACK_FACTOR);
        self.wait = if is_again { self.wait.saturating_mul(2).min(longest) } else { interval };
        self.due = now.checked_add(self.wait);
    }

    /// Records that the preferred server is in use again.
    pub(super) fn returned(&mut self, now: Instant) {
        self.returned = Some(now);
        self.due = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(60);

    #[test]
    fn the_wait_for_a_probe_doubles_if_the_preferred_server_fails_soon_after_a_return() {
        let now = Instant::now();
        let mut failback = Failback::new(INTERVAL);
        failback.left(now, INTERVAL);
        assert_eq!(failback.due, Some(now + INTERVAL));
        for factor in [2, 4, 8, 16, 32, 32] {
            failback.returned(now);
            assert_eq!(failback.due, None);
            failback.left(now + INTERVAL / 2, INTERVAL);
            assert_eq!(failback.wait, INTERVAL * factor);
        }
        failback.left(now + INTERVAL * 100, INTERVAL);
        assert_eq!(failback.wait, INTERVAL);
    }
}
