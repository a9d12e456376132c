//! Lookups of rows by key in the current snapshot of one or several datasets.
//!
//! - [`OnlineDataset`]: the current snapshot, its index and its loaded views. A view is one selection of columns and rows.
//! - [`LookupMemory`]: the memory of all online datasets, in which undeclared views make room for others.
//! - [`Lookup`]: answers batches of keys from one or several online datasets.

mod canary;
mod config;
mod dataset;
mod keys;
mod memory;
mod query;
mod snapshot;

pub use canary::Canary;
pub use config::Config;
pub use dataset::{OnlineDataset, Progress, ReadySnapshot, Requirements, Takeover};
pub use keys::LookupKeys;
pub use memory::LookupMemory;
pub use query::{Answer, Lookup};
