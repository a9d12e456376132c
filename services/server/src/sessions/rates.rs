//! Totals sent, and recent rates.

use std::{
    collections::VecDeque,
    ops::AddAssign,
    time::{Duration, Instant},
};

/// Time over which rates are averaged.
const OVER: Duration = Duration::from_secs(10);

/// Totals sent since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) batches: u64,
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
}

impl AddAssign for Sent {
    fn add_assign(&mut self, other: Self) {
        self.batches += other.batches;
        self.rows += other.rows;
        self.bytes += other.bytes;
    }
}

/// Samples of the totals, one per second.
#[derive(Debug)]
pub(crate) struct Rates {
    samples: VecDeque<(Instant, Sent)>,
}

impl Rates {
    pub(crate) fn new(now: Instant) -> Self {
        Self { samples: VecDeque::from([(now, Sent::default())]) }
    }

    /// Takes a sample of the totals at `now`.
    pub(super) fn sample(&mut self, now: Instant, sent: Sent) {
        self.samples.push_back((now, sent));
        while self.samples.get(1).is_some_and(|(at, _)| now.saturating_duration_since(*at) >= OVER) {
            self.samples.pop_front();
        }
    }

    /// Takes a sample of the totals of a group. Totals decrease when members are removed; then the samples restart.
    pub(super) fn sample_group(&mut self, now: Instant, sent: Sent) {
        if self.samples.back().is_some_and(|(_, last)| last.bytes > sent.bytes) {
            self.samples.clear();
        }
        self.sample(now, sent);
    }

    pub(crate) fn batches_per_second(&self) -> f64 {
        self.rate(|sent| sent.batches)
    }

    pub(crate) fn rows_per_second(&self) -> f64 {
        self.rate(|sent| sent.rows)
    }

    pub(crate) fn bytes_per_second(&self) -> f64 {
        self.rate(|sent| sent.bytes)
    }

    fn rate(&self, of: impl Fn(&Sent) -> u64) -> f64 {
        let (Some((first, before)), Some((last, after))) = (self.samples.front(), self.samples.back()) else {
            return 0.0;
        };
        let seconds = last.saturating_duration_since(*first).as_secs_f64();
        if seconds > 0.0 { of(after).saturating_sub(of(before)) as f64 / seconds } else { 0.0 }
    }
}
