//! The worker's side of a batch queue, by a thread that ends with it.

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use forebay_client::{Client, Error, Worker};
use pyo3::{
    exceptions::{PyRuntimeError, PyStopIteration},
    prelude::*,
};
use tokio::runtime::Runtime;

use crate::{batch::Batch, errors::raised, rows::rows, tier::json, waiting};

/// The column of a reply that is one array.
const SCORE: &str = "score";

/// A worker. Its thread and connection end when it is closed, or dropped.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Serving {
    running: Mutex<Option<Running>>,
}

struct Running {
    worker: Worker,
    runtime: Runtime,
    /// The process that opened it: a forked child has its memory, but not its thread.
    process: u32,
}

impl Running {
    fn was_forked(&self) -> bool {
        self.process != std::process::id()
    }

    /// Ends it, once its replies have been taken, then its thread.
    fn end(self, py: Python<'_>) {
        if self.was_forked() {
            // Its thread is the parent's: waiting for it here would take for ever.
            std::mem::forget(self);
            return;
        }
        py.detach(|| {
            let Self { worker, runtime, .. } = self;
            runtime.block_on(worker.close());
        });
    }
}

impl Serving {
    /// Opens the exchange.
    pub(crate) fn open(py: Python<'_>, client: &Client, queue: &str, credits: u64) -> PyResult<Self> {
        let runtime = waiting::runtime(1)?;
        let opened = waiting::wait(py, &runtime, client.serve(queue, credits), || Ok(()))?;
        let worker = opened.map_err(|error| raised(py, &error))?;
        Ok(Self { running: Mutex::new(Some(Running { worker, runtime, process: std::process::id() })) })
    }

    /// Without waiting: who has it may be waiting for Python itself.
    fn lock(&self) -> PyResult<MutexGuard<'_, Option<Running>>> {
        match self.running.try_lock() {
            Ok(running) => Ok(running),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                Err(PyRuntimeError::new_err("another thread waits for this worker's next batch"))
            }
        }
    }
}

#[pymethods]
impl Serving {
    fn __iter__(serving: Py<Self>) -> Py<Self> {
        serving
    }

    /// The next batch to compute. Other Python threads run while it waits.
    fn __next__(&self, py: Python<'_>) -> PyResult<Work> {
        let mut running = self.lock()?;
        if running.as_ref().is_some_and(Running::was_forked) {
            return Err(PyRuntimeError::new_err(
                "this worker was made before a fork; call serve anew in each process",
            ));
        }
        let Some(Running { worker, runtime, .. }) = running.as_mut() else {
            return Err(PyStopIteration::new_err(()));
        };
        let next = waiting::wait(py, runtime, worker.next(), || Ok(()))?;
        match next.map_err(|error| raised(py, &error))? {
            Some(work) => Work::new(py, work),
            None => Err(PyStopIteration::new_err(())),
        }
    }

    /// Ends it: no thread or connection is left when this returns.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let running = self.lock()?.take();
        if let Some(running) = running {
            running.end(py);
        }
        Ok(())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Some(running) = self.running.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            Python::attach(|py| running.end(py));
        }
    }
}

/// One batch to compute. Dropped without a reply, it is answered with an error.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Work {
    batch: Py<Batch>,
    about: String,
    work: Mutex<Option<forebay_client::Work>>,
}

impl Work {
    fn new(py: Python<'_>, work: forebay_client::Work) -> PyResult<Self> {
        let batch = Py::new(py, Batch::new(py, &work.batch)?)?;
        Ok(Self { batch, about: json(&work.about), work: Mutex::new(Some(work)) })
    }

    fn take(&self) -> Option<forebay_client::Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[pymethods]
impl Work {
    /// Its features.
    #[getter]
    fn batch(&self, py: Python<'_>) -> Py<Batch> {
        self.batch.clone_ref(py)
    }

    /// What the server says of it, as JSON.
    #[getter]
    fn about(&self) -> &str {
        &self.about
    }

    /// Sends the rows of a reply; whether the server that the batch is of is still there to take them.
    fn reply(&self, py: Python<'_>, reply: &Bound<'_, PyAny>) -> PyResult<bool> {
        let reply = rows(reply, SCORE)?;
        let work = self.take();
        let work = work.ok_or_else(|| PyRuntimeError::new_err("the batch has been answered before"))?;
        match work.reply(&reply) {
            Ok(()) => Ok(true),
            Err(Error::Lost { .. }) => Ok(false),
            Err(error) => Err(raised(py, &error)),
        }
    }

    /// Tells the callers that there is no answer, and why; whether there was none yet.
    fn fail(&self, why: String) -> bool {
        let work = self.take();
        let open = work.is_some();
        if let Some(work) = work {
            work.fail(why);
        }
        open
    }
}
