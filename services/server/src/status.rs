//! Errors as statuses of gRPC and HTTP: one place, one rule a kind.

use forebay_loader::Error as Load;
use forebay_proto::DecodeError;
use forebay_storage::Error as Storage;
use http::StatusCode;
use tonic::{Code, Status};

/// The status of a failure of the training path.
pub(crate) fn of_load(error: &Load) -> Status {
    let code = match error {
        Load::Invalid { .. } => Code::InvalidArgument,
        Load::TooLarge { .. } => Code::ResourceExhausted,
        Load::Value { .. } | Load::Row { .. } => Code::InvalidArgument,
        Load::Storage(error) => return of_storage(error),
        Load::Unavailable(_) => Code::Unavailable,
        Load::Internal(_) => Code::Internal,
    };
    Status::new(code, clip(&error.to_string()))
}

/// The status of a failure to list, read or decode.
pub(crate) fn of_storage(error: &Storage) -> Status {
    let code = match error {
        Storage::NotFound { .. } => Code::NotFound,
        Storage::Unsupported { .. } | Storage::Mismatch { .. } => Code::FailedPrecondition,
        Storage::Corrupt { .. } => Code::DataLoss,
        Storage::Changed { .. } | Storage::UnknownSnapshot { .. } => Code::FailedPrecondition,
        Storage::Limit { .. } => Code::ResourceExhausted,
        Storage::Unavailable { .. } => Code::Unavailable,
        Storage::Invalid { .. } => Code::InvalidArgument,
        _ => Code::Unknown,
    };
    Status::new(code, clip(&error.to_string()))
}

/// The status of bytes that are no message.
pub(crate) fn of_decode(error: &DecodeError) -> Status {
    Status::invalid_argument(clip(&error.to_string()))
}

/// The same over HTTP.
pub(crate) fn http(code: Code) -> StatusCode {
    match code {
        Code::Ok => StatusCode::OK,
        Code::InvalidArgument | Code::OutOfRange => StatusCode::BAD_REQUEST,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::NotFound => StatusCode::NOT_FOUND,
        // What was there is not there any more.
        Code::FailedPrecondition | Code::Aborted | Code::AlreadyExists => StatusCode::CONFLICT,
        // A limit; asking again changes nothing.
        Code::ResourceExhausted => StatusCode::PAYLOAD_TOO_LARGE,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable | Code::Cancelled => StatusCode::SERVICE_UNAVAILABLE,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::Internal | Code::Unknown | Code::DataLoss => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// Longest message of a status, in bytes: it travels in a header, and clients bound those.
const MAX_MESSAGE_BYTES: usize = 4096;

/// The middle of a message that is too long is left out: it begins with what, and ends with what was expected.
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
    fn a_message_that_is_too_long_keeps_its_beginning_and_its_end() {
        let long = format!("there is no column '{}'; did you mean 'x'?", "ü".repeat(1 << 20));
        let clipped = clip(&long);
        assert!(clipped.len() <= MAX_MESSAGE_BYTES);
        assert!(clipped.starts_with("there is no column") && clipped.ends_with("did you mean 'x'?"));
        assert_eq!(clip("short"), "short");
    }
}
