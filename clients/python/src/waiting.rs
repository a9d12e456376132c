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

/// Waits for `future`, which may be dropped and made again, with other Python threads running and signals handled.
pub(crate) fn wait<T: Send, F>(
    py: Python<'_>,
    runtime: &Runtime,
    mut future: impl FnMut() -> F + Send,
) -> PyResult<T>
where
    F: Future<Output = T> + Send,
{
    loop {
        let done =
            py.detach(|| runtime.block_on(async { tokio::time::timeout(LOOK_INTERVAL, future()).await }));
        if let Ok(done) = done {
            return Ok(done);
        }
        py.check_signals()?;
    }
}

/// Waits for `future`, which goes on meanwhile.
pub(crate) fn finish<T: Send + 'static>(
    py: Python<'_>,
    runtime: &Runtime,
    future: impl Future<Output = T> + Send + 'static,
) -> PyResult<T> {
    let mut task = runtime.spawn(future);
    loop {
        let looked =
            py.detach(|| runtime.block_on(async { tokio::time::timeout(LOOK_INTERVAL, &mut task).await }));
        if let Ok(done) = looked {
            return done.map_err(|error| PyRuntimeError::new_err(error.to_string()));
        }
        py.check_signals().inspect_err(|_| task.abort())?;
    }
}
