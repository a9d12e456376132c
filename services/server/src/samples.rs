//! Samples of totals, and the rates between them.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// Time over which rates are averaged.
const OVER: Duration = Duration::from_secs(10);

/// Samples of totals, one per second.
#[derive(Debug)]
pub(crate) struct Samples<T> {
    /// Oldest first.
    samples: VecDeque<(Instant, T)>,
}

impl<T> Samples<T> {
    /// Takes the first sample of the totals at `now`.
    pub(crate) fn new(now: Instant, totals: T) -> Self {
        Self { samples: VecDeque::from([(now, totals)]) }
    }

    /// Takes a sample of the totals at `now`. Call about once per second.
    pub(crate) fn sample(&mut self, now: Instant, totals: T) {
        self.samples.push_back((now, totals));
        while self.samples.get(1).is_some_and(|(at, _)| now.saturating_duration_since(*at) >= OVER) {
            self.samples.pop_front();
        }
    }

    /// Totals of the latest sample.
    pub(crate) fn latest(&self) -> Option<&T> {
        self.samples.back().map(|(_, totals)| totals)
    }

    /// Increase of one total per second, averaged over the samples.
    pub(crate) fn rate(&self, total: impl Fn(&T) -> f64) -> f64 {
        let (Some((first, before)), Some((last, after))) = (self.samples.front(), self.samples.back()) else {
            return 0.0;
        };
        let seconds = last.saturating_duration_since(*first).as_secs_f64();
        if seconds > 0.0 { (total(after) - total(before)).max(0.0) / seconds } else { 0.0 }
    }
}
