//! Blocking and CPU-heavy work, kept off the I/O threads.

use std::{cell::Cell, sync::Arc};

use tokio::task::{JoinHandle, spawn_blocking};
use tokio_util::task::AbortOnDropHandle;

use crate::Error;

thread_local! {
    static IN_ORDER: Cell<bool> = const { Cell::new(false) };
}

/// Runs the blocking work that is spawned on this thread as ordinary tasks, in a fixed order. For deterministic
/// simulations on a current-thread runtime.
#[doc(hidden)]
pub fn run_blocking_work_in_order() {
    IN_ORDER.set(true);
}

fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    match IN_ORDER.get() {
        false => spawn_blocking(work),
        true => tokio::spawn(async move { work() }),
    }
}

/// Runs `work` on Tokio's blocking threads. If the returned future is dropped, `work` is cancelled if it has not
/// started, and runs to completion otherwise.
///
/// # Errors
/// The error of `work`, or [`Error::Unavailable`] if the runtime shuts down.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    match AbortOnDropHandle::new(spawn(work)).await {
        Ok(outcome) => outcome,
        Err(error) => {
            Err(Error::Unavailable { location: "this process".to_owned(), source: Arc::new(error) })
        }
    }
}
