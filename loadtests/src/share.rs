//! Search for the largest share of a simulated accelerator that is kept busy.
//!
//! Utilization decreases with the share. The search brackets the largest share with a utilization of [`TARGET`], starting at a
//! guess, and then bisects. Every probe consists of real runs.

use anyhow::Context;
use serde::Serialize;

use crate::stats::Spread;

/// Minimum utilization: MLPerf Storage's limit for recommenders.
pub(crate) const TARGET: f64 = 0.70;
/// Ratio of the bracket at which the search ends.
const CLOSE: f64 = 1.03;
const STEP: f64 = 1.25;
const MAX_PROBES: usize = 14;
const RUNS_PER_PROBE: usize = 3;

/// A share and its utilization.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Probe {
    pub(crate) share: f64,
    pub(crate) utilization: f64,
}

/// Result of a search.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Found {
    /// The largest share that reached the target.
    pub(crate) best: Option<Probe>,
    pub(crate) probes: Vec<Probe>,
}

/// Estimates the share at which the utilization equals [`TARGET`].
pub(crate) fn guess(compute_seconds: f64, delivery_seconds: f64) -> f64 {
    compute_seconds / (TARGET * delivery_seconds)
}

/// Searches the largest share, starting at `guess`. `one_run` returns the utilization of a share, of which the median of
/// [`RUNS_PER_PROBE`] runs counts.
pub(crate) fn search(
    guess: f64,
    mut one_run: impl FnMut(f64) -> anyhow::Result<f64>,
) -> anyhow::Result<Found> {
    let mut found = Found { best: None, probes: Vec::new() };
    let (mut held, mut failed): (Option<f64>, Option<f64>) = (None, None);
    let mut share = guess;
    while found.probes.len() < MAX_PROBES {
        let utilizations = (0..RUNS_PER_PROBE).map(|_| one_run(share)).collect::<anyhow::Result<Vec<_>>>()?;
        let utilization = Spread::of(utilizations).context("a utilization is a number")?.median;
        let probe = Probe { share, utilization };
        found.probes.push(probe);
        if probe.utilization >= TARGET {
            held = Some(share);
            found.best = Some(probe);
        } else {
            failed = Some(share);
        }
        share = match (held, failed) {
            (Some(low), Some(high)) if high / low <= CLOSE => break,
            (Some(low), Some(high)) => (low * high).sqrt(),
            (Some(low), None) => low * STEP,
            (None, Some(high)) => high / STEP,
            (None, None) => unreachable!("a probe reaches the target or fails"),
        };
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Utilization with an input that suffices for `capacity` accelerators.
    fn utilization(capacity: f64, share: f64) -> f64 {
        (capacity / share).min(1.0)
    }

    #[test]
    fn the_largest_share_is_found_from_any_guess() {
        let capacity = 0.4;
        for first in [0.05, 0.2, capacity / TARGET, 1.0, 3.0] {
            let found = search(first, |share| Ok(utilization(capacity, share))).expect("no run fails");
            let best = found.best.expect("a share that reaches the target");
            let largest = capacity / TARGET;
            assert!(best.share <= largest && best.share > largest / 1.04, "{first}: {best:?}");
            assert!(best.utilization >= TARGET);
            assert!(found.probes.len() <= MAX_PROBES);
        }
    }

    #[test]
    fn the_guess_is_right_for_an_input_of_constant_speed() {
        // A batch every 2 ms, for an accelerator of 1 ms a batch: AU = 1 ms / share / 2 ms.
        let share = guess(0.001, 0.002);
        assert!((0.001 / share / 0.002 - TARGET).abs() < 1e-9);
    }

    #[test]
    fn a_search_without_success_ends_without_a_share() {
        let found = search(1.0, |_| Ok(0.1)).expect("no run fails");
        assert_eq!((found.best, found.probes.len()), (None, MAX_PROBES));
    }

    #[test]
    fn a_failed_run_ends_the_search() {
        search(1.0, |_| anyhow::bail!("failed")).expect_err("the run's own error");
    }
}
