//! Retries with backoff, up to a deadline.

use std::time::Duration;

use tokio::time::Instant;

use crate::Error;

/// Base of the exponential delay. The first delay is at most twice as long.
const BASE_DELAY: Duration = Duration::from_millis(50);
/// Upper bound of every delay.
const MAX_DELAY: Duration = Duration::from_secs(5);

/// The attempts of one call, on a number of servers, until a deadline.
pub(crate) struct Attempts {
    servers: usize,
    began: Instant,
    deadline: Instant,
    failed: u32,
    last: Option<Error>,
}

impl Attempts {
    /// Starts the time of `timeout` for a call that any of `servers` servers can answer.
    pub(crate) fn new(servers: usize, timeout: Duration) -> Self {
        let began = Instant::now();
        Self { servers, began, deadline: began + timeout, failed: 0, last: None }
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
        backoff(self.failed / servers, fastrand::f64()).min(remaining)
    }

    /// Returns the time after which no attempt starts.
    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
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

/// Returns the delay after round number `round`, counted from 1. `random`, from 0 to 1, places it between half of the upper
/// bound and the upper bound.
fn backoff(round: u32, random: f64) -> Duration {
    let bound = BASE_DELAY.saturating_mul(1 << round.min(10)).min(MAX_DELAY);
    bound.mul_f64(0.5 + random / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_maximum_with_jitter_of_one_half() {
        let bounds = [1, 2, 3, 6, 7, 1000].map(|round| backoff(round, 1.0).as_millis());
        assert_eq!(bounds, [100, 200, 400, 3200, 5000, 5000]);
        assert_eq!(backoff(3, 0.0).as_millis(), 200);
    }

    #[test]
    fn every_server_is_tried_before_the_first_delay() {
        let mut attempts = Attempts::new(3, Duration::from_secs(60));
        let delays: Vec<_> = (0..6).map(|_| attempts.delay_after(Error::protocol("down"))).collect();
        assert!(delays.iter().enumerate().all(|(attempt, delay)| delay.is_zero() != (attempt % 3 == 2)));
    }
}
