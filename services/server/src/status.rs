//! Errors as gRPC statuses: one place, one rule a kind.

use forebay_loader::Error as Load;
use forebay_proto::DecodeError;
use forebay_storage::Error as Storage;
use tonic::{Code, Status};

/// The status of a failure of the training path.
pub(crate) fn of_load(error: &Load) -> Status {
    let code = match error {
        Load::Invalid { .. } => Code::InvalidArgument,
        Load::TooLarge { .. } => Code::ResourceExhausted,
        Load::Value { .. } => Code::InvalidArgument,
        Load::Storage(error) => return of_storage(error),
        Load::Internal(_) => Code::Internal,
    };
    Status::new(code, error.to_string())
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
    Status::new(code, error.to_string())
}

/// The status of bytes that are no message.
pub(crate) fn of_decode(error: &DecodeError) -> Status {
    Status::invalid_argument(error.to_string())
}
