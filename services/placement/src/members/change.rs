//! Changes of membership, for events and logs.

use std::time::Duration;

/// Change that an event caused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Change {
    /// A server became a member.
    #[error("server {name} at {address} joined")]
    Joined {
        /// Name of the server.
        name: String,
        /// Address at which it answered.
        address: String,
    },
    /// A server is no longer a member.
    #[error("server {name} left: {reason}")]
    Left {
        /// Name of the server.
        name: String,
        /// Why it was removed.
        reason: LeaveReason,
    },
    /// A member started or stopped draining.
    #[error("server {name} {}", if *.is_draining { "is draining" } else { "is no longer draining" })]
    Draining {
        /// Name of the server.
        name: String,
        /// Whether it is draining now.
        is_draining: bool,
    },
    /// A member has another zone or version than before.
    #[error("server {name} now has version {version} and {}", zone_text(.zone.as_deref()))]
    Updated {
        /// Name of the server.
        name: String,
        /// Its version.
        version: String,
        /// Its zone.
        zone: Option<String>,
    },
    /// The server at an address is not accepted as a member.
    #[error("{0}")]
    Refused(Refusal),
    /// A list was not adopted yet, because it lacks too many of the addresses.
    #[error(
        "the list of servers lacks {lost} of {of} addresses; they are kept for {delay:?} unless they return"
    )]
    HeldBack {
        /// Number of addresses that the list lacks.
        lost: usize,
        /// Number of addresses of the list in use.
        of: usize,
        /// Time after which the list is adopted.
        delay: Duration,
    },
    /// A list that lacks many addresses was adopted after the delay.
    #[error("the list of servers still lacks {lost} addresses and was adopted")]
    ShrinkAdopted {
        /// Number of addresses that the list lacks.
        lost: usize,
    },
    /// The list has most of its addresses again.
    #[error("the list of servers is complete again")]
    HoldEnded,
    /// A list has more addresses than allowed and was not adopted.
    #[error("the list of servers has {listed} addresses, but `max_members` is {max}; the last list is kept")]
    ListTooLong {
        /// Number of addresses in the list.
        listed: usize,
        /// The limit.
        max: usize,
    },
    /// The source of the list failed. The last list is kept.
    #[error("the list of servers could not be read: {error}; the last list is kept")]
    SourceFailed {
        /// Error of the source.
        error: String,
    },
    /// The source of the list works again.
    #[error("the list of servers can be read again")]
    SourceRecovered,
}

/// Reason for which a server is no longer a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LeaveReason {
    /// It is not listed, and does not answer.
    #[error("it is not listed and does not answer")]
    Gone,
    /// It answers, but has not been listed for the `unlisted_timeout`.
    #[error("it has not been listed for too long")]
    Unlisted,
    /// It is listed, but has not answered for the `silent_timeout`.
    #[error("it has not answered for too long")]
    Silent,
    /// It uses another `state` now.
    #[error("it uses another state")]
    OtherState,
}

/// A server that is not accepted as a member, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the server {name:?} at {address} is not accepted as a member: {reason}")]
pub struct Refusal {
    /// Name that the server gave.
    pub name: String,
    /// Address at which it answered.
    pub address: String,
    /// Why it is not accepted.
    pub reason: RefusalReason,
}

/// Reason for which a server is not accepted as a member.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RefusalReason {
    /// Its tickets would be unknown here.
    #[error(
        "it has the state {theirs:?}, and this server has {ours:?}; servers of a cluster need the same `state`"
    )]
    OtherState {
        /// Identity of its state.
        theirs: String,
        /// Identity of the state of this server.
        ours: String,
    },
    /// Another running server has the same name.
    #[error("the server at {other} has the same name; each server needs its own `advertise`")]
    DuplicateName {
        /// Address of the other server.
        other: String,
    },
    /// A field of its answer is empty or too long.
    #[error("its {field} has {bytes} bytes; expected 1 to {max}")]
    InvalidField {
        /// Name of the field.
        field: &'static str,
        /// Length of the field.
        bytes: usize,
        /// Largest length.
        max: usize,
    },
    /// The cluster has as many members as allowed.
    #[error("there are already {max} members, the value of `max_members`")]
    TooManyMembers {
        /// The limit.
        max: usize,
    },
}

fn zone_text(zone: Option<&str>) -> String {
    zone.map_or_else(|| "no zone".to_owned(), |zone| format!("zone {zone}"))
}
