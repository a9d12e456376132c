//! What can go wrong, by what a caller would do about it.

use std::time::Duration;

use tonic::{Code, Status};

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// A failure of a call or of a stream.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request, or a file that the configuration names, makes no sense: mend it.
    #[error("{0}")]
    Request(String),
    /// The server can't be reached: try again, or another one.
    #[error("can't connect to {url}")]
    Connect {
        /// Where the server should be.
        url: String,
        /// The transport's own words.
        source: Cause,
    },
    /// The connection was lost: go on at the next step, on this server or another one.
    #[error("lost the connection to {url}: {source}")]
    Lost {
        /// Where the server was.
        url: String,
        /// The transport's own words.
        source: Cause,
    },
    /// The server said why not. `UNAVAILABLE`: go on at the next step on another server; all else is told in words for a
    /// person.
    #[error("{}", .0.message())]
    Status(#[from] Status),
    /// What came is no Flight stream, or is larger than this client's limits allow.
    #[error("{0}")]
    Protocol(String),
    /// A batch came that is not the one that is due, or not as it was sent: nothing of it was handed over.
    #[error("{0}")]
    Foreign(String),
    /// There is no such device, or its driver failed; in the driver's words.
    #[error("{0}")]
    Device(String),
    /// A queue has no answer for this one request; others go on.
    #[error("{message}")]
    Refused {
        /// Why, such as `RESOURCE_EXHAUSTED` or `DEADLINE_EXCEEDED`.
        code: Code,
        /// The same for a person.
        message: String,
        /// After which time it is worth another try, if it is.
        retry_after: Option<Duration>,
    },
    /// No answer came until the deadline was over, from whichever server.
    #[error("no answer for {waited:.1?}, after {attempts} attempts; the last one: {last}")]
    GaveUp {
        /// How long this took.
        waited: Duration,
        /// Attempts that were made.
        attempts: u32,
        /// How the last of them failed.
        last: Box<Error>,
    },
}

impl Error {
    pub(crate) fn protocol(reason: impl Into<String>) -> Self {
        Self::Protocol(reason.into())
    }

    pub(crate) fn lost(url: &str, source: impl Into<Cause>) -> Self {
        Self::Lost { url: url.to_owned(), source: source.into() }
    }

    /// Whether the same request may succeed a little later, or on another server.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Lost { .. } => true,
            Self::Status(status) => status.code() == Code::Unavailable,
            Self::Refused { code, retry_after, .. } => *code == Code::Unavailable || retry_after.is_some(),
            _ => false,
        }
    }

    /// The gRPC status of a server's refusal, also of the last one before giving up.
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Status(status) => Some(status.code()),
            Self::Refused { code, .. } => Some(*code),
            Self::GaveUp { last, .. } => last.code(),
            _ => None,
        }
    }

    /// The same, for another one who waited for the same.
    pub(crate) fn again(&self) -> Self {
        let words = |source: &Cause| source.to_string().into();
        match self {
            Self::Request(reason) => Self::Request(reason.clone()),
            Self::Connect { url, source } => Self::Connect { url: url.clone(), source: words(source) },
            Self::Lost { url, source } => Self::Lost { url: url.clone(), source: words(source) },
            Self::Status(status) => Self::Status(status.clone()),
            Self::Protocol(reason) => Self::Protocol(reason.clone()),
            Self::Foreign(reason) => Self::Foreign(reason.clone()),
            Self::Device(reason) => Self::Device(reason.clone()),
            Self::Refused { code, message, retry_after } => {
                Self::Refused { code: *code, message: message.clone(), retry_after: *retry_after }
            }
            Self::GaveUp { waited, attempts, last } => {
                Self::GaveUp { waited: *waited, attempts: *attempts, last: Box::new(last.again()) }
            }
        }
    }
}
