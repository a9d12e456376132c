//! Receives Forebay's batches over Arrow Flight, in order, each of them once, whatever becomes of the servers.
//!
//! ```text
//! Client --plan--> Plan --start--> Training --next--> Batch --> Arrow, no copy
//! (servers)        (arithmetic)    merges lanes
//!                                      |
//!                  Batches: received ahead, up to a number of bytes and of batches
//!                                      |
//!                  Lane: the next batch, from any server; checks that it is the next
//!                                      |
//!                  Stream: one response of one Connection
//!                                      |
//!                  Parser: DATA frames --one copy--> Slab (aligned, used again)
//! ```
//!
//! - [`Client`]: several servers of one tier; what one of them was about to send, another one sends.
//! - [`Training`]: the batches of one rank, with its [`Cursor`] and [`Stats`].
//! - [`Plan`]: what a job delivers, with every default resolved.
//! - [`Batch`]: one batch in memory that is aligned to 64 bytes; an Arrow `RecordBatch` is a view of it.
//! - [`Device`]: where batches are wanted; on a GPU they are [`DeviceBatch`]es, copied there ahead.
//! - [`Connection`]: one server of any kind that speaks Flight, and its streams as they come.

#![deny(unsafe_code)] // `device` alone has some.

mod batch;
mod batches;
mod client;
mod config;
mod connection;
mod device;
mod error;
mod lane;
mod meter;
mod parser;
mod plan;
mod slabs;
mod stream;
mod tensor;
mod training;

pub use batch::Batch;
pub use batches::Batches;
pub use client::Client;
pub use config::{Config, Tls, Token};
pub use connection::Connection;
pub use device::{Device, DeviceBatch, Place};
pub use error::Error;
pub use forebay_proto as proto;
pub use meter::{Failures, Stats};
pub use plan::{Cursor, Plan};
pub use tensor::{Tensor, values};
pub use training::Training;
