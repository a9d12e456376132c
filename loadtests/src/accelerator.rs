//! A simulated accelerator with MLPerf Storage's rule: it sleeps instead of computing, and its utilization (AU) is the compute
//! time divided by the elapsed time, without the first batch.
//!
//! The accelerator has its own clock. If a batch was already available, it begins at the end of the previous one, even if the
//! thread woke up later: a sleep is about 60 us too long, compared with 375 us of compute time.

use std::time::{Duration, Instant};

/// A simulated accelerator.
#[derive(Debug)]
pub(crate) struct Accelerator {
    compute: Duration,
    /// End of the current batch.
    done: Option<Instant>,
    /// End of the first batch, which begins the measured time.
    since: Option<Instant>,
    /// Number of measured batches.
    counted: u32,
}

impl Accelerator {
    /// Creates an accelerator that takes `compute` per batch.
    pub(crate) fn new(compute: Duration) -> Self {
        Self { compute, done: None, since: None, counted: 0 }
    }

    /// Begins a batch that was received at `now`. `was_waiting` is true if the batch was available before. Returns the end of
    /// its computation.
    pub(crate) fn begin(&mut self, now: Instant, was_waiting: bool) -> Instant {
        let start = match self.done {
            Some(done) if was_waiting || done > now => done,
            _ => now,
        };
        let done = start + self.compute;
        self.done = Some(done);
        match self.since {
            None => self.since = Some(done),
            Some(_) => self.counted += 1,
        }
        done
    }

    /// Returns the utilization at `now`, the end of the last batch. `None` with fewer than two batches.
    pub(crate) fn utilization(&self, now: Instant) -> Option<f64> {
        let passed = now.max(self.done?).saturating_duration_since(self.since?);
        let computed = self.compute * self.counted;
        (self.counted > 0 && !passed.is_zero()).then(|| computed.as_secs_f64() / passed.as_secs_f64())
    }
}

/// Sleeps until `deadline`.
pub(crate) fn wait_until(deadline: Instant) {
    let left = deadline.saturating_duration_since(Instant::now());
    if !left.is_zero() {
        std::thread::sleep(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMPUTE: Duration = Duration::from_millis(10);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn available_batches_give_full_utilization() {
        let start = Instant::now();
        let mut accelerator = Accelerator::new(COMPUTE);
        accelerator.begin(start, false);
        for batch in 1..=10 {
            // Woken 3 ms late each time.
            accelerator.begin(start + COMPUTE * batch + ms(3), true);
        }
        let end = start + COMPUTE * 11;
        assert_eq!(accelerator.utilization(end), Some(1.0));
    }

    #[test]
    fn waiting_for_batches_reduces_the_utilization() {
        let start = Instant::now();
        let mut accelerator = Accelerator::new(COMPUTE);
        for batch in 0..=10 {
            accelerator.begin(start + COMPUTE * 2 * batch, false);
        }
        assert_eq!(accelerator.utilization(start + COMPUTE * 21), Some(0.5));
    }

    #[test]
    fn the_first_batch_does_not_count() {
        let start = Instant::now();
        let mut accelerator = Accelerator::new(COMPUTE);
        accelerator.begin(start + ms(5000), false);
        assert_eq!(accelerator.utilization(start + ms(5010)), None);
        accelerator.begin(start + ms(5010), true);
        assert_eq!(accelerator.utilization(start + ms(5020)), Some(1.0));
    }

    #[test]
    fn the_utilization_never_exceeds_the_elapsed_time() {
        let start = Instant::now();
        let mut accelerator = Accelerator::new(COMPUTE);
        accelerator.begin(start, false);
        accelerator.begin(start + ms(1), true);
        // The end is at twice the compute time.
        assert_eq!(accelerator.utilization(start + ms(30)), Some(0.5));
    }
}
