//! A worker of a batch queue, with a thread of its own.

use forebay_client::{Client, Error};
use parking_lot::{Mutex, MutexGuard};
use pyo3::{
    exceptions::{PyRuntimeError, PyStopIteration},
    prelude::*,
};
use tokio::runtime::Runtime;

use crate::{
    batch::Batch,
    errors::raised,
    json::json,
    rows::rows,
    waiting::{self, Owned},
};

/// Name of the reply column if the reply is a single array.
const SCORE: &str = "score";

/// A worker of a batch queue. Closing or dropping it ends its thread and connection.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Worker {
    running: Mutex<Option<Owned<Running>>>,
}

struct Running {
    worker: forebay_client::Worker,
    runtime: Runtime,
}

impl Running {
    /// Closes the worker after its replies were received, then ends its thread.
    fn close(self) {
        let Self { worker, runtime } = self;
        runtime.block_on(worker.close());
    }
}

impl Worker {
    /// Opens the exchange.
    pub(crate) fn open(py: Python<'_>, client: &Client, queue: &str, credits: u64) -> PyResult<Self> {
        let runtime = waiting::runtime(1)?;
        let opened = waiting::wait(py, &runtime, client.worker(queue, credits), || Ok(()))?;
        let worker = opened.map_err(|error| raised(py, &error))?;
        Ok(Self { running: Mutex::new(Some(Owned::new(Running { worker, runtime }))) })
    }

    /// Locks the worker without waiting, because the owner of the lock may be waiting for the GIL.
    fn lock(&self) -> PyResult<MutexGuard<'_, Option<Owned<Running>>>> {
        self.running.try_lock().ok_or_else(|| {
            PyRuntimeError::new_err("another thread is waiting for the next batch of this worker")
        })
    }
}

#[pymethods]
impl Worker {
    fn __iter__(worker: Py<Self>) -> Py<Self> {
        worker
    }

    /// Waits for the next batch. Releases the GIL while waiting.
    fn __next__(&self, py: Python<'_>) -> PyResult<InferenceBatch> {
        let mut running = self.lock()?;
        if running.as_ref().is_some_and(Owned::was_forked) {
            return Err(PyRuntimeError::new_err(
                "this worker was created before a fork; call Client.worker in each process",
            ));
        }
        let Some(Owned { value: Running { worker, runtime }, .. }) = running.as_mut() else {
            return Err(PyStopIteration::new_err(()));
        };
        // Batches are decoded without the GIL.
        let next =
            async { worker.next().await?.map(|work| Ok((Batch::new(&work.batch)?, work))).transpose() };
        let next = waiting::wait(py, runtime, next, || Ok(()))?;
        match next.map_err(|error: Error| raised(py, &error))? {
            Some((batch, work)) => InferenceBatch::new(py, batch, work),
            None => Err(PyStopIteration::new_err(())),
        }
    }

    /// Closes the worker. Its thread and connection have ended when this returns.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let running = self.lock()?.take();
        if let Some(running) = running {
            running.end(py, Running::close);
        }
        Ok(())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(running) = self.running.get_mut().take() {
            Python::attach(|py| running.end(py, Running::close));
        }
    }
}

/// A batch that a worker computes. If it is dropped without a reply, its callers receive an error.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct InferenceBatch {
    batch: Py<Batch>,
    metadata: String,
    work: Mutex<Option<forebay_client::InferenceBatch>>,
}

impl InferenceBatch {
    fn new(py: Python<'_>, batch: Batch, work: forebay_client::InferenceBatch) -> PyResult<Self> {
        let batch = Py::new(py, batch)?;
        Ok(Self { batch, metadata: json(&work.metadata), work: Mutex::new(Some(work)) })
    }

    fn take(&self) -> Option<forebay_client::InferenceBatch> {
        self.work.lock().take()
    }
}

#[pymethods]
impl InferenceBatch {
    /// Features of the batch.
    #[getter]
    fn batch(&self, py: Python<'_>) -> Py<Batch> {
        self.batch.clone_ref(py)
    }

    /// Metadata of the batch, as JSON.
    #[getter]
    fn metadata(&self) -> &str {
        &self.metadata
    }

    /// True until the batch has a reply or has failed.
    #[getter]
    fn is_open(&self) -> bool {
        self.work.lock().is_some()
    }

    /// Sends the rows of a reply. Returns None, or the reason why the reply was discarded although the worker can continue: the connection
    /// was lost, so that the server assigns the batch to another worker, or the reply is larger than the server accepts.
    fn reply(&self, py: Python<'_>, reply: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
        let reply = rows(reply, SCORE)?;
        let work = self.take();
        let work = work.ok_or_else(|| PyRuntimeError::new_err("the batch already has a reply"))?;
        match work.reply(&reply) {
            Ok(()) => Ok(None),
            Err(Error::Lost { .. }) => {
                Ok(Some("the server has disconnected, another worker receives the batch".into()))
            }
            Err(Error::Status(status)) => Ok(Some(format!(
                "{}. The server divides the batch; lower max_batch_rows of the queue so that replies fit",
                status.message()
            ))),
            Err(error) => Err(raised(py, &error)),
        }
    }

    /// Sends an error to the callers. Returns false if the batch was answered before.
    fn fail(&self, message: String) -> bool {
        let work = self.take();
        let open = work.is_some();
        if let Some(work) = work {
            work.fail(message);
        }
        open
    }
}
