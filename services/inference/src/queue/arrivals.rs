//! Arrival rate of requests.

#![deny(clippy::disallowed_methods, clippy::iter_over_hash_type)] // The clock is an argument; order is deterministic.

use std::{collections::VecDeque, time::Duration};

use super::Time;

/// Times of the latest arrivals.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    times: VecDeque<Time>,
}

impl Arrivals {
    /// Numbers of arrivals over which the rate is measured. The long span is steady, the short one reacts to a pause at once;
    /// the lower rate of the two counts.
    const SPANS: [usize; 2] = [4, 32];

    pub(super) fn record(&mut self, now: Time) {
        if self.times.len() == Self::SPANS[1] {
            self.times.pop_front();
        }
        self.times.push_back(now);
    }

    /// For each span, the number of arrivals after its first one, and the time of the first one.
    fn spans(&self) -> impl Iterator<Item = (f64, Time)> {
        Self::SPANS.into_iter().map(|span| {
            let count = span.min(self.times.len());
            let first = self.times.len().checked_sub(count).and_then(|at| self.times.get(at)).copied();
            (count.saturating_sub(1) as f64, first.unwrap_or_default())
        })
    }

    /// Arrivals per second, if no further request arrives until `now`.
    pub(super) fn rate(&self, now: Time) -> f64 {
        let rate = |(count, first): (f64, Time)| count / now.saturating_sub(first).as_secs_f64().max(1e-6);
        self.spans().map(rate).fold(f64::INFINITY, f64::min)
    }

    /// Time until which it pays to wait for further requests, if none arrives until then.
    ///
    /// Waiting for a time `t` delays each of the `waiting` requests by `t` and saves the `fixed` seconds of a separate batch
    /// for each of the `rate * t` requests that arrive. It pays while `waiting < rate * fixed`.
    pub(super) fn pays_until(&self, waiting: usize, fixed: f64) -> Time {
        let until = |(count, first): (f64, Time)| {
            let span = Duration::try_from_secs_f64(count * fixed / waiting.max(1) as f64);
            first.saturating_add(span.unwrap_or(Duration::MAX))
        };
        self.spans().map(until).min().unwrap_or_default()
    }
}
