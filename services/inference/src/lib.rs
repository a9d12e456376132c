//! Lookups of rows by key, and batch queues for model inference.
//!
//! ```text
//! keys --KeyType::encode--> EncodedKeys --KeyIndex--> row numbers --gather--> a batch in Arrow IPC form
//!                                                                   (the same bytes per row as in training)
//! ```
//!
//! - [`keys`](KeyType): keys as bytes, equal exactly for equal keys.
//! - [`KeyIndex`]: maps each key of a snapshot to its row. Built once per snapshot and saved on disk.
//! - [`OnlineDataset`]: the index and the rows of a dataset's current snapshot, both in memory. The next snapshot is loaded
//!   concurrently and replaces the current one atomically. [`Lookup`] answers batches of keys from it.
//! - [`RequestColumns`]: columns that come with the keys of a queue, and follow the features.
//! - [`queue`]: collects small requests into batches for workers and returns to each request its share of the reply.
//!
//! This crate names no transport.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods)] // The decisions of `queue` deny them; see clippy.toml.

mod index;
mod keys;
mod lookup;
pub mod queue;
mod request_columns;

pub use index::{IndexProgress, KeyIndex, KeySpec};
pub use keys::{EncodedKeys, KeyType};
pub use lookup::{
    Answer, Canary, Config, Lookup, LookupKeys, LookupMemory, OnlineDataset, Progress, ReadySnapshot,
    Requirements, Takeover,
};
pub use request_columns::{Dtype, RequestColumn, RequestColumns};
