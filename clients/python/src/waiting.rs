//! Waiting for futures without blocking other Python threads.

use std::{future::Future, time::Duration};

use pyo3::{exceptions::PyRuntimeError, prelude::*};
use tokio::runtime::{Builder, Handle, Runtime};

use crate::notices;

/// Interval of the checks for signals such as Ctrl-C.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// A value with threads of this process. A forked child has a copy of the value, but no threads.
pub(crate) struct Owned<T> {
    pub(crate) value: T,
    process: u32,
}

impl<T: Send + 'static> Owned<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value, process: std::process::id() }
    }

    /// Returns true if the threads are those of the parent process.
    pub(crate) fn was_forked(&self) -> bool {
        self.process != std::process::id()
    }

    /// Ends the value by `end`, with the GIL released. In a forked child, waiting for the threads would never end.
    ///
    /// Python can collect garbage on the thread that completes a request of asyncio, which cannot wait for itself. There, `end`
    /// runs on another thread, and this does not wait for it.
    pub(crate) fn end(self, py: Python<'_>, end: impl FnOnce(T) + Send + 'static) {
        if self.was_forked() {
            std::mem::forget(self);
            return;
        }
        if Handle::try_current().is_ok() {
            std::thread::spawn(|| end(self.value));
            return;
        }
        py.detach(|| end(self.value));
    }
}

/// Creates a runtime with `threads` threads, which end when it is dropped.
pub(crate) fn runtime(threads: usize) -> PyResult<Runtime> {
    let built = Builder::new_multi_thread()
        .worker_threads(threads)
        .max_blocking_threads(1)
        .thread_name("forebay")
        .enable_all()
        .build();
    built.map_err(|error| PyRuntimeError::new_err(format!("cannot start threads: {error}")))
}

/// Waits for `future` with the GIL released. Handles signals; an exception of a signal handler ends the wait. Calls `look`
/// at the start and periodically, and logs notices of the client. An exception never discards a result.
pub(crate) fn wait<T: Send>(
    py: Python<'_>,
    runtime: &Runtime,
    future: impl Future<Output = T> + Send,
    mut look: impl FnMut() -> PyResult<()>,
) -> PyResult<T> {
    let mut future = std::pin::pin!(future);
    look()?;
    loop {
        let some_time = async { tokio::time::timeout(LOOK_INTERVAL, future.as_mut()).await };
        if let Ok(done) = py.detach(|| runtime.block_on(some_time)) {
            return Ok(done);
        }
        look()?;
        notices::log(py)?;
        py.check_signals()?;
    }
}

/// Waits for `future` like [`wait`], on a temporary runtime.
pub(crate) fn wait_once<T: Send>(py: Python<'_>, future: impl Future<Output = T> + Send) -> PyResult<T> {
    wait_once_and_look(py, future, || Ok(()))
}

/// Waits for `future` like [`wait`], with its calls of `look`, on a temporary runtime.
pub(crate) fn wait_once_and_look<T: Send>(
    py: Python<'_>,
    future: impl Future<Output = T> + Send,
    look: impl FnMut() -> PyResult<()>,
) -> PyResult<T> {
    let runtime = runtime(1)?;
    let done = wait(py, &runtime, future, look);
    py.detach(|| drop(runtime));
    done
}
