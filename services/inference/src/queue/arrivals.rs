//! Arrival rates of requests: that of admitted ones, by which a batch waits for more requests, and that of offered ones, for forecasts
//! and autoscalers.

#![deny(clippy::disallowed_methods, clippy::iter_over_hash_type)] // The clock is an argument; order is deterministic.

use std::{collections::VecDeque, time::Duration};

use super::Time;

/// Times of the latest arrivals, and their number in each of the last seconds.
///
/// Offered requests are the admitted ones, and those that were refused only because the queue was too long. A request that no queue
/// could answer is neither.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    /// Times of the latest offered requests.
    offered: VecDeque<Time>,
    /// Times of the latest admitted requests.
    admitted: VecDeque<Time>,
    /// Time of the first arrival after a pause of at least [`MEAN_SECONDS`](Self::MEAN_SECONDS).
    first: Time,
    /// Pairs of a second and its number of arrivals: the current second, and those of the last [`MEAN_SECONDS`](Self::MEAN_SECONDS) that
    /// had arrivals.
    seconds: VecDeque<(u64, u64)>,
}

impl Arrivals {
    /// Numbers of arrivals over which the rate is measured. The long span is steady, the short one reacts to a pause at once;
    /// the lower rate of the two counts.
    const SPANS: [usize; 2] = [4, 32];

    /// Number of whole seconds of the mean rate, in addition to the current one. If requests arrive at
    /// random times, the rate of only a few of them often differs from the mean by a third.
    const MEAN_SECONDS: u64 = 10;

    /// Records a request that was admitted, or refused because the queue was too long.
    pub(super) fn offered(&mut self, now: Time) {
        let second = now.as_secs();
        self.seconds.retain(|(old, _)| old + Self::MEAN_SECONDS >= second);
        if self.seconds.is_empty() {
            self.first = now;
        }
        match self.seconds.back_mut() {
            Some((last, count)) if *last == second => *count += 1,
            _ => self.seconds.push_back((second, 1)),
        }
        push(&mut self.offered, now);
    }

    /// Records an offered request that was admitted.
    pub(super) fn admitted(&mut self, now: Time) {
        push(&mut self.admitted, now);
    }

    /// Removes the last admitted request, which the queue has no memory for.
    pub(super) fn withdraw(&mut self) {
        self.admitted.pop_back();
    }

    /// For each span, the number of arrivals after its first one, and the time of the first one.
    fn spans(times: &VecDeque<Time>) -> impl Iterator<Item = (f64, Time)> {
        Self::SPANS.into_iter().map(|span| {
            let count = span.min(times.len());
            let first = times.len().checked_sub(count).and_then(|at| times.get(at)).copied();
            (count.saturating_sub(1) as f64, first.unwrap_or_default())
        })
    }

    /// Offered requests per second, if no further request arrives until `now`.
    pub(super) fn rate(&self, now: Time) -> f64 {
        let rate = |(count, first): (f64, Time)| count / now.saturating_sub(first).as_secs_f64().max(1e-6);
        Self::spans(&self.offered).map(rate).fold(f64::INFINITY, f64::min)
    }

    /// Mean number of offered requests per second over the current second and the ten whole seconds before it. If nothing
    /// arrived for that long, the period begins at the first arrival after the pause. It is never shorter than one second.
    pub(super) fn mean_rate(&self, now: Time) -> f64 {
        let begin = now.as_secs().saturating_sub(Self::MEAN_SECONDS);
        let counted = self.seconds.iter().filter(|(second, _)| *second >= begin);
        let count: u64 = counted.map(|(_, count)| count).sum();
        let since = Time::from_secs(begin).max(self.first);
        count as f64 / now.saturating_sub(since).as_secs_f64().max(1.0)
    }

    /// Time until which it pays to wait for further requests, if none is admitted until then.
    ///
    /// Waiting for a time `t` delays each of the `waiting` requests by `t` and saves the `fixed` seconds of a separate batch
    /// for each of the `rate * t` requests that arrive. It pays while `waiting < rate * fixed`.
    pub(super) fn pays_until(&self, waiting: usize, fixed: f64) -> Time {
        let until = |(count, first): (f64, Time)| {
            let span = Duration::try_from_secs_f64(count * fixed / waiting.max(1) as f64);
            first.saturating_add(span.unwrap_or(Duration::MAX))
        };
        Self::spans(&self.admitted).map(until).min().unwrap_or_default()
    }
}

/// Appends a time. Keeps as many as the longest span has.
fn push(times: &mut VecDeque<Time>, now: Time) {
    if times.len() == Arrivals::SPANS[1] {
        times.pop_front();
    }
    times.push_back(now);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Arrivals at random, `per_second` on average, for `seconds`.
    fn at_random(per_second: f64, seconds: u64) -> (Arrivals, Time) {
        let (mut arrivals, mut now) = (Arrivals::default(), Time::ZERO);
        for number in 0.. {
            let random = xxhash_rust::xxh3::xxh3_64(&u64::to_le_bytes(number)) as f64 / u64::MAX as f64;
            now += Time::from_secs_f64(-(1.0 - random).ln() / per_second);
            if now.as_secs() >= seconds {
                break;
            }
            arrivals.offered(now);
        }
        (arrivals, Time::from_secs(seconds))
    }

    #[test]
    fn the_mean_rate_of_requests_that_arrive_at_random_is_their_rate() {
        for per_second in [50.0, 3000.0] {
            for seconds in [5, 10, 60] {
                let (arrivals, now) = at_random(per_second, seconds);
                let ratio = arrivals.mean_rate(now) / per_second;
                assert!((0.85..1.15).contains(&ratio), "{per_second}/s for {seconds} s: {ratio}");
            }
        }
    }

    #[test]
    fn the_mean_rate_falls_to_zero_ten_seconds_after_the_last_arrival() {
        let (arrivals, now) = at_random(100.0, 30);
        let rates: Vec<_> = (0..13).map(|later| arrivals.mean_rate(now + Time::from_secs(later))).collect();
        assert!(rates.is_sorted_by(|rate, later| rate >= later), "{rates:?}");
        assert!(rates[9] > 0.0 && rates[11] == 0.0, "{rates:?}");
    }

    #[test]
    fn the_mean_rate_after_a_pause_does_not_include_the_pause() {
        let (mut arrivals, end) = at_random(100.0, 30);
        let begin = end + Time::from_secs(60);
        for number in 0..200 {
            arrivals.offered(begin + Time::from_millis(10 * number));
        }
        let rate = arrivals.mean_rate(begin + Time::from_secs(2));
        assert!((99.0..101.0).contains(&rate), "{rate}");
    }

    #[test]
    fn the_rate_without_arrivals_is_zero_and_one_arrival_counts_as_one_a_second() {
        let mut arrivals = Arrivals::default();
        assert_eq!(arrivals.mean_rate(Time::from_secs(100)), 0.0);
        arrivals.offered(Time::from_secs(100));
        assert_eq!(arrivals.mean_rate(Time::from_secs(100)), 1.0);
    }
}
