//! Promises of lookups and queues.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

mod block_reads;
mod chaos;
mod faulty_writer;
mod fixture;
mod lookups;
mod queues;
mod snapshots;
mod tenants;
mod too_large;
mod views;
