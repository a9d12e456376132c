//! The online path: rows by their keys, from the same frames as training rows.
//!
//! ```text
//! keys --encode--> bytes --KeyIndex--> row numbers --loader::Resident--> a batch, already in its Arrow IPC form
//!                          verified against the key                      the rows of training, byte for byte
//! ```
//!
//! - [`KeyIndex`]: which row of a snapshot has a key. Built once a snapshot, kept on disk.
//! - [`Online`]: a dataset that is looked up: the index and the rows of its current snapshot, both in memory. The next
//!   snapshot is made ready beside it, and takes its place at once.
//!
//! - [`queue`]: small requests in, batches out to workers, and each its share of the reply: when a batch is closed, and who is
//!   let in.
//!
//! This crate names no transport.

#![forbid(unsafe_code)]

mod index;
mod keys;
mod lookup;
mod online;
pub mod queue;

pub use index::{Indexed, KeyIndex, KeySpec};
pub use keys::{EncodedKeys, KeyType};
pub use lookup::{Answer, Keys, Lookup};
pub use online::{Config, Online, Progress, Ready};
