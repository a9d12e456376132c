//! Promises of expressions. An integration test, because unit tests would compile the SQL planner a second time.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

mod compile;
mod fuzzed;
mod identity;
mod prune;
mod rows;
