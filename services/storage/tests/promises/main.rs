//! What storage promises of files and stores.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

mod columns;
#[path = "../common/mod.rs"]
mod common;
mod datasets;
mod pruning;
mod snapshots;
