//! Blocking work, kept off the I/O threads.

use std::cell::Cell;

use tokio::task::JoinHandle;

thread_local! {
    static IN_ORDER: Cell<bool> = const { Cell::new(false) };
}

/// Runs the blocking work that is spawned on this thread as ordinary tasks, in a fixed order. For deterministic
/// simulations on a current-thread runtime.
#[doc(hidden)]
pub fn run_blocking_work_in_order() {
    IN_ORDER.set(true);
}

/// Runs `work` on Tokio's blocking threads.
pub fn spawn_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    match IN_ORDER.get() {
        false => tokio::task::spawn_blocking(work),
        true => tokio::spawn(async move { work() }),
    }
}
