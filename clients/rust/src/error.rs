//! What can go wrong, by what a caller would do about it.

use tonic::Status;

/// A failure of a call or of a stream.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server can't be reached: try again, or another one.
    #[error("can't connect to {url}")]
    Connect {
        /// Where the server should be.
        url: String,
        /// The transport's own words.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The server, or the connection to it, said why not. `UNAVAILABLE`: go on at the next step on another
    /// server; all else is told in words for a person.
    #[error("{}", .0.message())]
    Status(#[from] Status),
    /// What came is no Flight stream, or is larger than this client's limits allow.
    #[error("{0}")]
    Protocol(String),
}

impl Error {
    pub(crate) fn protocol(reason: impl Into<String>) -> Self {
        Self::Protocol(reason.into())
    }
}
