//! Limit of a number of events per second.

use parking_lot::Mutex;
use tokio::time::Instant;

/// Allows `per_second` events per second, and as many at once after a pause.
#[derive(Debug)]
pub(super) struct RateLimit {
    per_second: u32,
    /// Number of events that are allowed now, and the time at which that was computed.
    left: Mutex<(f64, Instant)>,
}

impl RateLimit {
    pub(super) fn new(per_second: u32, now: Instant) -> Self {
        Self { per_second, left: Mutex::new((per_second.into(), now)) }
    }

    /// Returns true if an event at `now` is within the limit, and counts it.
    pub(super) fn allows(&self, now: Instant) -> bool {
        let rate = f64::from(self.per_second);
        let mut left = self.left.lock();
        let (before, at) = *left;
        let allowed = (before + now.saturating_duration_since(at).as_secs_f64() * rate).min(rate);
        let is_allowed = allowed >= 1.0;
        *left = (if is_allowed { allowed - 1.0 } else { allowed }, at.max(now));
        is_allowed
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn events_are_allowed_at_the_rate_and_as_many_at_once_after_a_pause() {
        let start = Instant::now();
        let limit = RateLimit::new(10, start);
        let count = |millis: u64| {
            let now = start + Duration::from_millis(millis);
            (0..100).filter(|_| limit.allows(now)).count()
        };
        assert_eq!([count(0), count(0), count(50), count(250), count(100_000)], [10, 0, 0, 2, 10]);
        // A clock of another thread that is behind gives nothing.
        assert_eq!([count(0), count(100_100)], [0, 1]);
        assert!(!RateLimit::new(0, start).allows(start + Duration::from_secs(60)));
    }
}
