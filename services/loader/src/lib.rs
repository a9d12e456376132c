//! Training path: turns a request and stored blocks into finished batches.
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
//! - [`Job`]: a request resolved against a snapshot. Every batch of a job is a pure function of (epoch, step, rank).
//! - [`View`]: the columns and tensors of a job, and their layout in memory ([`Frame`]) and on the wire.
//! - [`Loader`]: the running service. Owns the memory tier and the CPU pool, loads the windows of all jobs, and
//!   opens [`Batches`].
//! - [`WireBatch`]: one assembled batch in its final Arrow IPC form.
//!
//! The order is chosen by `forebay-plan`. This crate does not depend on a transport.

#![deny(unsafe_code)]

mod activity;
mod ahead;
mod aside;
mod assemble;
mod batches;
mod block_reader;
mod canonical;
mod columns;
mod compute;
mod config;
mod counts;
mod cpu;
mod error;
mod fault_injection;
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
mod quoted;
mod resident;
mod space;
mod tensor;
mod view;
mod window;
mod wire;

pub use activity::{Purpose, StageWork};
pub use aside::Aside;
pub use assemble::{Assembling, assemble};
pub use batches::{Batches, Made};
pub use block_reader::{BlockColumns, BlockReader};
pub use config::{Config, DiskWrites};
pub use counts::{Counted, Counts};
pub use cpu::{Flow, Pool, Priority, Scheduling, Submitted};
pub use error::Error;
pub use fault_injection::FaultInjection;
pub use forebay_sql::Identity;
pub use frame::{Frame, FrameBuilder, RowRef};
pub use job::{Job, check_mixture};
pub use loader::{Loader, Waiting, Warmed};
pub use locate::StoredRow;
pub use prefetch::{prefetch, prefetch_value};
pub use resident::Resident;
pub use view::{View, find_column, near};
pub use wire::{Body, WireBatch};
