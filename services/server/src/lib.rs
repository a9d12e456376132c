//! The Forebay server: transports, configuration and wiring. Algorithms are in the crates it depends on.
//!
//! ```text
//! main --> cli --+-- serve ---> Server --+-- Services     state that both transports share
//!                |                       |     +-- registry   datasets, lookup indexes, queues, job records by name
//!                |                       |     +-- sessions   running streams
//!                |                       |     +-- members    the servers of the cluster, and which of them serves a stream
//!                |                       |     +-- Explainer  explanations of past batches
//!                |                       |     +-- telemetry  events, stalls, metrics, spans for a collector
//!                |                       +-- Listeners    sockets, TLS, tokens (auth)
//!                +-- demo                +-- flight       gRPC: Arrow Flight, lookups, health, reflection
//!                +-- inspect             |     +-- call_layer  metrics, authentication and drain of every call
//!                +-- explain             |     +-- framed      DoGet without a copy of the batch
//!                                        +-- http         HTTP: dashboard, API, probes, metrics
//! ```
//!
//! - [`Settings`]: settings of an operator, checked before a port is bound.
//! - [`Server`]: builds the parts, serves, and drains.
//! - `error`: the error type, and the only mapping of errors to gRPC and HTTP statuses.

#![forbid(unsafe_code)]

mod address;
mod auth;
mod cache_dir;
mod callers;
pub mod cli;
mod connections;
pub mod digest;
mod drain;
mod error;
mod explainer;
mod flight;
#[doc(hidden)]
pub mod fuzzing;
mod http;
mod http_runtime;
mod idle;
mod listeners;
mod lookup_request;
mod members;
mod partitions;
mod printable;
mod readiness;
mod reads;
mod registry;
mod samples;
mod server;
mod services;
mod sessions;
pub mod settings;
mod telemetry;

pub use address::Address;
pub use forebay_loader::Scheduling;
pub use members::Settings as MembershipSettings;
pub use server::Server;
pub use settings::{Limits, QueueSpec, Settings, Tls};
pub use telemetry::traces::Settings as TraceSettings;

use error::Error;
use telemetry::{events, stalls, traces};
