//! Shared fixtures of the tests.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// Configuration of property tests with a fixed seed, so that every run is the same.
pub(crate) fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        rng_seed: RngSeed::Fixed(1),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// Number of items in a block: often 0, mostly few, sometimes many.
pub(crate) fn block() -> impl Strategy<Value = u32> {
    prop_oneof![2 => Just(0), 4 => 1u32..8, 2 => 8u32..300, 1 => 300u32..3000]
}

/// Deviation of counts from a uniform distribution: chi-square as a normal deviate. Values above 5 are not chance.
pub(crate) fn deviation_from_uniform(counts: &[u32]) -> f64 {
    let total: f64 = counts.iter().copied().map(f64::from).sum();
    let expected = total / counts.len() as f64;
    let chi_square: f64 = counts.iter().map(|&count| (f64::from(count) - expected).powi(2) / expected).sum();
    let freedom = (counts.len() - 1) as f64;
    // Wilson and Hilferty: the cube root of chi-square is close to normal, also with few degrees of freedom.
    let variance = 2.0 / (9.0 * freedom);
    ((chi_square / freedom).cbrt() - (1.0 - variance)) / variance.sqrt()
}
