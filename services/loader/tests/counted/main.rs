//! Tests that count operations. The counters are process-wide, so each test waits for exclusive use of them.

#![allow(clippy::unwrap_used)] // Test helpers fail by panicking.

mod ahead;
mod chunk_sizes;
mod cold;
mod damaged_pages;
#[path = "../fixture/mod.rs"]
mod fixture;
mod mixtures;
mod partitions;
mod pins;
mod tiers;
