//! The members at one time, for display and for placement.

use std::time::Duration;

use super::change::Refusal;
use super::hello::Hello;
use crate::placement::Server;

/// The members at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// Number of changes of names, zones and draining before this view. It increases with each such change.
    pub revision: u64,
    /// Members in the order of their names. This server is one of them.
    pub members: Vec<Member>,
    /// Addresses of the member list that belong to no member now.
    pub others: Vec<RefusedAddress>,
}

impl View {
    /// Returns the members for a [`Placement`](crate::Placement).
    pub fn servers(&self) -> Vec<Server> {
        self.members.iter().map(Member::server).collect()
    }
}

/// A member of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Name of the server: its setting `advertise`.
    pub name: String,
    /// Version of the server.
    pub version: String,
    /// Zone of the server; `None` if it has none.
    pub zone: Option<String>,
    /// True if the server is shutting down.
    pub is_draining: bool,
    /// True for the server whose view this is.
    pub is_own: bool,
    /// Addresses at which the server answered. Empty for this server, and for a member at whose address another server answers now.
    pub addresses: Vec<String>,
    /// Time of its last answer. `None` for this server.
    pub last_heard: Option<Duration>,
    /// True if the server answered the last hello.
    pub answers: bool,
    /// True if an address of the server is in the member list.
    pub is_listed: bool,
}

impl Member {
    /// Returns the member for a [`Placement`](crate::Placement).
    pub fn server(&self) -> Server {
        Server { name: self.name.clone(), zone: self.zone.clone(), is_draining: self.is_draining }
    }

    pub(super) fn own(own: &Hello) -> Self {
        Self {
            name: own.name.clone(),
            version: own.version.clone(),
            zone: own.zone.clone(),
            is_draining: own.is_draining,
            is_own: true,
            addresses: Vec::new(),
            last_heard: None,
            answers: true,
            is_listed: true,
        }
    }
}

/// An address in the member list at which no member has answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedAddress {
    /// Address: `HOST:PORT`.
    pub address: String,
    /// Reason why the server that answered cannot be a member.
    pub refusal: Option<Refusal>,
    /// Reason why the last hello had no answer. If both reasons are `None`, the first hello has no result yet, or the server waits
    /// until it can join again.
    pub error: Option<String>,
}
