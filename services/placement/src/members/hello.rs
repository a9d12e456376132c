//! Answers to `hello`.

/// Answer of a server to `hello`: what it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Name of the server, the text of its `advertise`.
    pub name: String,
    /// Random number that the server chose at its start. It tells two servers with the same name from one with two addresses.
    pub instance: u64,
    /// Version of the server.
    pub version: String,
    /// Identity of its `state`.
    pub state: String,
    /// Its zone.
    pub zone: Option<String>,
    /// Whether it is shutting down.
    pub is_draining: bool,
}
