//! Settings of the server, resolved once: flags and environment variables override a TOML file, which overrides the defaults.

mod memory_limit;
mod online_spec;
mod queue_spec;
mod renamed;
mod running;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use bytesize::ByteSize;
use documented::DocumentedFields;
use forebay_loader::Scheduling;
use forebay_storage::{check_url, shown_url};
use serde::{Deserialize, Serialize};

use crate::{Address, members::check_names};

pub use online_spec::OnlineSpec;
pub use queue_spec::QueueSpec;
pub(crate) use queue_spec::check_batching;
pub(crate) use running::RunningSettings;

/// Settings of a server: the fields of `forebay.toml`. Every field has a default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, DocumentedFields)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Listen address of gRPC (Arrow Flight): `HOST:PORT`, or `unix:/path` for trainers on the same host. Port 0 selects a free
    /// port. A non-loopback address requires `tls` and `tokens`, or `insecure`. Default: 127.0.0.1:8815.
    pub grpc: Address,
    /// Listen address of HTTP (dashboard, API, probes, metrics): `HOST:PORT`, or `unix:/path`. Port 0 selects a free port. A
    /// non-loopback address requires `tls` and `tokens`, or `insecure`. Default: 127.0.0.1:8816.
    pub http: Address,
    /// Datasets by name; each value is a path or URL of a Parquet file or of a folder of Parquet files. Default: none.
    pub datasets: BTreeMap<String, String>,
    /// Accepts the action `open`, with which a process of the user that runs the server adds a dataset. Requires a Unix socket as
    /// `grpc`, and no `tokens`; processes of other users are rejected at Unix sockets. Default: false.
    pub open_datasets: bool,
    /// Time without an open gRPC connection after which the server stops, above 0. Default: never.
    #[serde(with = "humantime_serde")]
    pub exit_when_idle: Option<Duration>,
    /// Cache directory, locked by one server at a time. Holds footers, the disk cache, lookup indexes and, unless `state` is set,
    /// the state. Default: `$XDG_CACHE_HOME/forebay` or `~/.cache/forebay`.
    pub cache_dir: PathBuf,
    /// Path or URL of the state: snapshot manifests, row counts and job records. All servers of a cluster share one. The state
    /// cannot be rebuilt from the datasets. Default: `state` in the cache directory.
    pub state: Option<String>,
    /// Sources of the addresses of all servers of the cluster, separated by commas: `HOST:PORT` for one server, `dns:NAME:PORT` for
    /// all addresses of a name, or `file:PATH` for a file with one address on each line. Requires `advertise`. All servers must have
    /// the same `state`. Default: none, the server is no member of a cluster.
    pub members: Option<String>,
    /// `HOST:PORT` to which clients and other servers connect. It is also the name of this server in the cluster, and must not
    /// change after a restart. Default: none.
    pub advertise: Option<String>,
    /// Zone of this server, such as `eu-west-1a`: up to 64 letters, digits, `-`, `_` and `.`. A client that sends its own zone receives
    /// only locations in this zone, if the zone has servers. Default: none.
    pub zone: Option<String>,
    /// Memory for decoded data and for snapshots (the lists of files and row groups), in bytes, or with a unit such as `8GiB`; at least
    /// 1 MiB. Default: half of the memory of the machine, or of the limit of a control group (container, systemd, Slurm) if that is lower.
    #[serde(serialize_with = "exactly")]
    pub cache_memory: ByteSize,
    /// Disk space for decoded columns in the cache directory, in bytes, or with a unit such as `200GiB`; 0 disables the disk cache.
    /// Default: half of the disk space that is free or already used by the disk cache.
    pub cache_disk: Option<ByteSize>,
    /// Number of threads that decode Parquet data and assemble batches, at least 1. Default: one per core.
    pub cpu_threads: usize,
    /// Scheduling class of the CPU threads: `normal`, or `idle` (Linux `SCHED_IDLE`), which yields to every other thread. Default:
    /// normal.
    pub cpu_scheduling: Scheduling,
    /// Number of threads that perform network I/O, at least 1. Default: one per core, at most 8.
    pub io_threads: usize,
    /// Maximum number of threads for blocking calls, such as reads of the disk cache, at least 1; further calls queue. A quarter of them
    /// read the disk cache. Calls to local file systems use other threads (`storage.concurrent_file_system_calls`). Lookups
    /// of host names use up to 256 additional threads. Default: 64.
    pub blocking_threads: usize,
    /// Time that running streams are given to finish after SIGTERM. Default: 30 s.
    #[serde(with = "humantime_serde")]
    pub grace_period: Duration,
    /// Time after SIGTERM during which the server reports that it is not ready but still accepts calls. Load balancers can then
    /// stop sending calls. `grace_period` begins after this time. Default: 0 s.
    #[serde(with = "humantime_serde")]
    pub drain_delay: Duration,
    /// Interval at which datasets are listed again to find new files, such as `5m`. Default: never.
    #[serde(with = "humantime_serde")]
    pub refresh_interval: Option<Duration>,
    /// Certificates for gRPC and HTTP; without them connections are not encrypted. Default: none.
    pub tls: Option<Tls>,
    /// Path of the token file (TOML) with the SHA-256 hashes of bearer tokens and their permissions; without one every caller can
    /// read every dataset. Default: none.
    pub tokens: Option<PathBuf>,
    /// Interval at which the files of `tls` and `tokens` are checked for changes, above 0. Default: 10 s.
    #[serde(with = "humantime_serde")]
    pub credentials_reload_interval: Duration,
    /// Allows non-loopback listen addresses without `tls` or without `tokens`. Without `tokens` it also allows every caller to
    /// change the settings of batch queues over HTTP. Default: false.
    pub insecure: bool,
    /// Host names by which HTTP clients may address a server without `tokens`. IP addresses and names without a dot are always
    /// accepted. Requests with another `Host` header are rejected with 403, to prevent DNS rebinding. Default: none.
    pub allowed_hosts: Vec<String>,
    /// Price of one GPU hour, in any currency, from which the dashboard computes the cost of waiting trainers. Default: none.
    pub gpu_hour_cost: Option<f64>,
    /// Bytes per second that the network interface of the server can send, above 0, such as `12.5GB` for 100 Gbit/s. The metric
    /// `forebay_wanted_servers` then uses the load of the network if it is above the load of the CPU threads, and
    /// `membership.overflow_bytes_per_second` is 90% of it by default. Default: unknown, the metric uses the load of the CPU threads.
    pub network_bandwidth: Option<ByteSize>,
    /// Datasets that serve lookups, by name. Default: none.
    pub online: BTreeMap<String, OnlineSpec>,
    /// Part of `cache_memory` that is reserved for the indexes and rows of lookups, including those of a new snapshot while it is
    /// loaded; in bytes, or with a unit such as `2GiB`. Default: half of `cache_memory` if `online` is set, else 0.
    pub lookup_memory: Option<ByteSize>,
    /// Number of threads for lookups, at least 1, in addition to `cpu_threads`, so that lookups do not queue behind decoding.
    /// Default: one per core, at most 4.
    pub lookup_threads: usize,
    /// Limits of lookups.
    pub lookups: forebay_inference::Config,
    /// Batch queues by name. Default: none.
    pub queues: BTreeMap<String, QueueSpec>,
    /// Export of traces.
    pub traces: crate::TraceSettings,
    /// Limits and policies of a cluster with `members`.
    pub membership: crate::MembershipSettings,
    /// Limits on what clients can request.
    pub limits: Limits,
    /// Limits and policies of the training path.
    pub loader: forebay_loader::Config,
    /// Limits and policies of reading and decoding.
    pub storage: forebay_storage::Config,
}

/// Paths of the TLS files (PEM), used by gRPC and HTTP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, DocumentedFields)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// Path of the server's certificate chain. Required.
    pub certificate: PathBuf,
    /// Path of the certificate's private key. Required.
    pub key: PathBuf,
    /// Path of the CA certificates of clients. If set, clients without a certificate of one of these CAs are rejected. Default:
    /// none.
    pub client_ca: Option<PathBuf>,
}

/// Limits on what clients can request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, DocumentedFields)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Maximum size of a descriptor, ticket, action body, lookup request or HTTP request body, in bytes. Default: 1 MiB.
    pub max_request_bytes: usize,
    /// Maximum size of one message of a DoExchange stream, such as the keys of a lookup or the reply of a worker, in bytes.
    /// Default: 16 MiB.
    pub max_exchange_bytes: usize,
    /// Maximum number of unanswered requests per DoExchange stream to a queue, at least 1; further requests are not read until one
    /// is answered. Default: 1,024.
    pub max_pending_requests: usize,
    /// Maximum number of concurrent batch streams. An eighth of this limit is reserved for callers that have none; so it is for
    /// `max_exchanges`, `max_workers`, `max_calls`, `max_live_subscribers`, `max_incoming_bytes` and `max_unsent_bytes`. A caller is
    /// a token or, without `tokens`, a client address. Default: 1,024.
    pub max_streams: usize,
    /// Maximum number of concurrent DoExchange streams for lookups and for requests to queues. Default: 1,024.
    pub max_exchanges: usize,
    /// Maximum number of connected workers of queues. Default: 256.
    pub max_workers: usize,
    /// Maximum number of concurrent gRPC calls that are neither batch streams nor DoExchange streams, such as lookups and actions.
    /// A call counts from its headers until its answer is sent. A batch stream or DoExchange stream counts until its request is read.
    /// Default: 1,024.
    pub max_calls: usize,
    /// Maximum total size of requests that are being received, in bytes. A message counts from its length prefix on. A message of a
    /// DoExchange stream counts until the server reads the next one. If the limit is reached, further messages wait. Replies of workers
    /// have a limit of their own of the same size. It is at least 8/7 of `max_request_bytes` and of `max_exchange_bytes`. Default: 128
    /// MiB.
    pub max_incoming_bytes: u64,
    /// Time in which a client must send a request, or a message of a DoExchange stream, completely, at least 100 ms. One second per
    /// MiB is added. After that, the call fails. Default: 30 s.
    #[serde(with = "humantime_serde")]
    pub request_timeout: Duration,
    /// Maximum total size of answers that are not yet sent completely, in bytes. It counts all answers over gRPC and HTTP, except
    /// training batches and batches for workers of queues. It also counts requests to batch queues until the worker's answer:
    /// their keys, their columns, and the estimated size of their features. While a DoExchange stream of lookups is open, it counts
    /// the columns and expressions of its request, if they have more than 16 KiB. Requests of low priority to batch queues
    /// may use half of this limit. One caller may use 7/8 of it. It is therefore at least 8/7 of `max_explain_bytes` and of
    /// `lookups.max_answer_bytes`. Default: 256 MiB.
    pub max_unsent_bytes: u64,
    /// Time in which a client must receive an answer that counts towards `max_unsent_bytes`, at least 100 ms. One second per MiB is
    /// added. After that, the connection is closed. It is also closed if a client accepts no part of an answer for this time. A batch
    /// stream may be paused for longer, unless another stream of the same token waits for the memory of its batches
    /// (`loader.total_prefetch_bytes`). Default: 60 s.
    #[serde(with = "humantime_serde")]
    pub receive_timeout: Duration,
    /// Maximum number of concurrent connections, for gRPC and for HTTP each, at least 1. A further connection replaces the oldest
    /// one without an authenticated request, of the client host that has the most of these. Without such a connection, the new one
    /// can only call probes. Without `tokens`, one client host may have half of the connections. Default: 1,024.
    pub max_connections: usize,
    /// Maximum number of connections of one client host without an authenticated request, for gRPC and for HTTP each, at least 1.
    /// One more replaces the oldest of them. Applies only with `tokens`. Default: 64.
    pub max_unauthenticated_connections: usize,
    /// Time in which a new connection must send its first request, at least 100 ms. Default: 10 s.
    #[serde(with = "humantime_serde")]
    pub first_request_timeout: Duration,
    /// Time without a running request after which a connection is closed, at least 100 ms. Default: 15 min.
    #[serde(with = "humantime_serde")]
    pub idle_timeout: Duration,
    /// Age at which a connection accepts no more requests. Running requests finish. Clients then reconnect, and a load balancer can
    /// send them to newly started servers. Default: unlimited.
    #[serde(with = "humantime_serde")]
    pub max_connection_age: Option<Duration>,
    /// Maximum number of concurrent calls per connection. The HTTP port never accepts more than 32. Default: 256.
    pub max_calls_per_connection: u32,
    /// Number of events that the server keeps for the dashboard and `/api/v1/events`, at least 1. If there are more, the oldest one of the
    /// dataset or queue with the most events is dropped. Default: 1,000.
    pub max_events: usize,
    /// Maximum number of concurrent subscribers of `/api/v1/live`. One caller may have 7/8 of them. Default: 64.
    pub max_live_subscribers: usize,
    /// Maximum number of open snapshots in addition to the current one of each dataset, over all datasets of the server. If it is
    /// reached, opening another one closes one of them, which is reopened when a request needs it. Default: 64.
    pub max_pinned_snapshots: usize,
    /// Maximum number of job records kept for `forebay explain`. Above it, or above a total size of 32 MiB, the least recently written
    /// record of the dataset with the most records is removed first. 0 disables job records. Default: 10,000.
    pub max_jobs: usize,
    /// Maximum number of batches that are explained over HTTP concurrently, at least 1; further requests queue. If it is 2 or more,
    /// one caller can run one fewer than this number. The next free place goes to the queued caller with the fewest running
    /// explanations. Default: 3.
    pub max_concurrent_explains: usize,
    /// Maximum number of queued explanations over HTTP. If one more arrives, the newest queued one of the caller that has the most is
    /// rejected. Default: 64.
    pub max_queued_explains: usize,
    /// Maximum size of a batch that is exported over HTTP, in bytes of its Parquet, JSON or Arrow form. Default: 128 MiB.
    pub max_explain_bytes: u64,
    /// Maximum running time of an explanation over HTTP, including its wait for memory. The time in the queue before it has the same
    /// limit, separately, so that a request can take up to twice this time. Default: 60 s.
    #[serde(with = "humantime_serde")]
    pub explain_timeout: Duration,
    /// Maximum time that a call waits for a dataset that is being opened. Default: 60 s.
    #[serde(with = "humantime_serde")]
    pub open_timeout: Duration,
    /// Maximum backoff between attempts to open a dataset, at least 1 s. Default: 60 s.
    #[serde(with = "humantime_serde")]
    pub max_open_backoff: Duration,
    /// Time without traffic after which a connection is sent a keepalive ping. Default: 20 s.
    #[serde(with = "humantime_serde")]
    pub keepalive_interval: Duration,
    /// Time after which a connection that does not answer a keepalive ping is closed. Default: 20 s.
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
            max_exchanges: 1024,
            max_workers: 256,
            max_calls: 1024,
            max_incoming_bytes: 128 << 20,
            request_timeout: Duration::from_secs(30),
            max_unsent_bytes: 256 << 20,
            receive_timeout: Duration::from_secs(60),
            max_connections: 1024,
            max_unauthenticated_connections: 64,
            first_request_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(15 * 60),
            max_connection_age: None,
            max_calls_per_connection: 256,
            max_events: 1000,
            max_live_subscribers: 64,
            max_pinned_snapshots: 64,
            max_jobs: 10_000,
            max_concurrent_explains: 3,
            max_queued_explains: 64,
            max_explain_bytes: 128 << 20,
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
            http: Address::Tcp(SocketAddr::from(([127, 0, 0, 1], 8816))),
            datasets: BTreeMap::new(),
            open_datasets: false,
            exit_when_idle: None,
            cache_dir: default_cache_dir(),
            state: None,
            members: None,
            advertise: None,
            zone: None,
            cache_memory: ByteSize(memory_limit::memory_bytes(Path::new("/")) / 2),
            cache_disk: None,
            cpu_threads: cores,
            cpu_scheduling: Scheduling::default(),
            io_threads: cores.min(8),
            blocking_threads: 64,
            grace_period: Duration::from_secs(30),
            drain_delay: Duration::ZERO,
            refresh_interval: None,
            tls: None,
            tokens: None,
            credentials_reload_interval: Duration::from_secs(10),
            insecure: false,
            allowed_hosts: Vec::new(),
            gpu_hour_cost: None,
            network_bandwidth: None,
            online: BTreeMap::new(),
            lookup_memory: None,
            lookup_threads: cores.min(4),
            lookups: forebay_inference::Config::default(),
            queues: BTreeMap::new(),
            traces: crate::TraceSettings::default(),
            membership: crate::MembershipSettings::default(),
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
    /// If the file can't be read, or a field is unknown or malformed; the error names the line and the field, and the current name of a
    /// renamed one. It does not contain the line, which may have a secret.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("can't read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("in {}", path.display()))
    }

    /// Parses the text of `forebay.toml`.
    fn parse(text: &str) -> anyhow::Result<Self> {
        toml::from_str(text).map_err(|error| match renamed::message(text) {
            Some(message) => anyhow::Error::msg(message),
            None => anyhow::Error::msg(without_lines(text, &error)),
        })
    }

    /// Adds datasets of the form `NAME=URL`. They replace datasets of the same name from the file.
    ///
    /// # Errors
    /// If a dataset does not have that form, or two have the same name.
    pub fn add_datasets(&mut self, datasets: &[String]) -> anyhow::Result<()> {
        let mut added = BTreeMap::new();
        for dataset in datasets {
            let Some((name, url)) = dataset.split_once('=') else {
                bail!("--dataset {}: expected NAME=URL", shown_url(dataset));
            };
            let before = added.insert(name.to_owned(), url.to_owned());
            ensure!(before.is_none(), "--dataset {}: is given twice", shown_url(name));
        }
        self.datasets.extend(added);
        Ok(())
    }

    /// Adds key columns of datasets that serve lookups, of the form `NAME=COLUMN` or `NAME=COLUMN,COLUMN`.
    ///
    /// # Errors
    /// If an entry does not have that form, or two have the same name.
    pub fn add_online(&mut self, online: &[String]) -> anyhow::Result<()> {
        let mut added = BTreeMap::new();
        for text in online {
            let Some((name, columns)) = text.split_once('=').filter(|(_, columns)| !columns.is_empty())
            else {
                bail!("--online {}: expected NAME=COLUMN[,COLUMN]", shown_url(text));
            };
            let key = columns.split(',').map(str::to_owned).collect();
            let from_file = self.online.get(name).cloned().unwrap_or_default();
            let before = added.insert(name.to_owned(), OnlineSpec { key, ..from_file });
            ensure!(before.is_none(), "--online {name}: is given twice");
        }
        self.online.extend(added);
        Ok(())
    }

    /// Checks the settings without opening anything.
    ///
    /// # Errors
    /// The first invalid setting, with its value and what was expected.
    pub fn check(&self) -> anyhow::Result<()> {
        for (name, url) in &self.datasets {
            let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
            ensure!(
                !name.is_empty() && name.chars().all(legal) && !matches!(name.as_str(), "." | ".."),
                "dataset name '{}': expected letters, digits, '_', '-' and '.'",
                shown_url(name)
            );
            ensure!(!url.is_empty(), "dataset '{name}': the URL is empty, expected a path or URL");
            check_url(url).with_context(|| format!("dataset '{name}'"))?;
        }
        check_url(&self.state_url()).context("state")?;
        for (name, spec) in &self.online {
            ensure!(
                self.datasets.contains_key(name),
                "online.{name}: no dataset has this name; add it with --dataset {name}=URL"
            );
            spec.check().with_context(|| format!("online.{name}"))?;
        }
        for (name, queue) in &self.queues {
            queue
                .check(&self.online, self.lookups.max_answer_bytes)
                .with_context(|| format!("queues.{name}"))?;
        }
        let at_least_one = [
            ("limits.max_pending_requests", self.limits.max_pending_requests),
            ("limits.max_events", self.limits.max_events),
            ("limits.max_connections", self.limits.max_connections),
            ("limits.max_unauthenticated_connections", self.limits.max_unauthenticated_connections),
            ("limits.max_concurrent_explains", self.limits.max_concurrent_explains),
            ("cpu_threads", self.cpu_threads),
            ("io_threads", self.io_threads),
            ("blocking_threads", self.blocking_threads),
            ("lookup_threads", self.lookup_threads),
        ];
        for (name, number) in at_least_one {
            ensure!(number >= 1, "{name} is 0, expected at least 1");
        }
        for (name, bytes) in [
            ("limits.max_explain_bytes", self.limits.max_explain_bytes),
            ("lookups.max_answer_bytes", self.lookups.max_answer_bytes),
        ] {
            let least = bytes.saturating_mul(8).div_ceil(7);
            ensure!(
                self.limits.max_unsent_bytes >= least,
                "limits.max_unsent_bytes is {}, expected at least 8/7 of {name}: {least}",
                self.limits.max_unsent_bytes
            );
        }
        for (name, bytes) in [
            ("limits.max_request_bytes", self.limits.max_request_bytes),
            ("limits.max_exchange_bytes", self.limits.max_exchange_bytes),
        ] {
            let least = (bytes as u64).saturating_mul(8).div_ceil(7);
            ensure!(
                self.limits.max_incoming_bytes >= least,
                "limits.max_incoming_bytes is {}, expected at least 8/7 of {name}: {least}",
                self.limits.max_incoming_bytes
            );
        }
        for (name, time) in [
            ("limits.request_timeout", self.limits.request_timeout),
            ("limits.first_request_timeout", self.limits.first_request_timeout),
            ("limits.idle_timeout", self.limits.idle_timeout),
            ("limits.receive_timeout", self.limits.receive_timeout),
        ] {
            ensure!(time >= Duration::from_millis(100), "{name} is {time:?}, expected at least 100ms");
        }
        let backoff = self.limits.max_open_backoff;
        ensure!(
            backoff >= Duration::from_secs(1),
            "limits.max_open_backoff is {backoff:?}, expected at least 1s"
        );
        ensure!(
            self.cache_memory.0 >= 1 << 20,
            "cache_memory is {}, expected at least 1 MiB",
            self.cache_memory
        );
        // Larger numbers cannot be written in a TOML file.
        let most = i64::MAX as u64;
        for (name, size) in [
            ("cache_memory", Some(self.cache_memory)),
            ("cache_disk", self.cache_disk),
            ("lookup_memory", self.lookup_memory),
            ("network_bandwidth", self.network_bandwidth),
        ] {
            ensure!(
                size.is_none_or(|size| size.0 <= most),
                "{name} is {} or more, expected at most {most}, which is less than 8 EiB",
                size.unwrap_or_default()
            );
        }
        ensure!(
            (1..1 << 31).contains(&self.loader.max_batch_bytes),
            "loader.max_batch_bytes is {}, expected 1 to 2147483647",
            self.loader.max_batch_bytes
        );
        ensure!(
            !self.credentials_reload_interval.is_zero(),
            "credentials_reload_interval is 0, expected at least 1ms"
        );
        ensure!(
            self.network_bandwidth.is_none_or(|bandwidth| bandwidth.0 > 0),
            "network_bandwidth is 0, expected at least 1 byte per second"
        );
        ensure!(self.exit_when_idle != Some(Duration::ZERO), "exit_when_idle is 0, expected at least 1ms");
        self.traces.check()?;
        self.check_membership()?;
        self.check_open_datasets()?;
        self.check_authentication()
    }

    /// Requires the settings of a member, if this server is one.
    fn check_membership(&self) -> anyhow::Result<()> {
        let Self { members, advertise, zone, membership, .. } = self;
        membership.check()?;
        check_names(members.as_deref(), advertise.as_deref(), zone.as_deref())?;
        if members.is_none() {
            return Ok(());
        }
        ensure!(
            matches!(self.grpc, Address::Tcp(_)),
            "--members: expected HOST:PORT as --grpc, but it is {}",
            self.grpc
        );
        ensure!(
            self.tokens.is_none() || membership.token.is_some(),
            "--members with --tokens: expected --membership-token FILE, too, with the token that this server sends to the others"
        );
        Ok(())
    }

    /// Requires an address at which the operating system reports the user of a caller.
    fn check_open_datasets(&self) -> anyhow::Result<()> {
        if !self.open_datasets {
            return Ok(());
        }
        let is_unix = matches!(self.grpc, Address::Unix(_));
        ensure!(
            is_unix,
            "--open-datasets: expected a Unix socket (unix:/path) as --grpc, but it is {}",
            self.grpc
        );
        ensure!(
            self.tokens.is_none(),
            "--open-datasets: expected no --tokens, because callers are identified by their user"
        );
        Ok(())
    }

    /// Requires TLS and tokens, or `insecure`, for non-loopback addresses.
    fn check_authentication(&self) -> anyhow::Result<()> {
        let missing = match (&self.tls, &self.tokens) {
            (Some(_), Some(_)) => return Ok(()),
            (None, Some(_)) => "--tls-certificate and --tls-key",
            (Some(_), None) => "--tokens",
            (None, None) => "--tls-certificate, --tls-key and --tokens",
        };
        for (flag, address) in [("--grpc", &self.grpc), ("--http", &self.http)] {
            ensure!(
                address.is_local() || self.insecure,
                "{flag} {address} is reachable from other machines: add {missing}, \
                 or --insecure to allow every caller to read every dataset"
            );
        }
        Ok(())
    }

    /// `lookup_memory`, resolved.
    pub(crate) fn lookup_memory_bytes(&self) -> u64 {
        let half = if self.online.is_empty() { 0 } else { self.cache_memory.0 / 2 };
        self.lookup_memory.map_or(half, |size| size.0)
    }

    /// `state`, resolved: a path or URL.
    pub fn state_url(&self) -> String {
        self.state.clone().unwrap_or_else(|| self.cache_dir.join("state").to_string_lossy().into_owned())
    }
}

/// Describes an error in a settings file with its line number, but without the text of the line, which may contain a secret.
fn without_lines(text: &str, error: &toml::de::Error) -> String {
    let message = shown_url(error.message());
    let Some(before) = error.span().and_then(|span| text.get(..span.start)) else { return message };
    let begin = before.rfind('\n').map_or(0, |end| end + 1);
    let (line, column) = (1 + before.matches('\n').count(), 1 + before[begin..].chars().count());
    let key = text[begin..].lines().next().and_then(|line| line.split_once('='));
    let is_of_key = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let key = key.map(|(key, _)| key.trim()).filter(|key| !key.is_empty() && key.chars().all(is_of_key));
    let key = key.map_or(String::new(), |key| format!("{key}: "));
    format!("line {line}, column {column}: {key}{message}")
}

/// Serializes a size as a number of bytes, because the readable form is rounded.
fn exactly<S: serde::Serializer>(size: &ByteSize, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(size.0)
}

/// `$XDG_CACHE_HOME/forebay`, else `~/.cache/forebay`, else a folder in the current directory.
pub(crate) fn default_cache_dir() -> PathBuf {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    base.map_or_else(|| PathBuf::from(".forebay-cache"), |base| base.join("forebay"))
}

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;
