//! Lookups and requests to queues. Their exchanges stay open between calls.

use std::{
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

use arrow_array::{Array, RecordBatch, new_null_array};
use arrow_schema::{DataType, Field, Fields};
use forebay_client::{
    Caller, Client, Error, Lookups,
    proto::v1::{Command, Infer, Lookup, Priority},
};
use parking_lot::Mutex;
use pyo3::prelude::*;
use tokio::{runtime::Runtime, task::AbortHandle};
use tonic::Code;

use crate::{
    batch::Batch,
    errors::raised,
    json::{command, json},
    notices,
    waiting::{self, Owned},
};

/// Maximum number of open exchanges per kind. The least recently used one is closed.
const MOST: usize = 8;

/// Interval at which notices are logged while requests without a waiting thread are in flight.
const NOTICE_INTERVAL: Duration = Duration::from_secs(1);

/// The open exchanges of a client, and the thread that receives their answers. Created by the first request. A forked child
/// starts without them.
#[derive(Default)]
pub(crate) struct Online {
    /// Never locked while the GIL is released, so that no fork copies a locked mutex.
    open: Mutex<Option<Owned<Open>>>,
}

pub(crate) struct Open {
    runtime: Arc<Runtime>,
    lookups: Recent<Lookups>,
    callers: Recent<Caller>,
}

/// Recently used exchanges by request and key columns. The latest is last.
pub(crate) struct Recent<T> {
    entries: Vec<Entry<T>>,
}

struct Entry<T> {
    asked: String,
    columns: Fields,
    exchange: Arc<T>,
}

impl<T> Recent<T> {
    /// Returns the exchange of the same request, or a new one. The flag is true if the exchange existed.
    fn take(&mut self, asked: &str, columns: &Fields, make: impl FnOnce() -> T) -> (Arc<T>, bool) {
        let same = |entry: &Entry<T>| entry.asked == asked && entry.columns == *columns;
        let found = self.entries.iter().position(same).map(|found| self.entries.remove(found));
        let known = found.is_some();
        let make = || Entry { asked: asked.to_owned(), columns: columns.clone(), exchange: Arc::new(make()) };
        let entry = found.unwrap_or_else(make);
        if self.entries.len() == MOST {
            self.entries.remove(0);
        }
        let exchange = Arc::clone(&entry.exchange);
        self.entries.push(entry);
        (exchange, known)
    }

    fn forget(&mut self, exchange: &Arc<T>) {
        self.entries.retain(|entry| !Arc::ptr_eq(&entry.exchange, exchange));
    }
}

/// The rows of an answer, and their metadata as JSON.
pub(crate) type Answered = (Batch, String);

/// A request of one kind.
pub(crate) trait Ask: Send + Sync + 'static {
    /// Type of the exchange of such requests.
    type Exchange: Send + Sync + 'static;

    /// Returns the exchanges of this kind.
    fn recent(open: &mut Open) -> &mut Recent<Self::Exchange>;

    /// Returns the name of the request. Requests with the same name and the same key columns share an exchange.
    fn name(&self) -> &str;

    /// Creates an exchange without opening it.
    fn make(&self) -> Self::Exchange;

    /// Sends the request for `keys`, and waits for the answer.
    fn ask(
        &self,
        exchange: &Self::Exchange,
        keys: &RecordBatch,
    ) -> impl Future<Output = Result<Answered, Error>> + Send;
}

/// A request for rows by key.
pub(crate) struct AskLookup {
    client: Client,
    request: String,
    wanted: Lookup,
    timeout: Duration,
}

impl AskLookup {
    /// Creates a lookup. `request` is a command as JSON.
    pub(crate) fn new(client: &Client, request: &str, timeout: Option<Duration>) -> Result<Self, Error> {
        let absent = || Error::Request("the request has no field 'lookup'".into());
        let wanted = command(request)?.lookup.ok_or_else(absent)?;
        let timeout = timeout.unwrap_or(Duration::MAX);
        Ok(Self { client: client.clone(), request: request.to_owned(), wanted, timeout })
    }
}

impl Ask for AskLookup {
    type Exchange = Lookups;

    fn recent(open: &mut Open) -> &mut Recent<Lookups> {
        &mut open.lookups
    }

    fn name(&self) -> &str {
        &self.request
    }

    fn make(&self) -> Lookups {
        self.client.lookups(&self.wanted)
    }

    async fn ask(&self, exchange: &Lookups, keys: &RecordBatch) -> Result<Answered, Error> {
        let command = || Command { lookup: Some(self.wanted.clone()), ..Command::default() };
        let began = Instant::now();
        let keys = &with_types(&self.client, command, keys, self.timeout).await?;
        let found = exchange.get_within(keys, self.timeout.saturating_sub(began.elapsed())).await?;
        Ok((Batch::new(&found.batch)?, json(&found.metadata)))
    }
}

/// A request to a batch queue.
pub(crate) struct AskQueue {
    pub(crate) client: Client,
    pub(crate) queue: String,
    pub(crate) timeout: Option<Duration>,
    pub(crate) priority: Priority,
}

impl Ask for AskQueue {
    type Exchange = Caller;

    fn recent(open: &mut Open) -> &mut Recent<Caller> {
        &mut open.callers
    }

    fn name(&self) -> &str {
        &self.queue
    }

    fn make(&self) -> Caller {
        self.client.caller(&self.queue)
    }

    async fn ask(&self, exchange: &Caller, keys: &RecordBatch) -> Result<Answered, Error> {
        let infer = || Command { infer: Some(Infer { queue: self.queue.clone() }), ..Command::default() };
        let began = Instant::now();
        let keys = &with_types(&self.client, infer, keys, self.timeout.unwrap_or(Duration::MAX)).await?;
        let left = self.timeout.map(|timeout| timeout.saturating_sub(began.elapsed()));
        let answer = exchange.ask_with_priority(keys, left, self.priority).await?;
        Ok((Batch::new(&answer.rows)?, json(&answer.metadata)))
    }
}

/// Returns `keys` with the types that the server expects for columns without a value, whose type only the server knows. The server has
/// the time of `timeout` to answer.
async fn with_types(
    client: &Client,
    command: impl FnOnce() -> Command,
    keys: &RecordBatch,
    timeout: Duration,
) -> Result<RecordBatch, Error> {
    let schema = keys.schema_ref();
    if !schema.fields().iter().any(|field| *field.data_type() == DataType::Null) {
        return Ok(keys.clone());
    }
    let expected = tokio::time::timeout(timeout, client.key_schema(&command())).await;
    let expected = expected.unwrap_or_else(|_| {
        let last = Box::new(Error::Protocol("the server did not say which types the keys have".into()));
        Err(Error::RetryDeadlineExceeded { waited: timeout, attempts: 1, last })
    })?;
    let typed = schema.fields().iter().zip(keys.columns()).map(|(field, column)| {
        let expected = expected.field_with_name(field.name()).map_or(&DataType::Null, Field::data_type);
        match field.data_type() {
            DataType::Null => (field.name(), new_null_array(expected, column.len()), true),
            _ => (field.name(), Arc::clone(column), true),
        }
    });
    RecordBatch::try_from_iter_with_nullable(typed).map_err(|error| Error::Request(error.to_string()))
}

/// A request in flight whose answer is passed to a function.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Request(AbortHandle);

#[pymethods]
impl Request {
    /// Cancels the request. Has no effect after the answer.
    fn cancel(&self) {
        self.0.abort();
    }
}

impl Online {
    /// Sends a request and waits for the answer. Retries once with a new exchange if the columns have changed since the exchange
    /// was opened.
    pub(crate) fn asked<A: Ask>(&self, py: Python<'_>, ask: &A, keys: &RecordBatch) -> PyResult<Answered> {
        let (runtime, exchange, known) = self.take(ask, keys)?;
        let mut answer = waiting::wait(py, &runtime, ask.ask(&exchange, keys), || Ok(()))?;
        if answer.as_ref().is_err_and(has_changed) {
            self.forget::<A>(&exchange);
            if known {
                let (runtime, exchange, _) = self.take(ask, keys)?;
                answer = waiting::wait(py, &runtime, ask.ask(&exchange, keys), || Ok(()))?;
            }
        }
        answer.map_err(|error| raised(py, &error))
    }

    /// Sends a request like [`asked`](Self::asked), without waiting. `done` is called with the answer and `None`, or with `None`
    /// and an exception, on the thread that receives the answers. It is not called after the request was cancelled.
    pub(crate) fn start<A: Ask>(
        self: &Arc<Self>,
        ask: A,
        keys: RecordBatch,
        done: Py<PyAny>,
    ) -> PyResult<Request> {
        let (runtime, exchange, known) = self.take(&ask, &keys)?;
        // The task must not be the last owner, because a runtime cannot be dropped by its own thread.
        let online = Arc::downgrade(self);
        let task = async move {
            let mut answer = with_notices(ask.ask(&exchange, &keys)).await;
            if answer.as_ref().is_err_and(has_changed) {
                // The owner is dropped with the GIL, so it exists until this returns.
                let again = Python::try_attach(|_| {
                    let online = online.upgrade()?;
                    online.forget::<A>(&exchange);
                    let taken = if known { online.take(&ask, &keys).ok() } else { None };
                    taken.map(|(_, exchange, _)| exchange)
                });
                if let Some(exchange) = again.flatten() {
                    answer = with_notices(ask.ask(&exchange, &keys)).await;
                }
            }
            // Fails if the interpreter is shutting down; nothing waits for the answer then.
            Python::try_attach(|py| {
                let called = match answer {
                    Ok(answer) => done.call1(py, (answer, py.None())),
                    Err(error) => done.call1(py, (py.None(), raised(py, &error).into_value(py))),
                };
                if let Err(error) = called {
                    error.write_unraisable(py, Some(done.bind(py)));
                }
            });
        };
        Ok(Request(runtime.spawn(task).abort_handle()))
    }

    /// Returns the exchange of a request, and true if it existed before. Must be called with the GIL.
    fn take<A: Ask>(&self, ask: &A, keys: &RecordBatch) -> PyResult<(Arc<Runtime>, Arc<A::Exchange>, bool)> {
        let mut open = self.open.lock();
        let open = opened(&mut open)?;
        let recent = A::recent(open);
        let (exchange, known) = recent.take(ask.name(), keys.schema_ref().fields(), || ask.make());
        Ok((Arc::clone(&open.runtime), exchange, known))
    }

    fn forget<A: Ask>(&self, exchange: &Arc<A::Exchange>) {
        if let Some(open) = self.open.lock().as_mut() {
            A::recent(&mut open.value).forget(exchange);
        }
    }
}

/// Waits for an answer for which no thread of Python waits, and logs notices of the client in the meantime.
async fn with_notices<T>(answer: impl Future<Output = T>) -> T {
    let mut answer = std::pin::pin!(answer);
    loop {
        if let Ok(answer) = tokio::time::timeout(NOTICE_INTERVAL, answer.as_mut()).await {
            return answer;
        }
        if notices::are_pending() {
            Python::try_attach(|py| {
                if let Err(error) = notices::log(py) {
                    error.write_unraisable(py, None);
                }
            });
        }
    }
}

/// Returns true if an exchange may have failed because the columns have changed since it was opened.
fn has_changed(error: &Error) -> bool {
    matches!(error, Error::BatchMismatch(_)) || error.code() == Some(Code::FailedPrecondition)
}

/// Returns the state of this process, created if needed.
fn opened(open: &mut Option<Owned<Open>>) -> PyResult<&mut Open> {
    // In a forked child, waiting for the thread of the parent process would never end.
    std::mem::forget(open.take_if(|open| open.was_forked()));
    match open {
        Some(open) => Ok(&mut open.value),
        None => {
            let runtime = Arc::new(waiting::runtime(1)?);
            let (lookups, callers) = (Recent { entries: Vec::new() }, Recent { entries: Vec::new() });
            Ok(&mut open.insert(Owned::new(Open { runtime, lookups, callers })).value)
        }
    }
}

impl Drop for Online {
    fn drop(&mut self) {
        if let Some(open) = self.open.get_mut().take() {
            Python::attach(|py| open.end(py, drop));
        }
    }
}
