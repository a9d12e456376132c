//! Guarantees of the client, tested with real servers.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

#[path = "../common/mod.rs"]
mod common;
mod docs;
mod failures;
mod locations;
mod lookups;
mod protocols;
mod queues;
mod server;
mod several_servers;
mod training;
mod values;
