//! What a loader promises, without a transport. One binary, for each is linked with everything.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

mod assembly;
#[path = "../fixture/mod.rs"]
mod fixture;
mod locate;
mod streams;
mod views;
