//! How long a failing disk is left alone.

use std::time::Duration;

use tokio::time::Instant;

/// The first pause.
const FIRST: Duration = Duration::from_secs(1);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(60);

/// Pauses after failures: 1 s, doubling to 60 s with each failure after a pause.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    pause: Duration,
    until: Option<Instant>,
}

impl Backoff {
    pub(crate) fn pausing(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Failures of what was begun before the pause don't lengthen it.
    pub(crate) fn failed(&mut self, now: Instant) {
        if self.pausing(now) {
            return;
        }
        self.pause = (self.pause * 2).clamp(FIRST, LONGEST);
        self.until = Some(now + self.pause);
    }

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
}
