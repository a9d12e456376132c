//! Promises of the storage crate about datasets, snapshots, columns and pruning.

#![allow(clippy::unwrap_used)] // Test helpers fail by panicking.

mod amplification;
mod checksums;
mod columns;
#[path = "../common/mod.rs"]
mod common;
mod datasets;
mod file_names;
mod footer_files;
mod hints;
mod kinds;
mod memory;
mod odd_files;
mod pruning;
mod retries;
mod snapshots;
