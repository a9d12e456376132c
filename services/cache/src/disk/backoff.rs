//! Backoff after write failures.

use std::time::Duration;

use tokio::time::Instant;

/// Duration of the first pause.
const FIRST: Duration = Duration::from_secs(1);
/// Maximum duration of a pause.
const LONGEST: Duration = Duration::from_secs(60);

/// Exponential backoff: the pause after a failure is 1 s and doubles with each further failure, up to 60 s.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    pause: Duration,
    until: Option<Instant>,
    is_stopped: bool,
}

impl Backoff {
    /// True during a pause.
    pub(crate) fn pausing(&self, now: Instant) -> bool {
        self.is_stopped || self.until.is_some_and(|until| now < until)
    }

    /// Starts a pause that lasts until [`succeeded`](Self::succeeded) is called.
    pub(crate) fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// Starts a pause. A failure during a pause, of an operation that began earlier, has no effect.
    pub(crate) fn failed(&mut self, now: Instant) {
        if self.pausing(now) {
            return;
        }
        self.pause = (self.pause * 2).clamp(FIRST, LONGEST);
        self.until = Some(now + self.pause);
    }

    /// Resets the backoff.
    pub(crate) fn succeeded(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_to_a_minute_and_a_success_ends_them() {
        let mut backoff = Backoff::default();
        let mut now = Instant::now();
        let mut pauses = Vec::new();
        for _ in 0..8 {
            backoff.failed(now);
            backoff.failed(now);
            let pause = (1..100).find(|&seconds| !backoff.pausing(now + Duration::from_secs(seconds)));
            pauses.push(pause.unwrap());
            now += Duration::from_secs(*pauses.last().unwrap());
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        backoff.succeeded();
        assert!(!backoff.pausing(now));
    }

    #[test]
    fn a_stop_lasts_until_a_success() {
        let mut backoff = Backoff::default();
        let now = Instant::now();
        backoff.stop();
        backoff.failed(now);
        assert!(backoff.pausing(now + Duration::from_secs(3600)));
        backoff.succeeded();
        assert!(!backoff.pausing(now));
    }
}
