//! Answers to `hello`.

/// Answer of a server to `hello`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Name of the server: its setting `advertise`.
    pub name: String,
    /// Random number of the process. It distinguishes two servers with the same name from one server with two addresses.
    pub instance: u64,
    /// Version of the server.
    pub version: String,
    /// Id of the `state` of the server.
    pub state: String,
    /// Zone, if the server has one.
    pub zone: Option<String>,
    /// True if the server is shutting down.
    pub is_draining: bool,
}
