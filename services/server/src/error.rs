//! The server's error type and its mappings to gRPC and HTTP statuses.

use std::fmt;

use forebay_proto::DecodeError;
use http::StatusCode;
use tonic::{Code, Status, metadata::MetadataValue};

/// A failed request, independent of the transport that reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Error {
    kind: Kind,
    message: String,
    /// Hashes of the sets of values that the caller has to send, separated by commas.
    missing_values: Option<String>,
}

/// Metadata of a status with the hashes of the sets of values that the caller has to send.
const MISSING_VALUES_HEADER: &str = "forebay-missing-values";

/// Metadata of a status with the reason of `FAILED_PRECONDITION`: `unsupported` if the data or its use is not supported.
const REASON_HEADER: &str = "forebay-reason";

/// Recommended wait before a retry when a limit is reached.
const BUSY_RETRY_SECONDS: u32 = 1;

/// Class of an [`Error`]: what the caller can do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The request is invalid; correct it.
    Invalid,
    /// The caller is not authenticated; send a valid token.
    Unauthenticated,
    /// The token does not permit the request.
    PermissionDenied,
    /// The requested resource does not exist.
    NotFound,
    /// The request does not fit the current state, such as a snapshot that no longer exists.
    Precondition,
    /// The data has a form that is not supported, or the server does not offer it for this use; convert the data, or change the settings.
    Unsupported,
    /// A limit is exceeded; request less or raise the limit.
    Limit,
    /// Too much is in use at the moment; retry.
    Busy,
    /// Stored data is corrupt; restore it.
    Corrupt,
    /// A temporary failure; retry.
    Unavailable,
    /// The server is loaded; call the next server of the list.
    Next,
    /// The request was not sent or not processed in time.
    Timeout,
    /// The caller cancelled the request.
    Cancelled,
    /// A defect of the server.
    Internal,
}

impl Error {
    fn new(kind: Kind, message: impl AsRef<str>) -> Self {
        Self { kind, message: clip(message.as_ref()), missing_values: None }
    }

    /// An error about an invalid request.
    pub(crate) fn invalid(message: impl AsRef<str>) -> Self {
        Self::new(Kind::Invalid, message)
    }

    /// An error about a missing, unknown or expired token.
    pub(crate) fn unauthenticated(message: impl AsRef<str>) -> Self {
        Self::new(Kind::Unauthenticated, message)
    }

    /// An error about a token without the required permission.
    pub(crate) fn permission_denied(message: impl AsRef<str>) -> Self {
        Self::new(Kind::PermissionDenied, message)
    }

    /// An error about a resource that does not exist.
    pub(crate) fn not_found(message: impl AsRef<str>) -> Self {
        Self::new(Kind::NotFound, message)
    }

    /// An error about a request that does not fit the current state.
    pub(crate) fn precondition(message: impl AsRef<str>) -> Self {
        Self::new(Kind::Precondition, message)
    }

    /// An error about data in a form that is not supported, or that the server does not offer for this use.
    pub(crate) fn unsupported(message: impl AsRef<str>) -> Self {
        Self::new(Kind::Unsupported, message)
    }

    /// An error about an exceeded limit.
    pub(crate) fn limit(message: impl AsRef<str>) -> Self {
        Self::new(Kind::Limit, message)
    }

    /// An error about a limit that is reached at the moment.
    pub(crate) fn busy(message: impl AsRef<str>) -> Self {
        Self::new(Kind::Busy, message)
    }

    /// Time after which a retry can succeed, in seconds, if the error is about a limit that is reached at the moment.
    pub(crate) fn retry_after_seconds(&self) -> Option<u32> {
        (self.kind == Kind::Busy).then_some(BUSY_RETRY_SECONDS)
    }

    /// A temporary failure.
    pub(crate) fn unavailable(message: impl AsRef<str>) -> Self {
        Self::new(Kind::Unavailable, message)
    }

    /// A redirect: the error of a server with a high load, which refers the caller to the next server in its list.
    pub(crate) fn next(message: impl AsRef<str>) -> Self {
        Self::new(Kind::Next, message)
    }

    /// An error about a request that was not sent or not processed in time.
    pub(crate) fn timeout(message: impl AsRef<str>) -> Self {
        Self::new(Kind::Timeout, message)
    }

    /// An error about a cancelled request.
    pub(crate) fn cancelled(message: impl AsRef<str>) -> Self {
        Self::new(Kind::Cancelled, message)
    }

    /// A defect of the server.
    pub(crate) fn internal(message: impl AsRef<str>) -> Self {
        Self::new(Kind::Internal, message)
    }

    /// The error with the name of the dataset it is about.
    pub(crate) fn in_dataset(self, name: &str) -> Self {
        Self { message: format!("dataset '{name}': {}", self.message), ..self }
    }

    /// The error with advice appended to its message.
    pub(crate) fn with_hint(self, hint: &str) -> Self {
        Self { message: format!("{}; {hint}", self.message), ..self }
    }

    /// Message for the user.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Status code over gRPC.
    pub(crate) fn grpc_code(&self) -> Code {
        match self.kind {
            Kind::Invalid => Code::InvalidArgument,
            Kind::Unauthenticated => Code::Unauthenticated,
            Kind::PermissionDenied => Code::PermissionDenied,
            Kind::NotFound => Code::NotFound,
            Kind::Precondition | Kind::Unsupported => Code::FailedPrecondition,
            Kind::Limit | Kind::Busy => Code::ResourceExhausted,
            Kind::Corrupt => Code::DataLoss,
            Kind::Unavailable | Kind::Next => Code::Unavailable,
            Kind::Timeout => Code::DeadlineExceeded,
            Kind::Cancelled => Code::Cancelled,
            Kind::Internal => Code::Internal,
        }
    }

    /// Status code over HTTP.
    pub(crate) fn http_code(&self) -> StatusCode {
        match self.kind {
            Kind::Invalid => StatusCode::BAD_REQUEST,
            Kind::Unauthenticated => StatusCode::UNAUTHORIZED,
            Kind::PermissionDenied => StatusCode::FORBIDDEN,
            Kind::NotFound => StatusCode::NOT_FOUND,
            Kind::Precondition | Kind::Unsupported => StatusCode::CONFLICT,
            Kind::Limit => StatusCode::PAYLOAD_TOO_LARGE,
            Kind::Busy => StatusCode::TOO_MANY_REQUESTS,
            Kind::Unavailable | Kind::Next | Kind::Cancelled => StatusCode::SERVICE_UNAVAILABLE,
            Kind::Timeout => StatusCode::GATEWAY_TIMEOUT,
            Kind::Corrupt | Kind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl From<Error> for Status {
    /// A limit that is reached at the moment has the metadata `retry-after`, in seconds; other limits do not. A redirect has
    /// `forebay-next: 1`. Data or a use of it that is not supported has `forebay-reason: unsupported`. If sets of values are missing, `forebay-missing-values` has their hashes, separated by commas.
    fn from(error: Error) -> Self {
        let (code, retry_after) = (error.grpc_code(), error.retry_after_seconds());
        let (is_next, is_unsupported) = (error.kind == Kind::Next, error.kind == Kind::Unsupported);
        let missing_values = error.missing_values.and_then(|hashes| hashes.parse().ok());
        let mut status = Self::new(code, error.message);
        if let Some(hashes) = missing_values {
            status.metadata_mut().insert(MISSING_VALUES_HEADER, hashes);
        }
        if let Some(seconds) = retry_after {
            status.metadata_mut().insert("retry-after", seconds.into());
        }
        if is_unsupported {
            status.metadata_mut().insert(REASON_HEADER, MetadataValue::from_static("unsupported"));
        }
        if is_next {
            status.metadata_mut().insert("forebay-next", MetadataValue::from_static("1"));
        }
        status
    }
}

impl From<forebay_loader::Error> for Error {
    fn from(error: forebay_loader::Error) -> Self {
        use forebay_loader::Error as Load;
        let kind = match &error {
            Load::Invalid { .. } | Load::Value { .. } | Load::Row { .. } => Kind::Invalid,
            Load::TooLarge { .. } => Kind::Limit,
            Load::Storage(error) => return error.clone().into(),
            Load::Unavailable(_) => Kind::Unavailable,
            Load::Internal(_) => Kind::Internal,
            Load::MissingValues { missing } => {
                let hashes: Vec<&str> = missing.iter().map(|(_, sha256)| sha256.as_str()).collect();
                let missing_values = Some(hashes.join(","));
                return Self { missing_values, ..Self::precondition(error.to_string()) };
            }
        };
        Self::new(kind, error.to_string())
    }
}

impl From<forebay_storage::Error> for Error {
    fn from(error: forebay_storage::Error) -> Self {
        use forebay_storage::Error as Storage;
        let kind = match &error {
            Storage::NotFound { .. } => Kind::NotFound,
            Storage::Unsupported { .. } | Storage::Mismatch { .. } => Kind::Unsupported,
            Storage::Changed { .. } | Storage::UnknownSnapshot { .. } => Kind::Precondition,
            Storage::Corrupt { .. } => Kind::Corrupt,
            Storage::Limit { .. } => Kind::Limit,
            Storage::Unavailable { .. } => Kind::Unavailable,
            Storage::PermissionDenied { .. } => Kind::PermissionDenied,
            Storage::Invalid { .. } => Kind::Invalid,
        };
        Self::new(kind, error.to_string())
    }
}

impl From<&forebay_inference::queue::Failure> for Error {
    fn from(failure: &forebay_inference::queue::Failure) -> Self {
        use forebay_inference::queue::{Failure, FeaturesFailure, Refusal};
        let kind = match failure {
            Failure::Refused(Refusal::Empty | Refusal::Rows { .. } | Refusal::Bytes { .. }) => Kind::Invalid,
            Failure::Refused(Refusal::Late { .. } | Refusal::Full { .. } | Refusal::Displaced { .. }) => {
                Kind::Busy
            }
            Failure::Refused(Refusal::Draining) | Failure::Lost | Failure::Unserved { .. } => {
                Kind::Unavailable
            }
            Failure::TooLarge(_) => Kind::Limit,
            Failure::Unsent(_) => Kind::Busy,
            Failure::Expired { .. } => Kind::Timeout,
            Failure::Features { kind, .. } => match kind {
                FeaturesFailure::Precondition => Kind::Precondition,
                FeaturesFailure::Corrupt => Kind::Corrupt,
                FeaturesFailure::Limit => Kind::Limit,
                FeaturesFailure::Unavailable => Kind::Unavailable,
                FeaturesFailure::Internal => Kind::Internal,
            },
            Failure::Failed(_) => Kind::Internal,
        };
        Self::new(kind, failure.to_string())
    }
}

impl From<DecodeError> for Error {
    fn from(error: DecodeError) -> Self {
        Self::invalid(error.to_string())
    }
}

/// Maximum length of a message, in bytes: it travels in a header, and clients limit the size of headers.
const MAX_MESSAGE_BYTES: usize = 4096;

/// Cuts the middle out of a long message, because a message begins with the field and ends with what was expected.
pub(crate) fn clip(message: &str) -> String {
    if message.len() <= MAX_MESSAGE_BYTES {
        return message.to_owned();
    }
    let half = MAX_MESSAGE_BYTES / 2 - 8;
    let start = message.floor_char_boundary(half);
    let end = message.ceil_char_boundary(message.len() - half);
    format!("{} [...] {}", &message[..start], &message[end..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_message_keeps_its_beginning_and_its_end() {
        let long = format!("there is no column '{}'; did you mean 'x'?", "ü".repeat(1 << 20));
        let clipped = clip(&long);
        assert!(clipped.len() <= MAX_MESSAGE_BYTES);
        assert!(clipped.starts_with("there is no column") && clipped.ends_with("did you mean 'x'?"));
        assert_eq!(clip("short"), "short");
    }

    #[test]
    fn corrupt_and_unsupported_files_and_stores_that_fail_have_different_statuses() {
        use forebay_storage::Error as Storage;

        let (file, detail) = ("s3://b/a.parquet".to_owned(), "column x".to_owned());
        let corrupt = Storage::Corrupt {
            file: file.clone(),
            row_group: None,
            column: Some("x".to_owned()),
            detail: detail.clone(),
            source: None,
        };
        let unsupported = Storage::Unsupported { location: file.clone(), detail };
        let unsupported_file = unsupported.clone();
        let source = std::sync::Arc::new(std::io::Error::other("timed out"));
        let unavailable = Storage::Unavailable { location: file, source };
        for (error, code, status) in [
            (corrupt, Code::DataLoss, StatusCode::INTERNAL_SERVER_ERROR),
            (unsupported, Code::FailedPrecondition, StatusCode::CONFLICT),
            (unavailable, Code::Unavailable, StatusCode::SERVICE_UNAVAILABLE),
        ] {
            let text = error.to_string();
            let of_load = Error::from(forebay_loader::Error::Storage(error.clone()));
            assert_eq!(of_load, Error::from(error), "the loader adds nothing");
            assert_eq!((of_load.grpc_code(), of_load.http_code()), (code, status), "{text}");
            assert_eq!(of_load.message(), text);
        }
        let reason = |error: Storage| Status::from(Error::from(error)).metadata().get(REASON_HEADER).cloned();
        let changed = Storage::UnknownSnapshot { dataset: "a".to_owned(), id: "b".to_owned() };
        assert_eq!(reason(unsupported_file).unwrap(), "unsupported");
        assert_eq!(reason(changed), None);
        let busy = Error::from(forebay_loader::Error::Unavailable("no memory".to_owned()));
        assert_eq!(busy.grpc_code(), Code::Unavailable);
    }
}
