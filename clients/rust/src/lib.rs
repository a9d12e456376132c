//! Receives Forebay's batches over Arrow Flight.
//!
//! ```text
//! Client --DoGet--> response body: DATA frames --> Parser --one copy--> Slab --> Batch
//!  (one connection, large frames and windows)                 (aligned, reused)   (Arrow, no copy)
//! ```
//!
//! - [`Client`]: a connection to one server, over TCP or a Unix socket.
//! - [`Batches`]: the stream of one rank and lane, received ahead of its consumer up to a number of bytes.
//! - [`Batch`]: one batch in memory that is aligned to 64 bytes; an Arrow `RecordBatch` is a view of it.
//!
//! Any Flight server is understood, not only Forebay's.

#![forbid(unsafe_code)]

mod batch;
mod batches;
mod client;
mod config;
mod error;
mod parser;
mod slabs;

pub use batch::Batch;
pub use batches::Batches;
pub use client::{Client, Info};
pub use config::Config;
pub use error::Error;
