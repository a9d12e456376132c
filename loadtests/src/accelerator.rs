//! An emulated accelerator, by MLPerf Storage's rule: compute is a wait, and utilization (AU) is the time it
//! computed over the time it took, the first batch excluded.
//!
//! It keeps its own time. A batch that already lay there begins when the one before it ended, however late
//! the thread woke from that wait: a sleep is some 60 us too long, which is much beside 375.

use std::time::{Duration, Instant};

/// One emulated accelerator.
#[derive(Debug)]
pub(crate) struct Accelerator {
    compute: Duration,
    /// When the batch it works on is done.
    done: Option<Instant>,
    /// When the first batch was done: the beginning of the time that counts.
    since: Option<Instant>,
    /// Batches that count.
    counted: u32,
}

impl Accelerator {
    /// One that takes `compute` for a batch.
    pub(crate) fn new(compute: Duration) -> Self {
        Self { compute, done: None, since: None, counted: 0 }
    }

    /// Begins a batch that was taken at `now` and had been waiting, or had been waited for. Returns when it
    /// will be done.
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

    /// Time computed over time passed at `now`, when the last batch is done; `None` with less than two.
    pub(crate) fn utilization(&self, now: Instant) -> Option<f64> {
        let passed = now.max(self.done?).saturating_duration_since(self.since?);
        let computed = self.compute * self.counted;
        (self.counted > 0 && !passed.is_zero()).then(|| computed.as_secs_f64() / passed.as_secs_f64())
    }
}

/// Waits until `deadline` without burning the core.
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
    fn batches_that_wait_keep_it_fully_used() {
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
    fn waiting_for_batches_counts_against_it() {
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
    fn it_is_never_used_more_than_the_clock_allows() {
        let start = Instant::now();
        let mut accelerator = Accelerator::new(COMPUTE);
        accelerator.begin(start, false);
        accelerator.begin(start + ms(1), true);
        // Twice as late as its own time says.
        assert_eq!(accelerator.utilization(start + ms(30)), Some(0.5));
    }
}
