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
//! Modules, each of which uses only those above it:
//!
//! | Module | Content |
//! |---|---|
//! | `cpu` | threads, fair queueing |
//! | `block_reader` | the only way in which blocks are fetched and decoded |
//! | `view` | columns, tensors and expressions of a row, and its layout |
//! | `selection` | counts of kept rows and groups |
//! | `frame` | rows of a block in memory |
//! | `request` | validation, order and footprint of a job |
//! | `cache` | decoded columns on disk, forecast of their next use |
//! | `window` | windows shared by the ranks of a job, and their prefetch |
//! | `batch` | production, assembly and wire form of batches |
//! | `values` | sets of values that filters refer to |
//! | `lookup` | rows in memory for lookups |
//!
//! The order is chosen by `forebay-plan`. This crate does not depend on a transport.

#![deny(unsafe_code)]

mod activity;
mod batch;
mod block_reader;
mod cache;
mod config;
mod cpu;
mod error;
mod fault_injection;
mod frame;
mod label_statistics;
mod loader;
mod locate;
mod lookup;
mod request;
mod selection;
mod stream;
#[cfg(test)]
mod test_data;
mod values;
mod view;
mod window;

pub use activity::{Purpose, StageWork};
pub use batch::{
    assemble::{AssembleOptions, assemble},
    batches::{Batches, FinishedBatch},
    budget::{BatchCharge, Pace},
    wire::{Body, WireBatch},
};
pub use block_reader::{BlockColumns, BlockReader, Chunks};
pub use config::{Config, DiskWrites};
pub use cpu::{
    fair_queue::{Flow, Priority},
    pool::{Pool, Submitted},
    prefetch::{prefetch, prefetch_value},
    scheduling::Scheduling,
    turns::TurnClock,
};
pub use error::Error;
pub use fault_injection::FaultInjection;
pub use forebay_cache::Tenant;
pub use forebay_sql::{Identity, ValueSet, cast};
pub use frame::{Frame, FrameBuilder, RowRef};
pub use loader::{LoadProgress, Loader, Waiting};
pub use locate::StoredRow;
pub use lookup::{memory::LookupReservation, rows::LookupRows};
pub use request::{job::Job, mixture::check_mixture};
pub use selection::counts::{CountProgress, Counts};
pub use values::{MAX_SET_BYTES, StoredValues, described_filter};
pub use view::{View, find_column, similar_names};
pub use window::progress::{WindowLoad, WindowWait};
