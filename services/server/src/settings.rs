//! What an operator can set: flags and environment over a TOML file over defaults, resolved once.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use bytesize::ByteSize;
use forebay_loader::Scheduling;
use serde::{Deserialize, Serialize};

use crate::Address;

/// Settings of a server, as they stand in `forebay.toml`. Every field has a default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Where gRPC (Arrow Flight) listens: `HOST:PORT`, or `unix:/path` for trainers on the same host.
    /// Default: 127.0.0.1:8815; port 0 takes a free one.
    pub grpc: Address,
    /// Where HTTP listens. Default: 127.0.0.1:8816; port 0 takes a free one.
    pub http: SocketAddr,
    /// Datasets by name: a path or URL each.
    pub datasets: BTreeMap<String, String>,
    /// What can be rebuilt: footers and, unless `state` says otherwise, manifests.
    /// Default: `$XDG_CACHE_HOME/forebay` or `~/.cache/forebay`.
    pub cache_dir: PathBuf,
    /// Where manifests are kept, a path or URL that all servers of a tier can reach. Default: `state`
    /// in the cache directory.
    pub state: Option<String>,
    /// Memory for frames. Default: half of the machine's memory.
    #[serde(serialize_with = "exactly")]
    pub cache_memory: ByteSize,
    /// Disk for decoded columns, in the cache directory; 0 for none. Default: half of what is free there.
    pub cache_disk: Option<ByteSize>,
    /// Threads that decode and gather. Default: one a core.
    pub cpu_threads: usize,
    /// How they stand with other threads. Default: `idle` where there are such threads (Linux), else `normal`.
    pub cpu_scheduling: Option<Scheduling>,
    /// Threads that read and send. Default: one a core, at most 8.
    pub io_threads: usize,
    /// Threads that wait for local files, and for other calls that block; what is more waits for one of them. Each
    /// keeps some memory. Default: 16.
    pub file_threads: usize,
    /// How long a stopping server lets running streams finish. Default: 30 s.
    #[serde(with = "humantime_serde")]
    pub grace_period: Duration,
    /// How often datasets are looked at for new files. Default: never.
    #[serde(with = "humantime_serde")]
    pub refresh_interval: Option<Duration>,
    /// Certificates; without them nothing is encrypted. Default: none.
    pub tls: Option<Tls>,
    /// File of the tokens that callers must show; without one everybody reads everything. Default: none.
    pub tokens: Option<PathBuf>,
    /// How often the files of `tls` and `tokens` are looked at for changes. Default: 10 s.
    #[serde(with = "humantime_serde")]
    pub reload_interval: Duration,
    /// Listen beyond this machine without `tls` and `tokens`; without `tokens` everybody may also change things over HTTP.
    /// Default: false.
    pub insecure: bool,
    /// What an hour of a GPU costs, in whatever money: the page then says what it costs that trainers wait. Default: none.
    pub gpu_hour_cost: Option<f64>,
    /// Datasets that are looked up, and by which key.
    pub online: BTreeMap<String, forebay_inference::KeySpec>,
    /// Memory for datasets that are looked up: their indexes and rows, also of a new snapshot while it is made ready beside the
    /// one before. It is part of `cache_memory`, and set aside from the start. Default: half of it if there are such datasets.
    pub lookup_memory: Option<ByteSize>,
    /// Threads for lookups, beside `cpu_threads`, so that none waits for a block that is being decoded. Default: one for each
    /// core, at most 4.
    pub online_threads: usize,
    /// Bounds of lookups.
    pub lookups: forebay_inference::Config,
    /// Batch queues by name.
    pub queues: BTreeMap<String, crate::QueueSpec>,
    /// Where traces go.
    pub traces: crate::TraceSettings,
    /// Bounds on what clients can ask of the server.
    pub limits: Limits,
    /// The training path.
    pub loader: forebay_loader::Config,
    /// Reading and decoding.
    pub storage: forebay_storage::Config,
}

/// Files in PEM form. gRPC and HTTP use the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// The server's certificate, and those between it and its authority.
    pub certificate: PathBuf,
    /// The certificate's private key.
    pub key: PathBuf,
    /// Authorities of clients: who has no certificate of theirs is not let in. Default: no certificate is asked for.
    pub client_ca: Option<PathBuf>,
}

/// Bounds on what clients can ask of the server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Largest descriptor, ticket, action body or body of an HTTP request, in bytes. Default: 1 MiB.
    pub max_request_bytes: usize,
    /// Largest message of an exchange (keys, replies of workers), in bytes. Default: 16 MiB.
    pub max_exchange_bytes: usize,
    /// Requests of one exchange with a queue that have no answer; what is more is read when one of them has. Default: 1,024.
    pub max_pending_requests: usize,
    /// Batch streams at a time, and exchanges with lookups that carry their keys. Default: 1,024.
    pub max_streams: usize,
    /// Connections at a time, of gRPC and of HTTP each. Default: 1,024.
    pub max_connections: usize,
    /// Calls at a time on one connection. Default: 256.
    pub max_calls_per_connection: u32,
    /// Events that are kept for people. Default: 1,000.
    pub max_events: usize,
    /// Listeners of `/api/v1/live` at a time. Default: 64.
    pub max_live: usize,
    /// Snapshots other than the current ones that are kept open. Default: 64.
    pub max_pinned_snapshots: usize,
    /// Jobs that are remembered for `forebay explain`; of more, those that were seen longest ago are forgotten. 0 for none.
    /// Default: 10,000.
    pub max_jobs: usize,
    /// Batches that are explained over HTTP at a time; more wait. Default: 2.
    pub max_explains: usize,
    /// Largest batch that is written again over HTTP, in bytes of its Parquet, JSON or Arrow form. Default: 256 MiB.
    pub max_explain_bytes: u64,
    /// How long an explanation may take over HTTP, its wait for memory included. Default: 60 s.
    #[serde(with = "humantime_serde")]
    pub explain_timeout: Duration,
    /// How long a call waits for a dataset that is being opened. Default: 60 s.
    #[serde(with = "humantime_serde")]
    pub open_timeout: Duration,
    /// Longest pause between two tries at a dataset that can't be opened. Default: 60 s.
    #[serde(with = "humantime_serde")]
    pub max_open_backoff: Duration,
    /// A connection on which nothing is heard is asked for a sign of life after this. Default: 20 s.
    #[serde(with = "humantime_serde")]
    pub keepalive_interval: Duration,
    /// ... and closed when none comes within this. Default: 20 s.
    #[serde(with = "humantime_serde")]
    pub keepalive_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_request_bytes: 1 << 20,
            max_exchange_bytes: 16 << 20,
            max_pending_requests: 1024,
            max_streams: 1024,
            max_connections: 1024,
            max_calls_per_connection: 256,
            max_events: 1000,
            max_live: 64,
            max_pinned_snapshots: 64,
            max_jobs: 10_000,
            max_explains: 2,
            max_explain_bytes: 256 << 20,
            explain_timeout: Duration::from_secs(60),
            open_timeout: Duration::from_secs(60),
            max_open_backoff: Duration::from_secs(60),
            keepalive_interval: Duration::from_secs(20),
            keepalive_timeout: Duration::from_secs(20),
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            grpc: Address::Tcp(SocketAddr::from(([127, 0, 0, 1], 8815))),
            http: SocketAddr::from(([127, 0, 0, 1], 8816)),
            datasets: BTreeMap::new(),
            cache_dir: default_cache_dir(),
            state: None,
            cache_memory: ByteSize(machine_memory_bytes() / 2),
            cache_disk: None,
            cpu_threads: cores,
            cpu_scheduling: None,
            io_threads: cores.min(8),
            file_threads: 16,
            grace_period: Duration::from_secs(30),
            refresh_interval: None,
            tls: None,
            tokens: None,
            reload_interval: Duration::from_secs(10),
            insecure: false,
            gpu_hour_cost: None,
            online: BTreeMap::new(),
            lookup_memory: None,
            online_threads: cores.min(4),
            lookups: forebay_inference::Config::default(),
            queues: BTreeMap::new(),
            traces: crate::TraceSettings::default(),
            limits: Limits::default(),
            loader: forebay_loader::Config::default(),
            storage: forebay_storage::Config::default(),
        }
    }
}

impl Settings {
    /// Reads `forebay.toml`.
    ///
    /// # Errors
    /// When the file can't be read, or a field is unknown or malformed; the error names it.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("can't read {}", path.display()))?;
        toml::from_str(&text).with_context(|| format!("in {}", path.display()))
    }

    /// Adds datasets of the form `NAME=URL`, over those of the same names in the file.
    ///
    /// # Errors
    /// When one is not of that form, or two have one name.
    pub fn add_datasets(&mut self, datasets: &[String]) -> anyhow::Result<()> {
        let mut added = BTreeMap::new();
        for dataset in datasets {
            let Some((name, url)) = dataset.split_once('=') else {
                bail!("--dataset {dataset}: expected NAME=URL");
            };
            let before = added.insert(name.to_owned(), url.to_owned());
            ensure!(before.is_none(), "--dataset {name}: there are two of this name");
        }
        self.datasets.extend(added);
        Ok(())
    }

    /// Adds datasets that are looked up, of the form `NAME=COLUMN` or `NAME=COLUMN,COLUMN`.
    ///
    /// # Errors
    /// When one is not of that form, or two have one name.
    pub fn add_online(&mut self, online: &[String]) -> anyhow::Result<()> {
        let mut added = BTreeMap::new();
        for text in online {
            let Some((name, columns)) = text.split_once('=').filter(|(_, columns)| !columns.is_empty())
            else {
                bail!("--online {text}: expected NAME=COLUMN[,COLUMN]");
            };
            let key = columns.split(',').map(str::to_owned).collect();
            let order_by = self.online.get(name).and_then(|spec| spec.order_by.clone());
            let before = added.insert(name.to_owned(), forebay_inference::KeySpec { key, order_by });
            ensure!(before.is_none(), "--online {name}: there are two of this name");
        }
        self.online.extend(added);
        Ok(())
    }

    /// How the threads that decode and gather stand with others.
    pub(crate) fn scheduling(&self) -> Scheduling {
        self.cpu_scheduling.unwrap_or_else(Scheduling::best)
    }

    /// Checks what can be checked before anything is opened.
    ///
    /// # Errors
    /// Naming the first setting that can't work, and what was expected.
    pub fn check(&self) -> anyhow::Result<()> {
        for (name, url) in &self.datasets {
            let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
            ensure!(
                !name.is_empty() && name.chars().all(legal) && !matches!(name.as_str(), "." | ".."),
                "dataset name '{name}': expected letters, digits, '_', '-' and '.'"
            );
            ensure!(!url.is_empty(), "dataset '{name}' has no URL");
        }
        for (name, spec) in &self.online {
            ensure!(self.datasets.contains_key(name), "online.{name}: there is no dataset of this name");
            ensure!(!spec.key.is_empty(), "online.{name}.key: names no column");
        }
        for (name, queue) in &self.queues {
            queue
                .check(&self.online, self.lookups.max_answer_bytes)
                .with_context(|| format!("queues.{name}"))?;
        }
        ensure!(self.limits.max_pending_requests >= 1, "limits.max_pending_requests is at least 1");
        ensure!(self.limits.max_events >= 1, "limits.max_events is at least 1");
        ensure!(self.online_threads >= 1, "online_threads is at least 1");
        ensure!(self.limits.max_explains >= 1, "limits.max_explains is at least 1");
        let backoff = self.limits.max_open_backoff;
        ensure!(
            backoff >= Duration::from_secs(1),
            "limits.max_open_backoff is {backoff:?}, expected at least 1s"
        );
        ensure!(
            self.cpu_threads >= 1 && self.io_threads >= 1 && self.file_threads >= 1,
            "cpu_threads, io_threads and file_threads are at least 1"
        );
        ensure!(
            self.cache_memory.0 >= 1 << 20,
            "cache_memory is {}, expected at least 1 MiB",
            self.cache_memory
        );
        ensure!(
            (1..1 << 31).contains(&self.loader.max_batch_bytes),
            "loader.max_batch_bytes is {}, expected 1 to 2147483647",
            self.loader.max_batch_bytes
        );
        ensure!(!self.reload_interval.is_zero(), "reload_interval is 0, expected at least 1ms");
        self.traces.check()?;
        self.check_door()
    }

    /// Beyond this machine, a server wants to be closed.
    fn check_door(&self) -> anyhow::Result<()> {
        let missing = match (&self.tls, &self.tokens) {
            (Some(_), Some(_)) => return Ok(()),
            (None, Some(_)) => "--tls-certificate and --tls-key",
            (Some(_), None) => "--tokens",
            (None, None) => "--tls-certificate, --tls-key and --tokens",
        };
        let http = Address::Tcp(self.http);
        for (flag, address) in [("--grpc", &self.grpc), ("--http", &http)] {
            ensure!(
                address.is_local() || self.insecure,
                "{flag} {address} can be reached from other machines: add {missing}, \
                 or --insecure if everybody there may read everything"
            );
        }
        Ok(())
    }

    /// `lookup_memory`, resolved.
    pub(crate) fn lookup_memory_bytes(&self) -> u64 {
        let half = if self.online.is_empty() { 0 } else { self.cache_memory.0 / 2 };
        self.lookup_memory.map_or(half, |size| size.0)
    }

    /// `cache_disk`, resolved.
    pub(crate) fn cache_disk_bytes(&self) -> u64 {
        self.cache_disk.map_or_else(|| free_disk_bytes(&self.cache_dir) / 2, |size| size.0)
    }

    /// Where manifests are kept.
    pub fn state_url(&self) -> String {
        self.state.clone().unwrap_or_else(|| self.cache_dir.join("state").to_string_lossy().into_owned())
    }
}

/// A size as its number of bytes; the readable form is rounded.
fn exactly<S: serde::Serializer>(size: &ByteSize, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(size.0)
}

/// `$XDG_CACHE_HOME/forebay`, `~/.cache/forebay`, or a folder here.
pub(crate) fn default_cache_dir() -> PathBuf {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    base.map_or_else(|| PathBuf::from(".forebay-cache"), |base| base.join("forebay"))
}

/// The machine's memory or the container's limit, whichever is less; 4 GiB if neither can be read.
fn machine_memory_bytes() -> u64 {
    let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
        let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
        Some(kibibytes * 1024)
    });
    let container =
        std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok().and_then(|text| text.trim().parse().ok());
    [machine, container].into_iter().flatten().min().unwrap_or(4 << 30)
}

/// Bytes that are free on the disk of `directory`; 0 if that can't be told.
fn free_disk_bytes(directory: &Path) -> u64 {
    rustix::fs::statvfs(directory).map_or(0, |found| found.f_bavail.saturating_mul(found.f_frsize))
}

#[cfg(test)]
mod tests;
