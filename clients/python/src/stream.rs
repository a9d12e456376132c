//! The batches of one rank, received by threads that end with the stream.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread::{self, ThreadId},
    time::Duration,
};

use forebay_client::{
    Counters, Cursor, DeviceBatch, Error, Failures, Loading, Training, proto::v1::WindowLoad,
};
use parking_lot::{Mutex, MutexGuard};
use pyo3::{
    exceptions::{PyRuntimeError, PyStopIteration},
    prelude::*,
    types::PyDict,
};
use tokio::runtime::Runtime;

use crate::{
    batch::Batch,
    errors::raised,
    waiting::{self, Owned},
};

/// Maximum number of receiving threads per stream.
const MAX_THREADS: u64 = 4;

/// A running stream. Closing or dropping it ends its threads and connections.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Stream {
    running: Mutex<Option<Owned<Running>>>,
    counters: Counters,
    loading: Loading,
    /// True as soon as the stream is to be closed.
    is_closing: AtomicBool,
    /// The thread that waits for a batch. It owns the lock of `running`, and can call `close` from a signal handler.
    waiting: Mutex<Option<ThreadId>>,
    /// Process that opened the stream. In a forked child, a thread that does not exist can hold the lock of `running` permanently.
    process: u32,
}

/// Receives the utilization of the GPU, also while the stream waits for a batch.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Utilization(forebay_client::Utilization);

#[pymethods]
impl Utilization {
    /// Records the utilization, from 0 to 1. Returns false if the stream has ended.
    fn set(&self, share: f64) -> bool {
        self.0.set(share)
    }
}

/// A training, by the memory that receives its batches.
pub(crate) enum Receiving {
    OnHost(Training),
    OnDevice(Training<DeviceBatch>),
}

/// Calls a method of the training, which is the same for both kinds of memory.
macro_rules! training {
    ($receiving:expr, $method:ident($($argument:expr),*)) => {
        match $receiving {
            Receiving::OnHost(training) => training.$method($($argument),*),
            Receiving::OnDevice(training) => training.$method($($argument),*),
        }
    };
}

impl Receiving {
    /// Receives and decodes the next batch.
    async fn next(&mut self) -> Option<Result<Batch, Error>> {
        match self {
            Self::OnHost(training) => Some(training.next().await?.and_then(|batch| Batch::new(&batch))),
            Self::OnDevice(training) => Some(training.next().await?.map(Batch::on_device)),
        }
    }
}

/// A training and its threads. The tasks of the training end before the threads.
struct Running {
    training: Receiving,
    runtime: Runtime,
    /// Number of logged failures.
    logged: u64,
}

impl Stream {
    /// Starts receiving.
    pub(crate) fn open(
        py: Python<'_>,
        start: impl FnOnce() -> Result<Receiving, Error>,
        lanes: u64,
    ) -> PyResult<Self> {
        let runtime = waiting::runtime(lanes.clamp(1, MAX_THREADS) as usize)?;
        let entered = runtime.enter();
        let training = start().map_err(|error| raised(py, &error))?;
        drop(entered);
        let (counters, loading) = (training!(&training, counters()), training!(&training, loading()));
        let running = Mutex::new(Some(Owned::new(Running { training, runtime, logged: 0 })));
        let (is_closing, waiting) = (AtomicBool::new(false), Mutex::new(None));
        Ok(Self { running, counters, loading, is_closing, waiting, process: std::process::id() })
    }

    /// Locks the stream without waiting, because the owner of the lock may be waiting for the GIL.
    fn lock(&self) -> PyResult<MutexGuard<'_, Option<Owned<Running>>>> {
        self.running.try_lock().ok_or_else(|| {
            PyRuntimeError::new_err("another thread is waiting for the next batch of this iterator")
        })
    }

    fn of<T>(&self, look: impl FnOnce(&Receiving) -> T) -> PyResult<T> {
        let running = self.lock()?;
        running
            .as_ref()
            .map(|running| look(&running.value.training))
            .ok_or_else(|| PyRuntimeError::new_err("the stream is closed"))
    }
}

#[pymethods]
impl Stream {
    fn __iter__(stream: Py<Self>) -> Py<Self> {
        stream
    }

    /// Waits for the next batch. Releases the GIL while waiting. The iteration ends if another thread closes the stream.
    fn __next__(&self, py: Python<'_>) -> PyResult<Batch> {
        let mut running = self.lock()?;
        if running.as_ref().is_some_and(Owned::was_forked) {
            return Err(PyRuntimeError::new_err(
                "this iterator was created before a fork; start a new iteration in each process",
            ));
        }
        let Some(Owned { value: Running { training, runtime, logged }, .. }) = running.as_mut() else {
            return Err(PyStopIteration::new_err(()));
        };
        let failures = training!(training, failures());
        let look = || {
            if self.is_closing.load(Ordering::Relaxed) {
                return Err(PyStopIteration::new_err(()));
            }
            log_failures(py, &failures, logged)
        };
        *self.waiting.lock() = Some(thread::current().id());
        let next = waiting::wait(py, runtime, training.next(), look);
        let was_closed_here = self.waiting.lock().take().is_none();
        if was_closed_here && let Some(running) = running.take() {
            running.end(py, drop);
        }
        match next? {
            Some(Ok(batch)) => Ok(batch),
            Some(Err(error)) => Err(raised(py, &error)),
            None => Err(PyStopIteration::new_err(())),
        }
    }

    /// Epoch and step of the next batch.
    #[getter]
    fn cursor(&self) -> PyResult<(u64, u64)> {
        let Cursor { epoch, step } = self.of(|receiving| training!(receiving, cursor()))?;
        Ok((epoch, step))
    }

    /// Counters of the stream since its start. Any thread may read them.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.counters.stats();
        let dict = PyDict::new(py);
        dict.set_item("batches", stats.batches)?;
        dict.set_item("rows", stats.rows)?;
        dict.set_item("bytes", stats.bytes)?;
        dict.set_item("wait_seconds", stats.wait.as_secs_f64())?;
        dict.set_item("compute_seconds", stats.compute.as_secs_f64())?;
        dict.set_item("copy_seconds", stats.copy.as_secs_f64())?;
        dict.set_item("retries", stats.retries)?;
        Ok(dict)
    }

    /// Progress of the shuffle windows that the server loads for the stream, as a dict of `WindowLoad`. `None` if the stream waits for
    /// none, or the server has not said. Any thread may read it.
    fn loading<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(loading) = self.loading.get() else { return Ok(None) };
        let WindowLoad { blocks, blocks_done, bytes, bytes_done, waits_for_memory } = loading;
        let dict = PyDict::new(py);
        dict.set_item("blocks", blocks)?;
        dict.set_item("blocks_done", blocks_done)?;
        dict.set_item("bytes", bytes)?;
        dict.set_item("bytes_done", bytes_done)?;
        dict.set_item("waits_for_memory", waits_for_memory)?;
        Ok(Some(dict))
    }

    /// Records time that was spent on copying a batch to a device.
    fn record_copy(&self, seconds: f64) -> PyResult<()> {
        let time = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        self.of(|receiving| training!(receiving, copied(time)))
    }

    /// Handle that receives the utilization of the GPU.
    fn utilization(&self) -> PyResult<Utilization> {
        self.of(|receiving| Utilization(training!(receiving, utilization())))
    }

    /// Closes the stream, also while another thread waits for a batch. The threads and connections of the stream have ended when
    /// this returns.
    fn close(&self, py: Python<'_>) {
        self.is_closing.store(true, Ordering::Relaxed);
        if self.process != std::process::id() {
            return;
        }
        if self.waiting.lock().take_if(|thread| *thread == thread::current().id()).is_some() {
            // A signal handler, or a handler of log messages, runs within `__next__`, which closes the stream when it continues.
            return;
        }
        // The owner of the lock ends its wait when it has the GIL.
        let running = py.detach(|| self.running.lock().take());
        if let Some(running) = running {
            running.end(py, drop);
        }
    }
}

/// Logs the failures that were not logged yet; `logged` is the number of earlier ones. The stream continues after each.
fn log_failures(py: Python<'_>, failures: &Failures, logged: &mut u64) -> PyResult<()> {
    let count = failures.count();
    if count > *logged {
        let words = "%d attempts to receive the next batch failed, the last one with: %s";
        let logger = py.import("logging")?.call_method1("getLogger", ("forebay",))?;
        logger.call_method1("warning", (words, count - *logged, failures.last()))?;
        *logged = count;
    }
    Ok(())
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Some(running) = self.running.get_mut().take() {
            Python::attach(|py| running.end(py, drop));
        }
    }
}
