//! Blocking work, kept off the I/O threads.

use std::{cell::RefCell, time::Duration};

use tokio::task::JoinHandle;

/// Time that each operation of simulated blocking work takes.
type Durations = Box<dyn FnMut() -> Duration>;

thread_local! {
    static SIMULATED: RefCell<Option<Durations>> = const { RefCell::new(None) };
}

/// Runs the blocking work that is spawned on this thread as ordinary tasks, in a fixed order. For deterministic
/// simulations on a current-thread runtime.
#[doc(hidden)]
pub fn run_blocking_work_in_order() {
    simulate_blocking_work(|| Duration::ZERO);
}

/// As [`run_blocking_work_in_order`], but each operation takes the time that `duration` returns, as on a disk that is slow or
/// hangs. As on a blocking thread, an operation that has started ends, even if the caller no longer waits for it.
#[doc(hidden)]
pub fn simulate_blocking_work(duration: impl FnMut() -> Duration + 'static) {
    SIMULATED.with_borrow_mut(|simulated| *simulated = Some(Box::new(duration)));
}

/// Runs `work` on Tokio's blocking threads.
pub fn spawn_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    let took = SIMULATED.with_borrow_mut(|simulated| simulated.as_mut().map(|duration| duration()));
    let Some(took) = took else { return tokio::task::spawn_blocking(work) };
    if took.is_zero() {
        return tokio::spawn(async move { work() });
    }
    tokio::spawn(async move {
        let started = tokio::spawn(async move {
            tokio::time::sleep(took).await;
            work()
        });
        match started.await.map_err(tokio::task::JoinError::try_into_panic) {
            Ok(result) => result,
            Err(Ok(panic)) => std::panic::resume_unwind(panic),
            // The runtime is stopping.
            Err(Err(_)) => std::future::pending().await,
        }
    })
}
