//! Promises of expressions. An integration test, because unit tests would compile the SQL planner a second time.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

mod changed;
mod compile;
mod exact;
mod functions;
mod fuzzed;
mod identity;
mod limits;
mod prune;
mod rounding;
mod rows;
mod sums;

use proptest::test_runner::Config;

/// Configuration of a property test with `number` cases. The environment variable PROPTEST_CASES has precedence.
fn cases(number: u32) -> Config {
    let config = Config::default();
    if std::env::var_os("PROPTEST_CASES").is_some() { config } else { Config { cases: number, ..config } }
}
