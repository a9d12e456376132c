//! Waiting for Rust without holding up Python.

use std::{future::Future, time::Duration};

use pyo3::{exceptions::PyRuntimeError, prelude::*};
use tokio::runtime::{Builder, Runtime};

/// How soon Ctrl-C is noticed.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// A runtime with `threads` threads, which are gone when it is.
pub(crate) fn runtime(threads: usize) -> PyResult<Runtime> {
    let built = Builder::new_multi_thread()
        .worker_threads(threads)
        .max_blocking_threads(1)
        .thread_name("forebay")
        .enable_all()
        .build();
    built.map_err(|error| PyRuntimeError::new_err(format!("can't start forebay's threads: {error}")))
}

/// Waits for `future` with other Python threads running and signals handled; one that raises ends the wait. Meanwhile, and
/// in the end, `look` may see what goes on.
pub(crate) fn wait<T: Send>(
    py: Python<'_>,
    runtime: &Runtime,
    future: impl Future<Output = T> + Send,
    mut look: impl FnMut() -> PyResult<()>,
) -> PyResult<T> {
    let mut future = std::pin::pin!(future);
    loop {
        let some_time = async { tokio::time::timeout(LOOK_INTERVAL, future.as_mut()).await };
        let done = py.detach(|| runtime.block_on(some_time));
        look()?;
        match done {
            Ok(done) => return Ok(done),
            Err(_) => py.check_signals()?,
        }
    }
}

/// Waits in the same way for `future`, which needs nothing but a runtime for the time being.
pub(crate) fn wait_once<T: Send>(py: Python<'_>, future: impl Future<Output = T> + Send) -> PyResult<T> {
    let runtime = runtime(1)?;
    let done = wait(py, &runtime, future, || Ok(()));
    py.detach(|| drop(runtime));
    done
}
