//! The error type, with one variant for each way in which a caller reacts.

use std::{sync::Arc, time::Duration};

use tonic::{Code, Status};
use tower::BoxError;

/// The error of a transport. Shared, because every waiter for a connection receives it.
type Cause = Arc<dyn std::error::Error + Send + Sync>;

/// A failure of a call or of a stream.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The request, or a file named by the configuration, is invalid. Retrying does not help.
    #[error("{0}")]
    Request(String),
    /// The server is unreachable. Retry, or use another server.
    #[error("can't connect to {url}")]
    Connect {
        /// URL of the server; of all servers, with commas in between, if none of them exists.
        url: String,
        /// True if no server exists at the address: it refuses connections, its socket is missing, or its host is unknown.
        is_absent: bool,
        /// Error of the transport.
        source: Cause,
    },
    /// The connection was lost. Continue with the next step, on this server or on another one.
    #[error("lost the connection to {url}: {source}")]
    Lost {
        /// URL of the server.
        url: String,
        /// Error of the transport.
        source: Cause,
    },
    /// The server returned an error status. After `UNAVAILABLE`, continue with the next step on another server. Every other
    /// status has a message for the user.
    #[error("{}", .0.message())]
    Status(#[from] Status),
    /// The server speaks another protocol, or the response is not a Flight stream or exceeds a limit in [`Config`](crate::Config).
    #[error("{0}")]
    Protocol(String),
    /// The received rows are not the expected ones: another batch, a wrong hash, or other columns. No part of them is delivered.
    #[error("{0}")]
    BatchMismatch(String),
    /// The device does not exist, or its driver failed. Contains the driver's message.
    #[error("{0}")]
    Device(String),
    /// A queue rejected this request. Other requests are not affected.
    #[error("{message}")]
    RequestRejected {
        /// Reason, such as `RESOURCE_EXHAUSTED` or `DEADLINE_EXCEEDED`.
        code: Code,
        /// Description of the reason.
        message: String,
        /// Time after which a retry may succeed; `None` if a retry does not help.
        retry_after: Option<Duration>,
    },
    /// No server answered within [`Config::retry_deadline`](crate::Config::retry_deadline).
    #[error("no answer within {waited:.1?} after {attempts} attempt{}; last error: {}", if *attempts == 1 { "" } else { "s" }, .last.with_causes())]
    RetryDeadlineExceeded {
        /// Time since the first attempt.
        waited: Duration,
        /// Number of attempts.
        attempts: u32,
        /// Error of the last attempt.
        last: Box<Error>,
    },
}

impl Error {
    pub(crate) fn protocol(reason: impl Into<String>) -> Self {
        Self::Protocol(reason.into())
    }

    /// Returns the conversion of an error in the encoding of `what`.
    pub(crate) fn malformed<E: std::fmt::Display>(what: &str) -> impl Fn(E) -> Self {
        move |error| Self::Protocol(format!("malformed {what}: {error}"))
    }

    /// Returns the error for a column `name` that is not among `names`.
    pub(crate) fn no_column<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Self {
        let names: Vec<_> = names.collect();
        Self::Request(format!("no column '{name}', expected one of {}", names.join(", ")))
    }

    pub(crate) fn connect(url: &str, source: impl Into<BoxError>) -> Self {
        let source: BoxError = source.into();
        Self::Connect { url: url.to_owned(), is_absent: is_refused(&*source), source: source.into() }
    }

    /// Returns the error for a host whose name has no address, or could not be resolved at the moment.
    pub(crate) fn unresolved(url: &str, host: &str, error: &std::io::Error) -> Self {
        // The standard library has no kind for the errors of getaddrinfo. EAI_AGAIN is the temporary one.
        let is_absent = !error.to_string().contains("emporary failure");
        let source: BoxError = format!("the name '{host}' cannot be resolved: {error}").into();
        Self::Connect { url: url.to_owned(), is_absent, source: source.into() }
    }

    pub(crate) fn lost(url: &str, source: impl Into<BoxError>) -> Self {
        let source: BoxError = source.into();
        Self::Lost { url: url.to_owned(), source: source.into() }
    }

    /// Returns the error of a server that sent nothing for `limit`.
    pub(crate) fn silent(url: &str, limit: Duration) -> Self {
        Self::lost(url, format!("no data was received for {limit:.1?}"))
    }

    /// Returns true if the same request may succeed later or on another server.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Lost { .. } => true,
            Self::Status(status) => {
                // Of the limits, only those that are reached at the moment have a time to retry.
                let is_busy = || self.is_limit() && status.metadata().contains_key("retry-after");
                status.code() == Code::Unavailable || is_busy()
            }
            Self::RequestRejected { code, retry_after, .. } => {
                *code == Code::Unavailable || retry_after.is_some()
            }
            _ => false,
        }
    }

    /// Returns true if no server exists at the address: it refuses connections, its socket is missing, or its host is unknown. A
    /// server that is starting is not distinguished from one that will never exist.
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Connect { is_absent: true, .. })
    }

    /// Returns the message with those of the sources of the error, without repetitions.
    pub fn with_causes(&self) -> String {
        let mut message = self.to_string();
        let mut source = match self {
            // The message of a status is complete. Its own text repeats it, with the code.
            Self::Status(status) => std::error::Error::source(status),
            _ => std::error::Error::source(self),
        };
        while let Some(cause) = source {
            let text = cause.to_string();
            if !message.contains(&text) {
                message.push_str(": ");
                message.push_str(&text);
            }
            source = cause.source();
        }
        message
    }

    /// Returns true if a limit of the server is exceeded. Another server can have another limit.
    pub(crate) fn is_limit(&self) -> bool {
        matches!(self, Self::Status(status) if status.code() == Code::ResourceExhausted)
    }

    /// Returns true if the server does not know a field of the request, because its version is older than that of another server.
    pub(crate) fn is_unknown_field(&self) -> bool {
        matches!(self, Self::Status(status)
            if status.code() == Code::InvalidArgument && status.message().contains("unknown field"))
    }

    /// Returns true if another server may accept a request that this one rejects: it has other limits or another version.
    pub(crate) fn depends_on_server(&self) -> bool {
        self.is_limit() || self.is_unknown_field()
    }

    /// Returns the hashes of the sets of values that the server does not have and that the client was not given; see
    /// [`Client::with_values`](crate::Client::with_values).
    pub fn missing_values(&self) -> Vec<String> {
        let Self::Status(status) = self else { return Vec::new() };
        let hashes = status.metadata().get("forebay-missing-values").and_then(|hashes| hashes.to_str().ok());
        hashes.map_or_else(Vec::new, |hashes| hashes.split(',').map(str::to_owned).collect())
    }

    /// Returns true if the server does not support the data of the request, such as files with different columns, or does not offer the
    /// dataset for this use. Otherwise the status `FAILED_PRECONDITION` is about the snapshot.
    pub fn is_unsupported(&self) -> bool {
        matches!(self, Self::Status(status)
            if status.metadata().get("forebay-reason").is_some_and(|reason| reason == "unsupported"))
    }

    /// Returns true if the server refers the client to the next one that it may ask.
    pub(crate) fn is_redirect(&self) -> bool {
        matches!(self, Self::Status(status)
            if status.code() == Code::Unavailable
                && status.metadata().get("forebay-next").is_some_and(|value| value == "1"))
    }

    /// Returns the time after which the server recommends a retry.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status(status) => {
                let seconds = status.metadata().get("retry-after")?.to_str().ok()?.parse().ok()?;
                Some(Duration::from_secs(seconds))
            }
            Self::RequestRejected { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// Returns the gRPC status code of the server's last response; `None` if no server responded.
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Status(status) => Some(status.code()),
            Self::RequestRejected { code, .. } => Some(*code),
            Self::RetryDeadlineExceeded { last, .. } => last.code(),
            _ => None,
        }
    }
}

/// Returns true if an error or one of its sources says that nothing listens at an address.
fn is_refused(error: &(dyn std::error::Error + 'static)) -> bool {
    use std::io::ErrorKind::{ConnectionRefused, NotFound};
    let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    matches!(kind, Some(ConnectionRefused | NotFound)) || error.source().is_some_and(is_refused)
}
