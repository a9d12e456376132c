//! The client of a cluster.

use std::time::Duration;

use forebay_client::{
    Client, Config, Error, Token,
    proto::v1::{Priority, Train},
};
use pyo3::{
    exceptions::PyValueError,
    prelude::*,
    types::{PyBytes, PyDict},
};

use crate::{
    batch::Batch,
    errors::raised,
    json::{command, json},
    online::Online,
    plan::Plan,
    rows::rows,
    serving::Worker,
    waiting,
};

/// The client of a cluster. Opens connections and starts a thread with the first lookup or request.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Cluster {
    client: Client,
    online: Online,
}

#[pymethods]
impl Cluster {
    #[new]
    fn new(py: Python<'_>, urls: Vec<String>, options: &Bound<'_, PyDict>) -> PyResult<Self> {
        let client = Client::new(urls, config(options)?).map_err(|error| raised(py, &error))?;
        Ok(Self { client, online: Online::default() })
    }

    /// Requests the plan of `request`, a command as JSON.
    fn plan(&self, py: Python<'_>, request: &str) -> PyResult<Plan> {
        let train = train(request).map_err(|error| raised(py, &error))?;
        let client = self.client.clone();
        let plan = waiting::wait_once(py, async move { client.plan(&train).await })?;
        plan.map(|plan| Plan::new(self.client.clone(), plan)).map_err(|error| raised(py, &error))
    }

    /// Looks up the rows of `keys`. `request` is a command as JSON. Returns the rows and their metadata as JSON.
    fn lookup(&self, py: Python<'_>, request: &str, keys: &Bound<'_, PyAny>) -> PyResult<(Batch, String)> {
        let found = self.online.lookup(py, &self.client, request, &rows(keys, "key")?)?;
        Ok((Batch::new(py, &found.batch)?, json(&found.metadata)))
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
    ) -> PyResult<(Batch, String)> {
        let timeout = timeout.map(|timeout| seconds("timeout", &timeout)).transpose()?;
        let priority = if is_low { Priority::Low } else { Priority::Normal };
        let keys = rows(keys, "key")?;
        let answer = self.online.infer(py, &self.client, queue, &keys, (timeout, priority))?;
        Ok((Batch::new(py, &answer.rows)?, json(&answer.metadata)))
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
            "connect_timeout" => config.connect_timeout = seconds(&name, &value)?,
            "retry_deadline" => config.retry_deadline = seconds(&name, &value)?,
            _ => return Err(PyValueError::new_err(format!("unknown option '{name}'"))),
        }
    }
    Ok(config)
}

fn seconds(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Duration> {
    let seconds = value.extract::<f64>()?;
    let time = Duration::try_from_secs_f64(seconds);
    time.map_err(|_| {
        PyValueError::new_err(format!("{name} is {seconds}, expected a number of seconds, at least 0"))
    })
}
