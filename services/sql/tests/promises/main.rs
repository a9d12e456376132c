//! What is promised of expressions. Not within the crate: it would be compiled once more, with all of the SQL planner.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

mod compile;
mod prune;
