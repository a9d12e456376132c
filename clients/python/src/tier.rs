//! The client of a cluster.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use forebay_client::{
    Client, Config, Error, Token,
    proto::v1::{CountResult, Priority, Train},
};
use parking_lot::Mutex;
use pyo3::{
    exceptions::PyValueError,
    prelude::*,
    types::{PyBytes, PyDict},
};

use crate::{
    errors::raised,
    json::{command, json},
    notices,
    online::{Answered, AskLookup, AskQueue, Online, Request},
    plan::Plan,
    rows::rows,
    serving::Worker,
    values::ValueSet,
    waiting,
};

/// Minimum time between two calls with the progress of a plan.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum time limit, in seconds: 30 years.
const MAX_SECONDS: f64 = 30.0 * 365.0 * 86_400.0;

/// The client of a cluster. Opens connections and starts a thread with the first lookup or request.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Cluster {
    client: Client,
    online: Arc<Online>,
}

#[pymethods]
impl Cluster {
    #[new]
    fn new(py: Python<'_>, urls: Vec<String>, options: &Bound<'_, PyDict>) -> PyResult<Self> {
        let client = Client::new(urls, config(options)?).map_err(|error| raised(py, &error))?;
        let client = client.on_waiting(notices::add);
        Ok(Self { client, online: Arc::default() })
    }

    /// True if a server has accepted a connection of this client.
    #[getter]
    fn was_connected(&self) -> bool {
        self.client.was_connected()
    }

    /// Requests the plan of `request`, a command as JSON, whose filters refer to `values`. While the server counts rows, calls `progress`
    /// with the `CountResult` so far as JSON, on this thread and at most twice a second.
    #[pyo3(signature = (request, values=Vec::new(), progress=None))]
    fn plan(
        &self,
        py: Python<'_>,
        request: &str,
        values: Vec<Py<ValueSet>>,
        progress: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Plan> {
        let train = train(request).map_err(|error| raised(py, &error))?;
        let client = self.client.with_values(values.into_iter().map(|values| values.get().set()));
        let latest: Mutex<Option<CountResult>> = Mutex::new(None);
        let planned = client.plan_watched(&train, |counted| *latest.lock() = Some(counted));
        let mut shown_at: Option<Instant> = None;
        let show = || {
            let Some(progress) = progress else { return Ok(()) };
            if shown_at.is_some_and(|shown_at| shown_at.elapsed() < PROGRESS_INTERVAL) {
                return Ok(());
            }
            // The lock must not be held while Python runs.
            let Some(counted) = latest.lock().take() else { return Ok(()) };
            shown_at = Some(Instant::now());
            progress.call1((json(&counted),)).map(drop)
        };
        let plan = waiting::wait_once_and_look(py, planned, show)?;
        plan.map(|plan| Plan::new(client.clone(), plan)).map_err(|error| raised(py, &error))
    }

    /// Lists the datasets that the client may read, each as a `DatasetInfo` in JSON.
    fn datasets(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let client = self.client.clone();
        let listed = waiting::wait_once(py, async move { client.datasets().await })?;
        listed.map(|listed| listed.iter().map(json).collect()).map_err(|error| raised(py, &error))
    }

    /// Describes a dataset by its `DatasetInfo` in JSON.
    fn dataset(&self, py: Python<'_>, name: String) -> PyResult<String> {
        let client = self.client.clone();
        let described = waiting::wait_once(py, async move { client.dataset(&name).await })?;
        described.map(|described| json(&described)).map_err(|error| raised(py, &error))
    }

    /// Looks up the rows of `keys`. `request` is a command as JSON, `timeout` is in seconds. Returns the rows and their metadata
    /// as JSON.
    #[pyo3(signature = (request, keys, timeout=None))]
    fn lookup(
        &self,
        py: Python<'_>,
        request: &str,
        keys: &Bound<'_, PyAny>,
        timeout: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Answered> {
        let ask = self.ask_lookup(py, request, timeout)?;
        self.online.asked(py, &ask, &rows(keys, "key")?)
    }

    /// Looks up rows without waiting. Calls `done` with the answer and `None`, or with `None` and an exception.
    fn start_lookup(
        &self,
        py: Python<'_>,
        done: Py<PyAny>,
        request: &str,
        keys: &Bound<'_, PyAny>,
        timeout: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Request> {
        let ask = self.ask_lookup(py, request, timeout)?;
        self.online.start(ask, rows(keys, "key")?, done)
    }

    /// Requests the answer of `queue` for `keys`. `timeout` is in seconds. Returns the rows and their metadata as JSON.
    /// `is_low` requests low priority.
    #[pyo3(signature = (queue, keys, timeout=None, is_low=false))]
    fn infer(
        &self,
        py: Python<'_>,
        queue: &str,
        keys: &Bound<'_, PyAny>,
        timeout: Option<Bound<'_, PyAny>>,
        is_low: bool,
    ) -> PyResult<Answered> {
        let ask = self.ask_queue(queue, timeout, is_low)?;
        self.online.asked(py, &ask, &rows(keys, "key")?)
    }

    /// Requests the answer of a queue without waiting. Calls `done` with the answer and `None`, or with `None` and an exception.
    fn start_infer(
        &self,
        done: Py<PyAny>,
        queue: &str,
        keys: &Bound<'_, PyAny>,
        timeout: Option<Bound<'_, PyAny>>,
        is_low: bool,
    ) -> PyResult<Request> {
        let ask = self.ask_queue(queue, timeout, is_low)?;
        self.online.start(ask, rows(keys, "key")?, done)
    }

    /// Opens a worker of `queue`. `credits` is the number of batches in flight.
    fn worker(&self, py: Python<'_>, queue: &str, credits: u64) -> PyResult<Worker> {
        Worker::open(py, &self.client, queue, credits)
    }

    /// Runs an action and returns the bodies of its results.
    fn action<'py>(
        &self,
        py: Python<'py>,
        kind: String,
        body: Vec<u8>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let client = self.client.clone();
        let results = waiting::wait_once(py, async move { client.action(&kind, &body).await })?;
        let results = results.map_err(|error| raised(py, &error))?;
        Ok(results.iter().map(|body| PyBytes::new(py, body)).collect())
    }
}

impl Cluster {
    fn ask_lookup(
        &self,
        py: Python<'_>,
        request: &str,
        timeout: Option<Bound<'_, PyAny>>,
    ) -> PyResult<AskLookup> {
        let timeout = timeout.map(|timeout| seconds("timeout", &timeout)).transpose()?;
        AskLookup::new(&self.client, request, timeout).map_err(|error| raised(py, &error))
    }

    fn ask_queue(&self, queue: &str, timeout: Option<Bound<'_, PyAny>>, is_low: bool) -> PyResult<AskQueue> {
        let timeout = timeout.map(|timeout| seconds("timeout", &timeout)).transpose()?;
        let priority = if is_low { Priority::Low } else { Priority::Normal };
        Ok(AskQueue { client: self.client.clone(), queue: queue.to_owned(), timeout, priority })
    }
}

fn train(request: &str) -> Result<Train, Error> {
    command(request)?.train.ok_or_else(|| Error::Request("the request has no field 'train'".into()))
}

/// Returns the default configuration with the changes in `options`. An unknown option is an error.
fn config(options: &Bound<'_, PyDict>) -> PyResult<Config> {
    let mut config = Config::default();
    for (name, value) in options {
        let name: String = name.extract()?;
        match name.as_str() {
            "token" => config.token = Some(Token::new(value.extract::<String>()?)),
            "token_file" => config.token = Some(Token::file(value.extract::<std::path::PathBuf>()?)),
            "ca" => config.tls.ca = Some(value.extract()?),
            "certificate" => config.tls.certificate = Some(value.extract()?),
            "key" => config.tls.key = Some(value.extract()?),
            "server_name" => config.tls.server_name = Some(value.extract()?),
            "prefetch_bytes" => config.prefetch_bytes = value.extract()?,
            "prefetch_batches" => config.prefetch_batches = value.extract()?,
            "max_batch_bytes" => config.max_batch_bytes = value.extract()?,
            "idle_bytes" => config.idle_slab_bytes = value.extract()?,
            "verify_hash" => config.verify_hash = value.extract()?,
            "max_in_flight" => config.max_in_flight = value.extract()?,
            "idle_timeout" => config.idle_timeout = seconds(&name, &value)?,
            "report" => config.report = value.extract()?,
            "traceparent" => config.traceparent = Some(value.extract()?),
            "stream_window_bytes" => config.stream_window_bytes = value.extract()?,
            "connection_window_bytes" => config.connection_window_bytes = value.extract()?,
            "attempt_timeout" => config.attempt_timeout = seconds(&name, &value)?,
            "failback_interval" => config.failback_interval = seconds(&name, &value)?,
            "keepalive_interval" => config.keepalive_interval = seconds(&name, &value)?,
            "keepalive_timeout" => config.keepalive_timeout = seconds(&name, &value)?,
            "replan_interval" => config.replan_interval = seconds(&name, &value)?,
            "trusted_hosts" => config.trusted_hosts = value.extract()?,
            "zone" => config.zone = Some(value.extract()?),
            "connect_timeout" => config.connect_timeout = seconds(&name, &value)?,
            "wait_for_server" => config.wait_for_server = seconds(&name, &value)?,
            "retry_deadline" => config.retry_deadline = seconds(&name, &value)?,
            _ => return Err(PyValueError::new_err(format!("unknown option '{name}'"))),
        }
    }
    Ok(config)
}

fn seconds(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Duration> {
    let seconds = value.extract::<f64>()?;
    // Also infinity. Longer times would overflow the clock.
    let time = Duration::try_from_secs_f64(if seconds > MAX_SECONDS { MAX_SECONDS } else { seconds });
    time.map_err(|_| {
        PyValueError::new_err(format!("{name} is {seconds:?}, expected a number of seconds, at least 0"))
    })
}
