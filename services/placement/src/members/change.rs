//! Changes of membership, for events and logs.

use std::time::Duration;

/// Change of the members or of the member list.
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
        /// True if the server is draining now.
        is_draining: bool,
    },
    /// A member has another zone or version than before.
    #[error("server {name} now has version {version} and {}", zone_text(.zone.as_deref()))]
    Updated {
        /// Name of the server.
        name: String,
        /// New version.
        version: String,
        /// New zone.
        zone: Option<String>,
    },
    /// The server at an address cannot be a member.
    #[error("{0}")]
    Refused(Refusal),
    /// A new member list was not adopted yet, because it lacks too many addresses.
    #[error(
        "the new member list lacks {lost} of {of} addresses; unless these return, it is adopted after {delay:?}"
    )]
    HeldBack {
        /// Number of addresses of the list in use that the new list lacks.
        lost: usize,
        /// Number of addresses of the list in use.
        of: usize,
        /// Time after which the new list is adopted.
        delay: Duration,
    },
    /// A new member list that lacks many addresses was adopted after the delay.
    #[error("the new member list still lacks {lost} addresses and was adopted")]
    ShrinkAdopted {
        /// Number of addresses of the previous list that the new list lacks.
        lost: usize,
    },
    /// The member list has at least half of the previous addresses again, and was adopted.
    #[error("the member list has most of its addresses again and was adopted")]
    HoldEnded,
    /// A new member list has more addresses than allowed and was not adopted.
    #[error(
        "the member list has {listed} addresses, but `max_members` is {max}; the last valid list is used"
    )]
    ListTooLong {
        /// Number of addresses in the list.
        listed: usize,
        /// The limit.
        max: usize,
    },
    /// The member list could not be read. The last valid list is used.
    #[error("the member list could not be read: {error}; the last valid list is used")]
    SourceFailed {
        /// Error of the source.
        error: String,
    },
    /// The member list can be read again.
    #[error("the member list can be read again")]
    SourceRecovered,
}

/// Reason for which a server is no longer a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LeaveReason {
    /// The server is not in the member list, and does not answer.
    #[error("it is not in the member list and does not answer")]
    Gone,
    /// The server answers, but has not been in the member list for the `unlisted_timeout`.
    #[error("it answers, but has not been in the member list for `membership.unlisted_timeout`")]
    Unlisted,
    /// The server is in the member list, but has not answered for the `silent_timeout`.
    #[error("it is in the member list, but has not answered for `membership.silent_timeout`")]
    Silent,
    /// The server has another `state` now.
    #[error("it has another `state` now")]
    OtherState,
}

/// A server that cannot be a member, and the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the server {name:?} at {address} cannot be a member: {reason}")]
pub struct Refusal {
    /// Name in the answer of the server.
    pub name: String,
    /// Address at which it answered.
    pub address: String,
    /// Reason why it cannot be a member.
    pub reason: RefusalReason,
}

/// Reason for which a server cannot be a member.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RefusalReason {
    /// The server has another `state`, so that this server cannot serve its tickets.
    #[error(
        "its state has the id {theirs:?}, that of this server {ours:?}; servers of a cluster need the same `state`"
    )]
    OtherState {
        /// Id of its state.
        theirs: String,
        /// Id of the state of this server.
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
        /// Length of the field, in bytes.
        bytes: usize,
        /// Maximum length, in bytes.
        max: usize,
    },
    /// The cluster has the maximum number of members.
    #[error("there are already {max} members, the value of `max_members`")]
    TooManyMembers {
        /// The limit.
        max: usize,
    },
}

fn zone_text(zone: Option<&str>) -> String {
    zone.map_or_else(|| "no zone".to_owned(), |zone| format!("zone {zone}"))
}
