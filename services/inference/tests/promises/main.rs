//! What lookups and queues promise.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

mod lookups;
mod queue_simulation;
