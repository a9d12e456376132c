//! Failures as Python's exceptions, which are classes of `forebay.errors`.

use forebay_client::Error;
use pyo3::{prelude::*, sync::PyOnceLock, types::PyModule};
use tonic::Code;

/// The exception that stands for `error`, with its words and those of its causes.
pub(crate) fn raised(py: Python<'_>, error: &Error) -> PyErr {
    let mut words = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let cause_words = cause.to_string();
        if !words.contains(&cause_words) {
            words.push_str(": ");
            words.push_str(&cause_words);
        }
        source = cause.source();
    }
    of_class(py, class(error), words)
}

/// An exception of `forebay.errors`.
pub(crate) fn of_class(py: Python<'_>, class: &str, words: String) -> PyErr {
    static CLASSES: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let classes = CLASSES.get_or_try_init(py, || py.import("forebay.errors").map(Bound::unbind));
    let made = classes.and_then(|classes| classes.bind(py).getattr(class)?.call1((words,)));
    made.map_or_else(|error| error, PyErr::from_value)
}

fn class(error: &Error) -> &'static str {
    match error {
        Error::Request(_) => "RequestError",
        Error::Connect { .. } | Error::Lost { .. } => "UnavailableError",
        Error::Protocol(_) => "ProtocolError",
        Error::Foreign(_) => "ForeignBatchError",
        Error::Device(_) => "DeviceError",
        Error::GaveUp { .. } => "DeadlineError",
        Error::Status(status) => match status.code() {
            Code::InvalidArgument => "RequestError",
            Code::NotFound => "NotFoundError",
            Code::Unauthenticated => "UnauthenticatedError",
            Code::PermissionDenied => "PermissionDeniedError",
            Code::FailedPrecondition => "ChangedError",
            Code::ResourceExhausted => "LimitError",
            Code::DataLoss => "DataLossError",
            Code::Unavailable => "UnavailableError",
            _ => "Error",
        },
    }
}
