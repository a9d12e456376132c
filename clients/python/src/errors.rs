//! Conversion of errors to the exceptions of `forebay.errors`.

use std::time::Duration;

use forebay_client::{Error, proto::code_name};
use pyo3::{call::PyCallArgs, prelude::*, sync::PyOnceLock, types::PyModule};
use tonic::Code;

/// Converts `error` to an exception. The message includes the sources of the error.
pub(crate) fn raised(py: Python<'_>, error: &Error) -> PyErr {
    let mut words = error.with_causes();
    if error.is_absent() {
        words.push_str("; if the server is still starting, pass wait_for_server=True to connect");
    }
    if let Error::RequestRejected { code, retry_after, .. } = error {
        return refused(py, words, *code, *retry_after);
    }
    of_class(py, class(error), words)
}

/// Creates the exception of a request that a queue rejected.
fn refused(py: Python<'_>, words: String, code: Code, retry_after: Option<Duration>) -> PyErr {
    let retry_after = retry_after.map(|time| time.as_secs_f64());
    made(py, "RequestRejectedError", (words, code_name(code), retry_after))
}

/// Creates an exception of the class `class` of `forebay.errors`.
pub(crate) fn of_class(py: Python<'_>, class: &str, words: String) -> PyErr {
    made(py, class, (words,))
}

fn made<'py>(py: Python<'py>, class: &str, arguments: impl PyCallArgs<'py>) -> PyErr {
    static CLASSES: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let classes = CLASSES.get_or_try_init(py, || py.import("forebay.errors").map(Bound::unbind));
    let made = classes.and_then(|classes| classes.bind(py).getattr(class)?.call1(arguments));
    made.map_or_else(|error| error, PyErr::from_value)
}

fn class(error: &Error) -> &'static str {
    match error {
        Error::Request(_) => "RequestError",
        Error::Connect { .. } | Error::Lost { .. } => "UnavailableError",
        Error::Protocol(_) => "ProtocolError",
        Error::BatchMismatch(_) => "BatchMismatchError",
        Error::Device(_) => "DeviceError",
        Error::RetryDeadlineExceeded { .. } => "DeadlineError",
        Error::RequestRejected { .. } => "RequestRejectedError",
        Error::Status(_) if !error.missing_values().is_empty() => "RequestError",
        Error::Status(status) => match status.code() {
            Code::InvalidArgument => "RequestError",
            Code::NotFound => "NotFoundError",
            Code::Unauthenticated => "UnauthenticatedError",
            Code::PermissionDenied => "PermissionDeniedError",
            Code::FailedPrecondition if error.is_unsupported() => "UnsupportedError",
            Code::FailedPrecondition => "SnapshotUnavailableError",
            Code::ResourceExhausted => "LimitError",
            Code::DataLoss => "DataLossError",
            Code::Unavailable => "UnavailableError",
            // Another gRPC service.
            Code::Unimplemented => "ProtocolError",
            _ => "Error",
        },
    }
}
