//! Lookups and requests to queues, whose exchanges stay open between calls.

use std::{
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use arrow_array::RecordBatch;
use arrow_schema::Fields;
use forebay_client::{
    Answer, Caller, Client, Error, Found, Lookups,
    proto::{
        Encoding,
        v1::{Command, Lookup},
    },
};
use pyo3::prelude::*;
use tokio::{runtime::Runtime, sync::OnceCell};
use tonic::Code;

use crate::{errors::raised, waiting};

/// Exchanges of one kind that stay open; the one that was not used for the longest goes.
const MOST: usize = 8;

/// Nothing, until something is asked; then a thread that receives, and the exchanges that were used last. A forked child
/// begins with nothing.
#[derive(Default)]
pub(crate) struct Online {
    open: Mutex<Option<Open>>,
}

struct Open {
    runtime: Arc<Runtime>,
    lookups: Recent<OnceCell<Lookups>>,
    callers: Recent<Caller>,
    /// The process that has the thread.
    process: u32,
}

/// Those that were used last, by what was asked and the columns it was asked with; the latest comes last.
struct Recent<T> {
    entries: Vec<Entry<T>>,
}

struct Entry<T> {
    asked: String,
    columns: Fields,
    exchange: Arc<T>,
}

impl<T> Recent<T> {
    /// That of the same request, or a new one; and whether there was one.
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

impl Online {
    /// The rows of `keys`; `request` is a command as JSON.
    pub(crate) fn lookup(
        &self,
        py: Python<'_>,
        client: &Client,
        request: &str,
        keys: &RecordBatch,
    ) -> PyResult<Found> {
        let wanted = wanted(request).map_err(|error| raised(py, &error))?;
        let wanted = &wanted;
        let ask = |lookups: Arc<OnceCell<Lookups>>| async move {
            lookups.get_or_try_init(|| client.lookup(wanted)).await?.get(keys).await
        };
        self.asked(py, |open| &mut open.lookups, OnceCell::new, request, keys, ask)
    }

    /// What the workers of `queue` make of `keys`.
    pub(crate) fn infer(
        &self,
        py: Python<'_>,
        client: &Client,
        queue: &str,
        keys: &RecordBatch,
        timeout: Option<Duration>,
    ) -> PyResult<Answer> {
        let ask = |caller: Arc<Caller>| async move { caller.ask(keys, timeout).await };
        self.asked(py, |open| &mut open.callers, || client.caller(queue), queue, keys, ask)
    }

    /// Asks by the exchange that is open for `request`, or a new one. A new one is tried, too, where the columns have changed
    /// since the other began.
    fn asked<T, R: Send, F: Future<Output = Result<R, Error>> + Send>(
        &self,
        py: Python<'_>,
        kind: impl Fn(&mut Open) -> &mut Recent<T>,
        make: impl Fn() -> T,
        request: &str,
        keys: &RecordBatch,
        ask: impl Fn(Arc<T>) -> F,
    ) -> PyResult<R> {
        let mut again = true;
        loop {
            let (runtime, exchange, known) = {
                let mut open = self.lock();
                let open = opened(&mut open)?;
                let (exchange, known) = kind(open).take(request, keys.schema_ref().fields(), &make);
                (Arc::clone(&open.runtime), exchange, known)
            };
            let error = match waiting::wait(py, &runtime, ask(Arc::clone(&exchange)), || Ok(()))? {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let changed =
                matches!(error, Error::Foreign(_)) || error.code() == Some(Code::FailedPrecondition);
            if changed && let Some(open) = self.lock().as_mut() {
                kind(open).forget(&exchange);
            }
            if !(again && known && changed) {
                return Err(raised(py, &error));
            }
            again = false;
        }
    }

    /// Never held while Python runs other threads, or forks.
    fn lock(&self) -> MutexGuard<'_, Option<Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is open in this process.
fn opened(open: &mut Option<Open>) -> PyResult<&mut Open> {
    let process = std::process::id();
    if let Some(forked) = open.take_if(|open| open.process != process) {
        // Its thread is the parent's: waiting for it here would take for ever.
        std::mem::forget(forked);
    }
    match open {
        Some(open) => Ok(open),
        None => {
            let runtime = Arc::new(waiting::runtime(1)?);
            let (lookups, callers) = (Recent { entries: Vec::new() }, Recent { entries: Vec::new() });
            Ok(open.insert(Open { runtime, lookups, callers, process }))
        }
    }
}

impl Drop for Online {
    fn drop(&mut self) {
        let Some(open) = self.open.get_mut().unwrap_or_else(PoisonError::into_inner).take() else { return };
        if open.process != std::process::id() {
            std::mem::forget(open);
            return;
        }
        Python::attach(|py| py.detach(|| drop(open)));
    }
}

fn wanted(request: &str) -> Result<Lookup, Error> {
    let command: Result<Command, _> = Encoding::Json.decode("Command", request.as_bytes());
    let command = command.map_err(|error| Error::Request(error.to_string()))?;
    command.lookup.ok_or_else(|| Error::Request("the request holds no 'lookup'".into()))
}
