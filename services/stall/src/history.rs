//! Buckets of the last minutes, second by second.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use crate::bucket::{Bucket, Buckets};

/// Ring buffer of [`Buckets`] with one slot per second.
#[derive(Debug)]
pub struct History {
    /// Start of second 0.
    origin: Instant,
    /// Number of the oldest kept second.
    first: u64,
    /// Time in each bucket, in seconds, for every kept second.
    seconds: VecDeque<[f32; Bucket::ALL.len()]>,
    /// Largest number of kept seconds.
    kept: usize,
}

/// One second of a [`History`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// End of the second.
    pub end: Instant,
    /// Time charged in this second. The sum of several trainers may exceed one second.
    pub buckets: Buckets,
}

impl History {
    /// Creates a history of the last `kept` seconds. `origin` must not be later than any time that is added.
    pub fn new(origin: Instant, kept: usize) -> Self {
        Self { origin, first: 0, seconds: VecDeque::new(), kept: kept.max(1) }
    }

    /// Adds time charged between `from` and `to`, distributed evenly over that interval.
    pub fn add(&mut self, from: Instant, to: Instant, charged: &Buckets) {
        if charged.sum().is_zero() {
            return;
        }
        let (from, to) = (self.since_origin(from), self.since_origin(to));
        let span = (to.saturating_sub(from)).as_secs_f64();
        let last = if span > 0.0 { (to.as_secs_f64().ceil() as u64).saturating_sub(1) } else { to.as_secs() };
        // Older seconds would be dropped immediately.
        let oldest = last.saturating_sub(self.kept as u64 - 1);
        for second in from.as_secs().max(oldest)..=last.max(from.as_secs()) {
            let fraction = if span > 0.0 {
                let begin = from.as_secs_f64().max(second as f64);
                let end = to.as_secs_f64().min(second as f64 + 1.0);
                ((end - begin) / span).max(0.0)
            } else {
                1.0
            };
            let Some(slot) = self.slot(second) else { continue };
            for (sum, (_, time)) in slot.iter_mut().zip(charged.iter()) {
                *sum += (time.as_secs_f64() * fraction) as f32;
            }
        }
    }

    /// Returns the `count` whole seconds before `now`, oldest first. Seconds without charges have empty buckets.
    pub fn before(&self, now: Instant, count: usize) -> Vec<Interval> {
        let end = self.since_origin(now).as_secs();
        (end.saturating_sub(count as u64)..end)
            .map(|second| Interval {
                end: self.origin + Duration::from_secs(second + 1),
                buckets: self.of_second(second),
            })
            .collect()
    }

    /// Returns the sum of the seconds that begin between `from` and `to`.
    pub fn sum(&self, from: Instant, to: Instant) -> Buckets {
        let mut sum = Buckets::default();
        for second in self.since_origin(from).as_secs()..self.since_origin(to).as_secs() {
            sum += self.of_second(second);
        }
        sum
    }

    fn since_origin(&self, time: Instant) -> Duration {
        time.saturating_duration_since(self.origin)
    }

    fn of_second(&self, second: u64) -> Buckets {
        let mut buckets = Buckets::default();
        let index = second.checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
        if let Some(slot) = index.and_then(|index| self.seconds.get(index)) {
            for (bucket, seconds) in Bucket::ALL.into_iter().zip(slot) {
                buckets[bucket] = Duration::from_secs_f32(seconds.max(0.0));
            }
        }
        buckets
    }

    /// Returns the slot of a second, `None` if it is older than the kept seconds.
    fn slot(&mut self, second: u64) -> Option<&mut [f32; Bucket::ALL.len()]> {
        let next = self.first + self.seconds.len() as u64;
        if self.seconds.is_empty() || second >= next + self.kept as u64 {
            self.seconds.clear();
            self.first = second;
        }
        while self.first + (self.seconds.len() as u64) <= second {
            self.seconds.push_back([0.0; Bucket::ALL.len()]);
            if self.seconds.len() > self.kept {
                self.seconds.pop_front();
                self.first += 1;
            }
        }
        let index = usize::try_from(second.checked_sub(self.first)?).ok()?;
        self.seconds.get_mut(index)
    }
}

#[cfg(test)]
mod tests;
