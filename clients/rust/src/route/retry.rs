//! Retries with backoff, up to a deadline.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use tokio::time::Instant;

use crate::Error;

/// Delays of 50 ms to 2.5 s, which double from round to round. The jitter adds up to the delay itself, so that no delay exceeds
/// 5 s.
const DELAYS: ExponentialBuilder = ExponentialBuilder::new()
    .with_jitter()
    .with_min_delay(Duration::from_millis(50))
    .with_max_delay(Duration::from_millis(2500))
    .without_max_times();

/// The attempts of one call, on a number of servers, until a deadline.
pub(crate) struct Attempts {
    servers: usize,
    began: Instant,
    /// Time after which no attempt starts.
    pub(crate) deadline: Instant,
    failed: u32,
    delays: ExponentialBackoff,
    last: Option<Error>,
}

impl Attempts {
    /// Starts the time of `timeout` for a call that any of `servers` servers can answer.
    pub(crate) fn new(servers: usize, timeout: Duration) -> Self {
        let began = Instant::now();
        Self { servers, began, deadline: began + timeout, failed: 0, delays: DELAYS.build(), last: None }
    }

    /// Runs `attempt` until it succeeds, fails with an error that is not transient, or the deadline expires.
    pub(crate) async fn run<T, F: Future<Output = Result<T, Error>>>(
        mut self,
        attempt: impl Fn() -> F,
    ) -> Result<T, Error> {
        loop {
            let error = match tokio::time::timeout_at(self.deadline, attempt()).await {
                Ok(Err(error)) if error.is_transient() => error,
                Ok(done) => return done,
                Err(_) => return Err(self.deadline_exceeded()),
            };
            tokio::time::sleep(self.delay_after(error)).await;
        }
    }

    /// Runs a single `attempt`, until the deadline.
    pub(crate) async fn run_once<T>(
        self,
        attempt: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let done = tokio::time::timeout_at(self.deadline, attempt).await;
        done.unwrap_or_else(|_| Err(self.deadline_exceeded()))
    }

    /// Records a failed attempt and returns the delay before the next one.
    ///
    /// The delay is zero until every server has been tried. It then doubles for each round over the servers, with jitter, so
    /// that the ranks of a job do not reconnect at the same time. It never exceeds the remaining time.
    pub(crate) fn delay_after(&mut self, error: Error) -> Duration {
        self.failed += 1;
        self.last = Some(error);
        let servers = u32::try_from(self.servers).unwrap_or(u32::MAX);
        if !self.failed.is_multiple_of(servers) {
            return Duration::ZERO;
        }
        let remaining = self.deadline.saturating_duration_since(Instant::now());
        self.delays.next().unwrap_or(remaining).min(remaining)
    }

    /// Returns the final error after the deadline. Includes the error of the last attempt, if one failed.
    pub(crate) fn deadline_exceeded(self) -> Error {
        let last = self.last.unwrap_or_else(|| Error::protocol("the server did not respond"));
        Error::RetryDeadlineExceeded {
            waited: self.began.elapsed(),
            attempts: self.failed.max(1),
            last: Box::new(last),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_maximum_with_jitter_of_one_half() {
        let mut attempts = Attempts::new(1, Duration::from_secs(3600));
        for longest in [100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000] {
            let delay = attempts.delay_after(Error::protocol("down")).as_secs_f64() * 1e3;
            // The delays are doubled in single precision.
            let bounds = f64::from(longest) * 0.499..=f64::from(longest) * 1.001;
            assert!(bounds.contains(&delay), "{delay} ms is not in {bounds:?}");
        }
    }

    #[test]
    fn no_delay_exceeds_the_remaining_time() {
        let mut attempts = Attempts::new(1, Duration::from_millis(10));
        assert!(attempts.delay_after(Error::protocol("down")) <= Duration::from_millis(10));
    }

    #[test]
    fn every_server_is_tried_before_the_first_delay() {
        let mut attempts = Attempts::new(3, Duration::from_secs(60));
        let delays: Vec<_> = (0..6).map(|_| attempts.delay_after(Error::protocol("down"))).collect();
        assert!(delays.iter().enumerate().all(|(attempt, delay)| delay.is_zero() != (attempt % 3 == 2)));
    }
}
