//! `forebay serve` as a child process with an empty, temporary cache.

use std::{
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    process::Command,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use clap::ValueEnum;
use forebay_client::{Connection, Error};
use forebay_proto::v1;
use tempfile::TempDir;

use crate::{
    paths,
    process::Process,
    usage::{Threads, Usage},
};

/// Maximum time to open a dataset.
const OPEN_TIMEOUT: Duration = Duration::from_secs(60);
const OPEN_PAUSE: Duration = Duration::from_millis(20);

/// Transport between server and client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Transport {
    /// TCP over loopback.
    Tcp,
    /// A Unix socket.
    Unix,
}

/// A running server.
pub(crate) struct Server {
    url: String,
    http: String,
    process: Process,
    /// Folder of the cache, removed after the process has stopped.
    _folder: TempDir,
}

impl Server {
    /// Starts a server for the data at `path`, named `dataset`.
    pub(crate) fn start(dataset: &str, path: &Path, transport: Transport) -> anyhow::Result<Self> {
        Self::start_with(dataset, &path.display().to_string(), transport, &[], &[])
    }

    /// Starts a server for the data at `url`, named `dataset`, with additional flags and environment variables.
    pub(crate) fn start_with(
        dataset: &str,
        url: &str,
        transport: Transport,
        flags: &[&str],
        variables: &[(&str, String)],
    ) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let grpc = match transport {
            Transport::Tcp => "127.0.0.1:0".to_owned(),
            Transport::Unix => format!("unix:{}", folder.path().join("grpc.sock").display()),
        };
        let mut command = Command::new(paths::forebay()?);
        command
            .args(["serve", "--grpc", &grpc, "--http", "127.0.0.1:0"])
            .arg("--cache-dir")
            .arg(folder.path().join("cache"))
            .arg("--dataset")
            .arg(format!("{dataset}={url}"))
            .args(flags)
            .envs(variables.iter().map(|(name, value)| (name, value)));
        let process = Process::server("forebay", command)?;
        let address = |name: &str| {
            let address = process.ready[name].as_str();
            address.map(str::to_owned).with_context(|| format!("the ready line has no {name}"))
        };
        let (grpc, http) = (address("grpc")?, address("http")?);
        let url = if grpc.starts_with("unix:") { grpc } else { format!("http://{grpc}") };
        Ok(Self { url, http, process, _folder: folder })
    }

    /// URL of the server, for [`Connection::open`].
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// HOST:PORT of the HTTP port.
    pub(crate) fn http_address(&self) -> &str {
        &self.http
    }

    /// Sends a request to the HTTP API and returns the JSON answer.
    pub(crate) fn http(&self, method: &str, path: &str, body: &str) -> anyhow::Result<serde_json::Value> {
        Ok(serde_json::from_str(&self.text(method, path, body)?)?)
    }

    fn text(&self, method: &str, path: &str, body: &str) -> anyhow::Result<String> {
        let mut stream = TcpStream::connect(&self.http)?;
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.0\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}",
            self.http
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").context("the HTTP answer has no complete header")?;
        ensure!(head.split_whitespace().nth(1) == Some("200"), "{method} {path}: {answer}");
        Ok(body.to_owned())
    }

    /// Returns all metrics in Prometheus's text format.
    pub(crate) fn metrics(&self) -> anyhow::Result<String> {
        self.text("GET", "/metrics", "")
    }

    /// Returns the buckets of a histogram without labels: upper bounds and cumulative counts.
    pub(crate) fn histogram(&self, name: &str) -> anyhow::Result<Vec<(f64, f64)>> {
        let text = self.metrics()?;
        let bucket = |line: &str| {
            let (bound, count) =
                line.strip_prefix(name)?.strip_prefix("_bucket{le=\"")?.split_once("\"} ")?;
            Some((bound.parse().ok()?, count.parse().ok()?))
        };
        Ok(text.lines().filter_map(bucket).collect())
    }

    /// Waits until the server is ready.
    pub(crate) fn ready(&self) -> anyhow::Result<()> {
        let deadline = std::time::Instant::now() + OPEN_TIMEOUT;
        loop {
            match self.http("GET", "/readyz", "") {
                Ok(_) => return Ok(()),
                Err(error) if std::time::Instant::now() > deadline => return Err(error),
                Err(_) => std::thread::sleep(OPEN_PAUSE),
            }
        }
    }

    /// Returns the value of a metric, summed over its labels.
    pub(crate) fn counter(&self, name: &str) -> anyhow::Result<f64> {
        let text = self.metrics()?;
        let value = |line: &str| {
            let rest = line.strip_prefix(name)?;
            let value = rest.strip_prefix(' ').or_else(|| Some(rest.strip_prefix('{')?.split_once("} ")?.1));
            value?.parse::<f64>().ok()
        };
        Ok(text.lines().filter_map(value).sum())
    }

    /// Asks the server to end its streams and to exit.
    pub(crate) fn terminate(&mut self) -> anyhow::Result<()> {
        self.process.terminate()
    }

    /// Kills the server.
    pub(crate) fn stop(&mut self) {
        self.process.kill();
    }

    /// Memory and threads of the server.
    pub(crate) fn threads(&self) -> Threads {
        self.process.threads()
    }

    /// Returns the resources that the server has used so far.
    pub(crate) fn usage(&self) -> anyhow::Result<Usage> {
        self.process.usage()
    }
}

/// Waits until the server at `url` has opened the dataset of `train`, and returns its plan.
pub(crate) async fn opened(url: &str, train: &v1::Train) -> anyhow::Result<v1::PlanSummary> {
    let deadline = tokio::time::Instant::now() + OPEN_TIMEOUT;
    let connection = Connection::open(url, Arc::default()).await?;
    loop {
        match connection.plan(train).await {
            Ok(plan) => return Ok(plan.summary),
            Err(Error::Status(status)) if status.code() == tonic::Code::Unavailable => {
                if tokio::time::Instant::now() > deadline {
                    bail!("{}", status.message());
                }
                tokio::time::sleep(OPEN_PAUSE).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}
