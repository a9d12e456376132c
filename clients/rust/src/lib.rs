//! A client of Forebay, which serves Parquet data as deterministic training batches over Arrow Flight.
//!
//! The client receives the batches of a training in order, each exactly once, also if connections are lost or servers restart.
//! The client also looks up rows by key, calls batch queues, and runs workers of batch queues.
//!
//! # Examples
//! ```no_run
//! use forebay_client::{Client, Config, Error, proto::v1::Train};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Error> {
//!     let client = Client::new(["grpc://127.0.0.1:8815"], Config::default())?;
//!     let train = Train { dataset: "lineitem".into(), batch_size: 4096, seed: 7, ..Train::default() };
//!     let mut training = client.train(&train).await?;
//!     while let Some(batch) = training.next().await {
//!         let batch = batch?.record_batch()?; // An Arrow RecordBatch, without a copy.
//!         println!("{} rows", batch.num_rows());
//!     }
//!     Ok(())
//! }
//! ```
//!
//! # Types
//! - [`Client`]: a cluster of servers, with retries. [`Connection`]: one server of any kind that speaks Flight, without retries.
//! - [`Plan`]: the resolved request, with all defaults. [`Training`]: its batches for one rank, with a [`Cursor`] and [`Stats`].
//! - [`Batch`]: one batch in aligned memory. [`DeviceBatch`]: one batch in the memory of a [`Device`].
//! - [`ValueSet`]: values that a filter refers to by name.
//! - [`Lookups`]: rows by key; each answer is a [`Found`].
//! - [`Caller`] and [`Worker`]: the two sides of a batch queue. A caller receives an [`Answer`], a worker an [`InferenceBatch`].
//!
//! # Data flow
//! A training:
//!
//! ```text
//! Client --plan--> Plan --start--> Training --next--> Batch --> Arrow, without a copy
//!                                      |
//!                  training::lanes     merges the lanes of the rank
//!                  batches             prefetches, within limits of bytes and batches
//!                  training::lane      resumes on any server, verifies each batch
//!                  route::transport    one gRPC connection
//!                  wire::parser        copies bodies once, from HTTP/2 frames to memory::slabs
//! ```
//!
//! Lookups and batch queues use DoExchange streams, on which requests and answers flow at the same time:
//!
//! ```text
//! Lookups, Caller --> online::requests --> online::exchange: many requests in flight
//! Worker --next--> InferenceBatch --reply--> the exchange that it came from
//! ```

#![deny(unsafe_code)] // Allowed only in `device`.

mod batch;
mod batches;
mod client;
mod config;
mod connection;
mod counting;
mod datasets;
mod device;
mod error;
mod memory;
mod online;
mod route;
mod tensor;
mod training;
mod value_set;
mod wire;

pub use batch::Batch;
pub use batches::Batches;
pub use client::Client;
pub use config::{Config, Tls, Token};
pub use connection::Connection;
pub use device::{Device, DeviceBatch, Place};
pub use error::Error;
pub use forebay_proto as proto;
pub use online::{Answer, Caller, Found, InferenceBatch, Lookups, Worker};
pub use route::Waiting;
pub use tensor::{Tensor, values};
pub use training::{Counters, Cursor, Failures, Loading, Plan, Stats, Training, Utilization};
pub use value_set::{MAX_SET_BYTES, ValueSet};
