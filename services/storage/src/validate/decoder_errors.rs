//! Errors and panics of the Parquet decoder.

use std::{any::Any, sync::Arc};

use forebay_cache::catch_expected_panic;
use parquet::errors::ParquetError;

use crate::{Error, error::Source};

/// Runs decoder code and converts its errors. A panic is an error, too: the file has a form that the decoder does not expect.
///
/// # Errors
/// [`Error::Unsupported`] for a panic and for what the decoder does not implement; [`Error::Corrupt`] for other errors of the decoder.
pub(crate) fn catch_panics<T>(url: &str, run: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, Error> {
    match catch_expected_panic(run) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(decoder_error(url, error)),
        Err(panic) => {
            let message = panic_message(&*panic);
            // With debug assertions, the decoder panics instead of returning this error.
            if message.contains("InvalidArgumentError(") {
                return Err(Error::corrupt(url, message));
            }
            let detail = format!("the decoder stopped with: {message}; check the file with another reader");
            Err(Error::unsupported(url, detail))
        }
    }
}

/// Message of a panic.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let message = panic.downcast_ref::<String>().map(String::as_str);
    message.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

/// Converts an error of the decoder.
fn decoder_error(url: &str, error: ParquetError) -> Error {
    if let ParquetError::NYI(detail) = error {
        return Error::unsupported(url, detail);
    }
    let detail = match &error {
        ParquetError::External(cause) => cause.to_string(),
        other => other.to_string(),
    };
    if has_wide_deltas(&detail) {
        return Error::unsupported(url, WIDE_DELTAS);
    }
    let source: Source = Arc::new(error);
    Error::Corrupt { file: url.to_owned(), row_group: None, column: None, detail, source: Some(source) }
}

/// Reason for which integers that DuckDB writes are not read. A damaged page can look the same.
const WIDE_DELTAS: &str = "integers of 32 bits whose encoding DELTA_BINARY_PACKED has differences of more than 32 bits, which the format \
                           does not allow (DuckDB writes them with PARQUET_VERSION v2); write the file with PARQUET_VERSION v1 or another \
                           program";

/// True for the messages with which the decoder refuses deltas that were computed with 64 bits. The deltas of 32-bit integers then have up to
/// 34 bits, and the first value of unsigned ones is a positive number.
fn has_wide_deltas(message: &str) -> bool {
    let widths =
        [33, 34].map(|bits| format!("Invalid delta bit width {bits} which is larger than expected 32"));
    message.contains("'min_delta' too large")
        || message.contains("first value too large")
        || widths.iter().any(|width| message.contains(width))
}
