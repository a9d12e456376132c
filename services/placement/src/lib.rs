//! Decisions of a cluster: which servers there are, and which of them serves a stream.
//!
//! ```text
//! source: addresses ----> Members ----> view: names, zones, draining --+
//! hello: name, state ---> (state machine)                              v
//!                                    Streams: dataset, K, W ----> Placement ----> candidates of a rank
//! ```
//!
//! - [`Members`]: the servers that this server knows. It adopts lists of addresses and answers to `hello`, and says which
//!   addresses to greet next.
//! - [`Placement`]: distributes the streams of a job over the servers. The same servers and streams have the same placement on
//!   every server, in every version.
//!
//! A wrong view or placement costs time only. Every server can serve every ticket, and a ticket determines the bytes.
//!
//! This crate does no I/O and reads no clock. Times are arguments: a [`Duration`](std::time::Duration) since a start that the caller chooses once.

#![deny(unsafe_code)]

mod members;
mod placement;
mod score;

pub use members::{
    Change, Config, Hello, LeaveReason, ListHold, Member, Members, Refusal, RefusalReason, RefusedAddress,
    View,
};
pub use placement::{MAX_MATCHED_GROUPS, Placement, Server, Streams};
