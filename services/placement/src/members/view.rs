//! Members as they are shown and placed.

use std::time::Duration;

use super::change::Refusal;
use super::hello::Hello;
use crate::placement::Server;

/// The members at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// Number of changes of names, zones and draining before this view.
    pub revision: u64,
    /// The members in the order of their names. This server is one of them.
    pub members: Vec<Member>,
    /// Listed addresses whose servers are not members.
    pub others: Vec<RefusedAddress>,
}

impl View {
    /// Returns the members for a [`Placement`](crate::Placement).
    pub fn servers(&self) -> Vec<Server> {
        self.members.iter().map(Member::server).collect()
    }
}

/// A server of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Name: the text of its `advertise`.
    pub name: String,
    /// Version.
    pub version: String,
    /// Zone, if it has one.
    pub zone: Option<String>,
    /// Whether it is shutting down.
    pub is_draining: bool,
    /// Whether it is this server.
    pub is_own: bool,
    /// Addresses at which it answered. Empty for this server, and for a member whose address is now another server's.
    pub addresses: Vec<String>,
    /// Time of its last answer. `None` for this server.
    pub last_heard: Option<Duration>,
    /// Whether it answered the last hello.
    pub answers: bool,
    /// Whether one of its addresses is listed.
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

/// A listed address whose server is not a member, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedAddress {
    /// The address.
    pub address: String,
    /// Why the server that answered is not accepted.
    pub refusal: Option<Refusal>,
    /// Why there was no answer to the last hello. `None` with no refusal: the server has not answered yet, or waits to join again.
    pub error: Option<String>,
}
