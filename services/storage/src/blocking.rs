//! Work that runs apart from the future that waits for it: blocking and CPU-heavy work, and tasks.

use std::sync::Arc;

use forebay_cache::spawn_blocking;
use tokio::task::JoinHandle;
use tokio_util::task::AbortOnDropHandle;

use crate::Error;

/// Runs `work` on Tokio's blocking threads. If the returned future is dropped, `work` is cancelled if it has not
/// started, and runs to completion otherwise.
///
/// # Errors
/// The error of `work`, or [`Error::Unavailable`] if the runtime shuts down.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    joined(spawn_blocking(work)).await
}

/// Runs `work` as a task, which makes progress whether or not the returned future is polled. If that is dropped, `work` is
/// cancelled.
///
/// # Errors
/// As [`blocking`].
pub(crate) async fn task<T: Send + 'static>(
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Error> {
    joined(tokio::spawn(work)).await
}

async fn joined<T>(handle: JoinHandle<Result<T, Error>>) -> Result<T, Error> {
    match AbortOnDropHandle::new(handle).await {
        Ok(outcome) => outcome,
        Err(error) => Err(stopping(error)),
    }
}

/// Error of work that has not ended, because the process stops.
pub(crate) fn stopping(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Unavailable { location: "this process".to_owned(), source: Arc::new(error) }
}
