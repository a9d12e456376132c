//! Delays between attempts to open a dataset or to load a lookup index.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};

/// Delay before the first retry, without its random part.
const FIRST: Duration = Duration::from_secs(1);

/// Returns delays that double up to `max`. The iterator never ends. A random part of each delay spreads the retries of the servers of
/// a cluster.
pub(super) fn retry_delays(max: Duration) -> ExponentialBackoff {
    // The random part is at most as long as the rest of a delay.
    let max = max / 2;
    ExponentialBuilder::new()
        .with_min_delay(FIRST.min(max))
        .with_max_delay(max)
        .without_max_times()
        .with_jitter()
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_and_stay_below_the_maximum() {
        let secs = Duration::from_secs;
        let delays: Vec<Duration> = retry_delays(secs(60)).take(12).collect();
        for (delay, least) in delays.iter().zip([1, 2, 4, 8, 16, 30, 30]) {
            assert!((secs(least)..=secs(2 * least)).contains(delay), "{delays:?}");
        }
        assert!(delays.iter().all(|delay| *delay <= secs(60)), "{delays:?}");
        assert!(retry_delays(secs(1)).take(12).all(|delay| delay <= secs(1)));
    }
}
