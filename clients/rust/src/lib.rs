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
//! Lookups and batch queues are exchanges: what is asked goes one way while answers come the other.
//!
//! ```text
//! Lookups, Caller --> Requests: one exchange, many on their way --> the next one once it is over
//! Worker ---next---> Work ---reply---> the exchange that it came by
//! ```
//!
//! - [`Client`]: several servers of one tier; what one of them was about to send, another one sends.
//! - [`Training`]: the batches of one rank, with its [`Cursor`] and [`Stats`].
//! - [`Plan`]: what a job delivers, with every default resolved.
//! - [`Batch`]: one batch in memory that is aligned to 64 bytes; an Arrow `RecordBatch` is a view of it.
//! - [`Device`]: where batches are wanted; on a GPU they are [`DeviceBatch`]es, copied there ahead.
//! - [`Lookups`]: rows by their keys, each answer a [`Found`].
//! - [`Caller`], [`Worker`]: the two sides of a batch queue; an [`Answer`], and the [`Work`] it came of.
//! - [`Connection`]: one server of any kind that speaks Flight, and its streams as they come.

#![deny(unsafe_code)] // `device` alone has some.

mod batch;
mod batches;
mod caller;
mod client;
mod config;
mod connection;
mod device;
mod error;
mod lane;
mod lookups;
mod messages;
mod meter;
mod parser;
mod plan;
mod requests;
mod route;
mod sending;
mod slabs;
mod stream;
mod tensor;
mod training;
mod worker;

pub use batch::Batch;
pub use batches::Batches;
pub use caller::{Answer, Caller};
pub use client::Client;
pub use config::{Config, Tls, Token};
pub use connection::Connection;
pub use device::{Device, DeviceBatch, Place};
pub use error::Error;
pub use forebay_proto as proto;
pub use lookups::{Found, Lookups};
pub use meter::{Failures, Stats, Utilization};
pub use plan::{Cursor, Plan};
pub use tensor::{Tensor, values};
pub use training::Training;
pub use worker::{Work, Worker};
