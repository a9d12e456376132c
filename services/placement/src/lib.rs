//! Decisions of a cluster: which servers are members, and which of them serves a stream.
//!
//! ```text
//! member list: addresses --> Members ----> View: names, zones, draining --+
//! hello: name, state ------> (state machine)                              v
//!                                  Streams: dataset, partitions, ranks --> Placement --> candidates of a rank
//! ```
//!
//! - [`Members`]: the members in the view of this server. Its inputs are member lists and answers to `hello`. It returns the
//!   addresses to which the caller must send `hello`.
//! - [`Placement`]: distributes the streams of a job over the servers. Every server, also of another version, computes the same
//!   placement from the same servers and streams.
//!
//! A wrong view or placement costs only time. Every server can serve every ticket, and a ticket determines the bytes.
//!
//! This crate does no I/O and reads no clock. Times are arguments. Each is a [`Duration`](std::time::Duration) since a start that
//! the caller chooses once.

#![deny(unsafe_code)]

mod members;
mod placement;
mod score;

pub use members::{
    Change, Config, Hello, LeaveReason, ListHold, Member, Members, Refusal, RefusalReason, RefusedAddress,
    View,
};
pub use placement::{MAX_MATCHED_GROUPS, Placement, Server, Streams};
