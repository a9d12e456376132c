//! Guarantees of the loader, without a transport. One binary, because each test binary links all dependencies.

#![allow(clippy::unwrap_used)] // Test helpers fail by panicking.

mod assembly;
mod contradictions;
mod decode_order;
#[path = "../fixture/mod.rs"]
mod fixture;
#[path = "../../../storage/tests/common/forward.rs"]
mod forward;
mod hanging_store;
mod labels;
mod locate;
mod nan_bits;
mod partitions;
mod progress;
mod same_bytes;
mod state;
mod streams;
mod tenants;
mod understated;
mod views;
