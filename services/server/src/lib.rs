//! The Forebay server: transports, configuration and wiring. No algorithm lives here.
//!
//! ```text
//! main --> cli --+-- serve ---> Server --+-- flight   gRPC: Arrow Flight, health, reflection
//!                |                       |     +-- framed   DoGet, whose bytes are framed by hand
//!                +-- demo                |     +-- guard    what every call passes: counting, door, drain
//!                +-- inspect             +-- ops      HTTP: page, API, probes, metrics
//!                +-- explain             +-- jobs     what was streamed, remembered for explain
//!                                        +-- traces   what calls waited for, to a collector
//!                                        +-- door     who gets in: TLS, tokens
//!                                        +-- Datasets names to snapshots, opened in the background
//!                                        +-- Events   what happened lately, from everywhere to the page
//! ```
//!
//! - [`Settings`]: what an operator can set, resolved before a port is bound.
//! - [`Server`]: binds, serves, drains.
//! - `status`: the one place where errors become gRPC statuses.

#![forbid(unsafe_code)]

mod address;
pub mod cli;
mod connections;
mod datasets;
pub mod demo;
pub mod digest;
mod door;
mod events;
mod explain;
mod flight;
pub mod inspect;
mod jobs;
mod online;
mod ops;
mod queues;
mod server;
mod sessions;
pub mod settings;
mod stalls;
mod status;
mod traces;

pub use address::Address;
pub use forebay_loader::Scheduling;
pub use queues::QueueSpec;
pub use server::Server;
pub use settings::{Limits, Settings, Tls};
pub use traces::Settings as TraceSettings;
