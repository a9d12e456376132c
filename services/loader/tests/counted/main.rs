//! What is done how often. The counters are the process's, so each of these tests waits until it is the only one.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

mod ahead;
#[path = "../fixture/mod.rs"]
mod fixture;
mod mixtures;
mod tiers;
