//! Work that is too long for the I/O threads.

use std::sync::Arc;

use tokio::task::spawn_blocking;
use tokio_util::task::AbortOnDropHandle;

use crate::Error;

/// Runs `work` beside the I/O threads. If the caller is dropped, it runs to its end, or, if it has not begun, not at
/// all.
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
