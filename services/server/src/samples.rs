//! Samples of totals that never decrease, and the rates between them.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// Time over which rates are averaged.
const OVER: Duration = Duration::from_secs(10);

/// Samples of totals, one per second.
///
/// The totals count from the start of their owner and never decrease. A sum over objects that come and go, such as sessions, is no total: it
/// decreases when one of them is removed.
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

    /// Increase of one total per second, averaged over the samples.
    pub(crate) fn rate(&self, total: impl Fn(&T) -> f64) -> f64 {
        let (Some((first, before)), Some((last, after))) = (self.samples.front(), self.samples.back()) else {
            return 0.0;
        };
        let seconds = last.saturating_duration_since(*first).as_secs_f64();
        let increase = total(after) - total(before);
        debug_assert!(increase >= 0.0, "a total decreased by {}", -increase);
        if seconds > 0.0 { increase / seconds } else { 0.0 }
    }
}
