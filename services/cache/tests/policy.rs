//! Hit ratios of the eviction policy on realistic orders.

mod simulator;

use simulator::{Choice, Reader, Trace};

const SHUFFLED: Reader = Reader { shuffled: true, speed: 1.0, seed: 1 };

#[test]
fn with_capacity_for_half_the_data_a_forecast_nearly_reaches_the_optimum() {
    for blocks in [200, 1000] {
        let trace = Trace::new(blocks, 12, &[SHUFFLED]);
        let ours = trace.hit_ratio(Choice::Forecast, 50);
        let best = trace.hit_ratio(Choice::Offline, 50);
        let least_recent = trace.hit_ratio(Choice::LeastRecentlyUsed, 50);
        assert!(ours >= 0.48, "{blocks} blocks: {ours}");
        assert!(ours <= best && ours >= 0.95 * best, "{blocks} blocks: {ours}, optimum {best}");
        assert!(least_recent < 0.6 * ours, "{blocks} blocks: {least_recent}, ours {ours}");
    }
}

#[test]
fn with_a_fixed_order_a_forecast_hits_what_fits_and_lru_hits_nothing() {
    let trace = Trace::new(400, 6, &[Reader { shuffled: false, ..SHUFFLED }]);
    for percent in [10, 25, 50, 75] {
        let ours = trace.hit_ratio(Choice::Forecast, percent);
        let best = trace.hit_ratio(Choice::Offline, percent);
        assert!(ours >= 0.95 * best, "{percent}%: {ours}, optimum {best}");
        assert!(trace.hit_ratio(Choice::LeastRecentlyUsed, percent) == 0.0);
    }
}

#[test]
fn with_two_jobs_at_different_speeds_a_forecast_nearly_reaches_the_optimum() {
    let slow = Reader { shuffled: true, speed: 0.37, seed: 2 };
    let trace = Trace::new(400, 8, &[SHUFFLED, slow]);
    for percent in [10, 25, 50, 75] {
        let ours = trace.hit_ratio(Choice::Forecast, percent);
        let best = trace.hit_ratio(Choice::Offline, percent);
        assert!(ours <= best && ours >= 0.95 * best, "{percent}%: {ours}, optimum {best}");
        let rough = trace.hit_ratio(Choice::RoughForecast, percent);
        assert!(rough >= 0.95 * best, "{percent}%: {rough} with wrong speeds, optimum {best}");
        for choice in [Choice::LeastRecentlyUsed, Choice::FirstIn] {
            assert!(trace.hit_ratio(choice, percent) < ours, "{percent}%: {choice:?}");
        }
    }
}
