//! `forebay serve` as a process of its own, with a cache that is empty at first and gone at last.

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

use crate::{place, process::Process, usage::Usage};

/// How long a dataset may take to be opened.
const OPEN_TIMEOUT: Duration = Duration::from_secs(60);
const OPEN_PAUSE: Duration = Duration::from_millis(20);

/// The way between server and client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Transport {
    /// Loopback.
    Tcp,
    /// A Unix socket.
    Unix,
}

/// A running server.
pub(crate) struct Server {
    url: String,
    http: String,
    process: Process,
    /// Removed after the process has ended.
    _folder: TempDir,
}

impl Server {
    /// Serves the data at `path` as `dataset`.
    pub(crate) fn start(dataset: &str, path: &Path, transport: Transport) -> anyhow::Result<Self> {
        Self::start_with(dataset, &path.display().to_string(), transport, &[], &[])
    }

    /// Serves the data at `url` as `dataset`, with more flags and variables.
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
        let mut command = Command::new(place::forebay()?);
        command
            .args(["serve", "--grpc", &grpc, "--http", "127.0.0.1:0"])
            .arg("--cache-dir")
            .arg(folder.path().join("cache"))
            .arg("--dataset")
            .arg(format!("{dataset}={url}"))
            .args(flags)
            .envs(variables.iter().map(|(name, value)| (name, value)));
        let mut process = Process::spawn_without_input("forebay", command)?;
        let ready = process.listening()?;
        let grpc = ready["grpc"].as_str().context("the ready line has no grpc")?;
        let http = ready["http"].as_str().context("the ready line has no http")?.to_owned();
        let url = if grpc.starts_with("unix:") { grpc.to_owned() } else { format!("http://{grpc}") };
        Ok(Self { url, http, process, _folder: folder })
    }

    /// Where it listens, for [`Connection::open`].
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// What its HTTP API answers to a request with a JSON body.
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
        let (head, body) = answer.split_once("\r\n\r\n").context("the HTTP answer has no end of its head")?;
        ensure!(head.split_whitespace().nth(1) == Some("200"), "{method} {path}: {answer}");
        Ok(body.to_owned())
    }

    /// The counts of a histogram without labels, by their bounds.
    pub(crate) fn histogram(&self, name: &str) -> anyhow::Result<Vec<(f64, f64)>> {
        let text = self.text("GET", "/metrics", "")?;
        let bucket = |line: &str| {
            let (bound, count) =
                line.strip_prefix(name)?.strip_prefix("_bucket{le=\"")?.split_once("\"} ")?;
            Some((bound.parse().ok()?, count.parse().ok()?))
        };
        Ok(text.lines().filter_map(bucket).collect())
    }

    /// Waits until everything that is served is ready.
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

    /// Ends it.
    pub(crate) fn stop(&mut self) {
        self.process.kill();
    }

    /// What it has used so far.
    pub(crate) fn usage(&self) -> anyhow::Result<Usage> {
        self.process.usage()
    }
}

/// Waits until the server at `url` has opened the dataset of `train`; returns the rows of an epoch.
pub(crate) async fn opened(url: &str, train: &v1::Train) -> anyhow::Result<u64> {
    let deadline = tokio::time::Instant::now() + OPEN_TIMEOUT;
    let connection = Connection::open(url, Arc::default()).await?;
    loop {
        match connection.plan(train).await {
            Ok(info) => return Ok(info.summary.rows),
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
