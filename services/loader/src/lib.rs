//! The training path: order and frames in, finished batches out.
//!
//! ```text
//! v1::Train --> Job ------------------------------> Batches --> WireBatch, WireBatch, ...
//!               (view, steps, order: all pure)      |    ^
//!                                                   v    | gather
//!                     storage::Reader --> Windows --> Frames
//!                     fetch, decode       reserve     one block of one view,
//!                                                     row-major, in cache::Memory
//! ```
//!
//! - [`Job`]: a request resolved against a snapshot. From here on every batch is a pure function of
//!   (epoch, step, rank).
//! - [`View`]: what the job wants of a row, and how that row lies in memory ([`Frame`]) and on the wire.
//! - [`Loader`]: the running part. It owns the memory tier and the CPU pool, loads the windows of all
//!   jobs, and opens [`Batches`].
//! - [`WireBatch`]: one assembled batch, already in its final Arrow IPC form.
//!
//! This crate does not choose the order (`forebay-plan` does) and names no transport.

#![deny(unsafe_code)]

mod activity;
mod ahead;
mod aside;
mod assemble;
mod batches;
mod canonical;
mod columns;
mod compute;
mod config;
mod counts;
mod cpu;
mod error;
mod forecast;
mod frame;
mod groups;
mod job;
mod label;
mod loader;
mod locate;
mod pins;
mod prefetch;
mod producer;
mod prune;
mod resident;
mod space;
mod tensor;
mod view;
mod window;
mod wire;

pub use activity::StageWork;
pub use aside::Aside;
pub use assemble::{Assembling, assemble};
pub use batches::{Batches, Made};
pub use config::{Config, Delays, DiskWrites};
pub use counts::{Counted, Counts};
pub use cpu::{Flow, Pool, Priority, Scheduling, Submitted};
pub use error::Error;
pub use frame::{Frame, FrameBuilder, RowRef};
pub use job::{Job, check_mixture};
pub use loader::{Loader, Waiting, Warmed};
pub use locate::StoredRow;
pub use prefetch::{prefetch, prefetch_value};
pub use resident::Resident;
pub use view::{View, find_column, near};
pub use wire::{Body, WireBatch};
