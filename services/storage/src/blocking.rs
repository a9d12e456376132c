//! Blocking and CPU-heavy work, kept off the I/O threads.

use std::sync::Arc;

use forebay_cache::spawn_blocking;
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
    match AbortOnDropHandle::new(spawn_blocking(work)).await {
        Ok(outcome) => outcome,
        Err(error) => {
            Err(Error::Unavailable { location: "this process".to_owned(), source: Arc::new(error) })
        }
    }
}
