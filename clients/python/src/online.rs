//! Lookups and requests to queues. Their exchanges stay open between calls.

use std::{future::Future, sync::Arc, time::Duration};

use arrow_array::RecordBatch;
use arrow_schema::Fields;
use forebay_client::{
    Answer, Caller, Client, Error, Found, Lookups,
    proto::v1::{Lookup, Priority},
};
use parking_lot::Mutex;
use pyo3::prelude::*;
use tokio::{runtime::Runtime, sync::OnceCell};
use tonic::Code;

use crate::{
    errors::raised,
    json::command,
    waiting::{self, Owned},
};

/// Maximum number of open exchanges per kind. The least recently used one is closed.
const MOST: usize = 8;

/// The open exchanges of a client, and the thread that receives their answers. Created by the first request. A forked child
/// starts without them.
#[derive(Default)]
pub(crate) struct Online {
    /// Never locked while the GIL is released, so that no fork copies a locked mutex.
    open: Mutex<Option<Owned<Open>>>,
}

struct Open {
    runtime: Arc<Runtime>,
    lookups: Recent<OnceCell<Lookups>>,
    callers: Recent<Caller>,
}

/// Recently used exchanges by request and key columns. The latest is last.
struct Recent<T> {
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

impl Online {
    /// Looks up the rows of `keys`. `request` is a command as JSON.
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

    /// Requests the answer of `queue` for `keys`.
    pub(crate) fn infer(
        &self,
        py: Python<'_>,
        client: &Client,
        queue: &str,
        keys: &RecordBatch,
        (timeout, priority): (Option<Duration>, Priority),
    ) -> PyResult<Answer> {
        let ask =
            |caller: Arc<Caller>| async move { caller.ask_with_priority(keys, timeout, priority).await };
        self.asked(py, |open| &mut open.callers, || client.caller(queue), queue, keys, ask)
    }

    /// Sends a request by the open exchange for `request`, or by a new one. Retries once with a new exchange if the columns have
    /// changed since the exchange was opened.
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
                let mut open = self.open.lock();
                let open = opened(&mut open)?;
                let (exchange, known) = kind(open).take(request, keys.schema_ref().fields(), &make);
                (Arc::clone(&open.runtime), exchange, known)
            };
            let error = match waiting::wait(py, &runtime, ask(Arc::clone(&exchange)), || Ok(()))? {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let changed =
                matches!(error, Error::BatchMismatch(_)) || error.code() == Some(Code::FailedPrecondition);
            if changed && let Some(open) = self.open.lock().as_mut() {
                kind(&mut open.value).forget(&exchange);
            }
            if !(again && known && changed) {
                return Err(raised(py, &error));
            }
            again = false;
        }
    }
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

fn wanted(request: &str) -> Result<Lookup, Error> {
    command(request)?.lookup.ok_or_else(|| Error::Request("the request has no field 'lookup'".into()))
}
