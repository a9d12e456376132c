//! The times at which a client requests its plan again.

use std::time::Duration;

use tokio::time::Instant;

/// Divisor of the interval: after an event, the plan is requested within the interval divided by this number.
const SPREAD: u32 = 30;
/// Maximum time that is added to a time, so that the sum is in the range of the clock.
const LONGEST: Duration = Duration::from_secs(1 << 30);

/// Time of the next request for the plan. Times are random, so that the ranks of a job do not send requests at the same time.
/// `random` is a random number from 0 to 1.
#[derive(Debug)]
pub(super) struct ReplanTimer {
    interval: Duration,
    /// Time of the last answer, or of the start.
    planned: Instant,
    due: Instant,
}

impl ReplanTimer {
    pub(super) fn new(now: Instant, random: f64, interval: Duration) -> Self {
        let mut timer = Self { interval, planned: now, due: now };
        timer.planned(now, random);
        timer
    }

    /// Returns the time of the next request.
    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// Returns the earliest time of the next request: 1/30 of the interval after the last one.
    pub(super) fn earliest(&self) -> Instant {
        self.planned + self.spread()
    }

    fn spread(&self) -> Duration {
        (self.interval / SPREAD).min(LONGEST)
    }

    /// Records that the plan was requested. The next request follows after a half to the whole of the interval.
    pub(super) fn planned(&mut self, now: Instant, random: f64) {
        self.planned = now;
        let half = self.interval / 2;
        self.due = now + half.min(LONGEST) + half.min(LONGEST).mul_f64(random);
    }

    /// Records an event after which the plan may have changed. The next request follows within 1/30 of the interval, but not before
    /// [`earliest`](Self::earliest).
    pub(super) fn hurry(&mut self, now: Instant, random: f64) {
        let from = now.max(self.earliest());
        self.due = self.due.min(from + self.spread().mul_f64(random));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_thousand_ranks_ask_at_times_that_are_spread_over_half_of_the_interval() {
        let (now, interval) = (Instant::now(), Duration::from_secs(300));
        let ranks = (0..1000).map(|rank| ReplanTimer::new(now, f64::from(rank) / 1000.0, interval));
        let mut per_second = [0; 301];
        for timer in ranks {
            per_second[(timer.due() - now).as_secs() as usize] += 1;
        }
        assert_eq!(per_second[..150].iter().sum::<i32>(), 0);
        assert!(per_second.iter().all(|asked| *asked <= 7), "{per_second:?}");
    }

    proptest! {
        #[test]
        fn an_event_is_followed_by_a_request_soon_and_never_delays_one(
            interval_ms in 1_u64..10_000_000, at in 0.0..2.0_f64, random in 0.0..1.0_f64, second in 0.0..1.0_f64,
        ) {
            let (start, interval) = (Instant::now(), Duration::from_millis(interval_ms));
            let mut timer = ReplanTimer::new(start, random, interval);
            let before = timer.due();
            prop_assert!((start + interval / 2..=start + interval).contains(&before));
            let now = start + interval.mul_f64(at);
            timer.hurry(now, second);
            prop_assert!(timer.due() <= before);
            prop_assert!(timer.due() <= now + interval / SPREAD * 2);
            prop_assert!(timer.due() >= start + interval / SPREAD);
            let first = timer.due();
            timer.hurry(now, second);
            prop_assert_eq!(timer.due(), first, "further events do not postpone the request");
        }
    }

    #[test]
    fn the_longest_interval_does_not_overflow() {
        let now = Instant::now();
        let mut timer = ReplanTimer::new(now, 1.0, Duration::MAX);
        timer.hurry(now, 1.0);
        timer.planned(now, 1.0);
        assert!(timer.due() > now);
    }
}
