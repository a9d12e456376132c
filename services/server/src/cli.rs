//! The command line.

mod demo;
mod explain;
mod inspect;
mod local;
mod log;
mod panics;
#[cfg(test)]
pub(crate) mod reference;
mod runtime;
mod shown;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::bail;
use bytesize::ByteSize;
use clap::{Args, Parser, Subcommand, ValueEnum};
use forebay_loader::Scheduling;
use serde::{Deserialize, de::IntoDeserializer};

use crate::{Address, Server, Settings, Tls, printable::describe};
use explain::Explain;
use runtime::runtime;
use shown::shown;

/// Time for which the end of the server waits for reads and writes of files that have started.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Parquet in, deterministically shuffled Arrow Flight batches out.
///
/// Most flags of `forebay serve` can also be set as an environment variable or in the file of --config.
#[derive(Debug, Parser)]
#[command(name = "forebay", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Format of the logs on standard error: text, one line per message, or json, one JSON object per line. The environment
    /// variable FOREBAY_LOG selects messages by level and module, such as debug or forebay=trace; without it, `serve` logs messages
    /// of level info and above, and the other commands of level warn and above.
    #[arg(long, env = "FOREBAY_LOG_FORMAT", value_enum, default_value = "text", global = true)]
    log_format: LogFormat,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serves datasets to trainers.
    Serve(Box<Serve>),
    /// Streams a dataset to a small trainer in this process and prints the measured throughput.
    Demo(demo::Demo),
    /// Prints the contents of a dataset, and how many steps and how much memory an epoch takes.
    Inspect(inspect::Inspect),
    /// Prints where the rows of a past batch of a recorded job are stored, or writes the batch to a file.
    Explain(Box<Explain>),
    /// Prints the server that `forebay.open` of the Python package started on this host for this user, its datasets and its cache.
    Status,
    /// Stops the server that `forebay.open` started, which running trainings start again.
    Stop,
    /// Serves the dashboard of the server that `forebay.open` started on a loopback port, until Ctrl-C. The URL that it prints has a
    /// token, without which the port answers nothing.
    Dashboard(local::Dashboard),
    /// Prints the cache folders of `forebay.open` and their sizes.
    Cache(local::Cache),
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

/// Flags of `forebay serve`; they override the configuration file.
#[derive(Debug, Args)]
struct Serve {
    /// Name of a dataset, and the path or URL of its Parquet file or of its folder of Parquet files. Can be repeated; the
    /// environment variable holds one dataset [default: none].
    #[arg(long = "dataset", value_name = "NAME=URL", env = "FOREBAY_DATASET")]
    datasets: Vec<String>,
    /// Name of a dataset for lookups, and its key columns. The server keeps its rows and an index of its keys in memory
    /// (--lookup-memory). Can be repeated; the environment variable holds one dataset [default: none].
    #[arg(long = "online", value_name = "NAME=COLUMN[,COLUMN]", env = "FOREBAY_ONLINE")]
    online: Vec<String>,
    /// Path of the configuration file (TOML) [default: none].
    #[arg(long, value_name = "FILE", env = "FOREBAY_CONFIG")]
    config: Option<PathBuf>,
    /// Cache directory, used by one server at a time. Without --state it also holds the state, which cannot be rebuilt from the
    /// datasets [default: $XDG_CACHE_HOME/forebay or ~/.cache/forebay].
    #[arg(long, value_name = "DIR", env = "FOREBAY_CACHE_DIR")]
    cache_dir: Option<PathBuf>,
    /// Path or URL of the state: snapshot manifests, row counts and job records. All servers of a cluster share one [default:
    /// `state` in --cache-dir].
    #[arg(long, value_name = "URL", env = "FOREBAY_STATE")]
    state: Option<String>,
    /// Sources of the addresses of all servers of the cluster, separated by commas: HOST:PORT for one server, dns:NAME:PORT for all
    /// addresses of a name, or file:PATH for a file with one address on each line. Requires --advertise and a --state that all
    /// servers share [default: none, the server is not in a cluster].
    #[arg(long, value_name = "SOURCES", env = "FOREBAY_MEMBERS")]
    members: Option<String>,
    /// Address to which clients and other servers connect. It is also the name of this server in the cluster, and must not change
    /// after a restart [default: none].
    #[arg(long, value_name = "HOST:PORT", env = "FOREBAY_ADVERTISE")]
    advertise: Option<String>,
    /// Zone of this server, such as eu-west-1a. A client that sends its own zone receives only locations in this zone, if the zone
    /// has servers. An empty value means none [default: none].
    #[arg(long, value_name = "NAME", env = "FOREBAY_ZONE")]
    zone: Option<String>,
    /// File with the bearer token that this server sends to the other servers of the cluster. Required with --members and --tokens
    /// [default: none].
    #[arg(long, value_name = "FILE", env = "FOREBAY_MEMBERSHIP_TOKEN")]
    membership_token: Option<PathBuf>,
    /// File with the CA certificates (PEM) of the other servers of the cluster, used with --tls-certificate [default: the public CAs].
    #[arg(long, value_name = "FILE", env = "FOREBAY_MEMBERSHIP_CA")]
    membership_ca: Option<PathBuf>,
    /// Listen address of gRPC (Arrow Flight): HOST:PORT, or unix:/path for trainers on the same host. Port 0 selects a free port
    /// [default: 127.0.0.1:8815].
    #[arg(long, value_name = "HOST:PORT", env = "FOREBAY_GRPC")]
    grpc: Option<Address>,
    /// Listen address of HTTP (dashboard, API, probes, metrics): HOST:PORT, or unix:/path. Port 0 selects a free port [default:
    /// 127.0.0.1:8816].
    #[arg(long, value_name = "HOST:PORT", env = "FOREBAY_HTTP")]
    http: Option<Address>,
    /// Memory for decoded data, in bytes, or with a unit such as 8GiB; at least 1MiB [default: half of the memory of the machine or
    /// container].
    #[arg(long, value_name = "SIZE", env = "FOREBAY_CACHE_MEMORY")]
    cache_memory: Option<ByteSize>,
    /// Part of --cache-memory that is reserved for lookups, in bytes, or with a unit such as 2GiB [default: half of --cache-memory
    /// if --online is given, else 0].
    #[arg(long, value_name = "SIZE", env = "FOREBAY_LOOKUP_MEMORY")]
    lookup_memory: Option<ByteSize>,
    /// Disk space for decoded columns in --cache-dir, in bytes, or with a unit such as 200GiB; 0 disables the disk cache [default:
    /// half of the disk space that is free or already used by the disk cache].
    #[arg(long, value_name = "SIZE", env = "FOREBAY_CACHE_DISK")]
    cache_disk: Option<ByteSize>,
    /// Number of threads that decode Parquet data and assemble batches, at least 1 [default: one per core].
    #[arg(long, value_name = "N", env = "FOREBAY_CPU_THREADS")]
    cpu_threads: Option<usize>,
    /// Scheduling class of the CPU threads: normal, or idle (Linux SCHED_IDLE), which yields to every other thread
    /// [default: normal].
    #[arg(long, value_name = "CLASS", env = "FOREBAY_CPU_SCHEDULING", value_parser = scheduling)]
    cpu_scheduling: Option<Scheduling>,
    /// Number of threads that perform network I/O, at least 1 [default: one per core, at most 8].
    #[arg(long, value_name = "N", env = "FOREBAY_IO_THREADS")]
    io_threads: Option<usize>,
    /// Maximum number of threads for blocking calls, such as reads of the disk cache; at least 1 [default: 64].
    #[arg(long, value_name = "N", env = "FOREBAY_BLOCKING_THREADS")]
    blocking_threads: Option<usize>,
    /// Time that running streams are given to finish after SIGTERM, such as 2m [default: 30s].
    #[arg(long, value_name = "TIME", env = "FOREBAY_GRACE_PERIOD", value_parser = humantime::parse_duration)]
    grace_period: Option<Duration>,
    /// Time after SIGTERM, such as 5s, during which the server reports that it is not ready but still accepts calls. Load balancers
    /// can then stop sending calls [default: 0s].
    #[arg(long, value_name = "TIME", env = "FOREBAY_DRAIN_DELAY", value_parser = humantime::parse_duration)]
    drain_delay: Option<Duration>,
    /// Interval at which datasets are listed again to find new files, such as 5m [default: never].
    #[arg(long, value_name = "TIME", env = "FOREBAY_REFRESH_INTERVAL", value_parser = humantime::parse_duration)]
    refresh_interval: Option<Duration>,
    /// File with the certificate chain of the server (PEM) for gRPC and HTTP; requires --tls-key [default: none, no encryption].
    #[arg(long, value_name = "FILE", env = "FOREBAY_TLS_CERTIFICATE", requires = "tls_key")]
    tls_certificate: Option<PathBuf>,
    /// File with the private key of the certificate (PEM); requires --tls-certificate [default: none].
    #[arg(long, value_name = "FILE", env = "FOREBAY_TLS_KEY", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
    /// File with the CA certificates of clients (PEM); clients without a certificate of one of these CAs are rejected, over
    /// gRPC and HTTP (probes and metrics included). Requires --tls-certificate [default: none].
    #[arg(long, value_name = "FILE", env = "FOREBAY_TLS_CLIENT_CA")]
    tls_client_ca: Option<PathBuf>,
    /// Path of the token file (TOML) with the SHA-256 hashes of bearer tokens and their permissions [default: none, every caller
    /// can read every dataset].
    #[arg(long, value_name = "FILE", env = "FOREBAY_TOKENS")]
    tokens: Option<PathBuf>,
    /// Price of one GPU hour, in any currency, from which the dashboard computes the cost of waiting trainers [default: none].
    #[arg(long, value_name = "COST", env = "FOREBAY_GPU_HOUR_COST")]
    gpu_hour_cost: Option<f64>,
    /// Bytes per second that the network interface of the server can send, such as 12.5GB for 100 Gbit/s. The metric
    /// forebay_wanted_servers then uses the higher of the loads of the network and of the CPU threads [default: none, it uses the load
    /// of the CPU threads].
    #[arg(long, value_name = "SIZE", env = "FOREBAY_NETWORK_BANDWIDTH")]
    network_bandwidth: Option<ByteSize>,
    /// URL of the OTLP/gRPC collector that receives traces, such as http://127.0.0.1:4317 [default: none, no traces].
    #[arg(long, value_name = "URL", env = "FOREBAY_TRACES_ENDPOINT")]
    traces_endpoint: Option<String>,
    /// Allows non-loopback listen addresses without TLS or without tokens; otherwise such addresses require both. Without tokens
    /// every caller can then also change the settings of batch queues over HTTP [default: false].
    #[arg(long, env = "FOREBAY_INSECURE")]
    insecure: bool,
    /// Accepts the action `open`, with which a process of the same user adds a dataset, as `forebay.open` in Python does. Requires
    /// a Unix socket as --grpc; processes of other users are rejected at Unix sockets [default: false].
    #[arg(long, env = "FOREBAY_OPEN_DATASETS")]
    open_datasets: bool,
    /// Time without an open gRPC connection, such as 60s, after which the server stops [default: never].
    #[arg(long, value_name = "TIME", env = "FOREBAY_EXIT_WHEN_IDLE", value_parser = humantime::parse_duration)]
    exit_when_idle: Option<Duration>,
    /// Size of the log, such as 16MiB, at which the file to which standard error is redirected is emptied. Has no effect if standard
    /// error is no file [default: unlimited].
    #[arg(long, value_name = "SIZE", env = "FOREBAY_MAX_LOG_SIZE")]
    max_log_size: Option<ByteSize>,
    /// Prints the resolved configuration as TOML and exits [default: false].
    #[arg(long)]
    print_config: bool,
}

/// Runs the command that the arguments of this process name, and prints its failure. No failure contains the secrets of a URL that is an
/// argument or a setting.
pub fn main() -> ExitCode {
    let failure = match Cli::try_parse() {
        Ok(cli) => match cli.run() {
            Ok(()) => return ExitCode::SUCCESS,
            Err(error) => error,
        },
        Err(refusal) => {
            let text = refusal.to_string();
            let shown = shown(&text);
            // A closed output cannot be reported.
            if !refusal.use_stderr() || shown == text {
                drop(refusal.print());
            } else {
                eprint!("{shown}");
            }
            return ExitCode::from(u8::try_from(refusal.exit_code()).unwrap_or(2));
        }
    };
    eprintln!("forebay: {}", shown(&describe(&failure)));
    ExitCode::FAILURE
}

impl Cli {
    /// Runs the command to its end.
    ///
    /// # Errors
    /// The failure that ended the command, with a message for the user.
    pub fn run(self) -> anyhow::Result<()> {
        let (level, max_size) = match &self.command {
            Command::Serve(serve) => ("info", serve.max_log_size),
            Command::Demo(_)
            | Command::Inspect(_)
            | Command::Explain(_)
            | Command::Status
            | Command::Stop
            | Command::Dashboard(_)
            | Command::Cache(_) => ("warn", None),
        };
        init_logs(self.log_format, level, max_size);
        match self.command {
            Command::Serve(serve) => serve.run(),
            Command::Demo(demo) => demo.run(),
            Command::Inspect(inspect) => inspect.run(),
            Command::Explain(explain) => explain.run(),
            Command::Status => local::run(&["status"]),
            Command::Stop => local::run(&["stop"]),
            Command::Dashboard(dashboard) => dashboard.run(),
            Command::Cache(cache) => cache.run(),
        }
    }
}

impl Serve {
    fn run(self) -> anyhow::Result<()> {
        let print_config = self.print_config;
        let settings = self.settings()?;
        settings.check()?;
        if print_config {
            print!("{}", toml::to_string_pretty(&settings)?);
            return Ok(());
        }
        let runtime = runtime(settings.io_threads, settings.blocking_threads, &settings.storage)?;
        let ended = runtime.block_on(async {
            let server = Server::start(settings).await?;
            println!("{}", server.ready_line());
            server.run_until_signal().await
        });
        // Reads of a disk that hangs never end.
        runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
        ended
    }

    fn settings(self) -> anyhow::Result<Settings> {
        let mut settings = self.config.as_deref().map(Settings::read).transpose()?.unwrap_or_default();
        settings.add_datasets(&self.datasets)?;
        settings.add_online(&self.online)?;
        set(&mut settings.cache_dir, self.cache_dir);
        set(&mut settings.grpc, self.grpc);
        set(&mut settings.http, self.http);
        set(&mut settings.cache_memory, self.cache_memory);
        settings.lookup_memory = self.lookup_memory.or(settings.lookup_memory);
        settings.cache_disk = self.cache_disk.or(settings.cache_disk);
        set(&mut settings.cpu_threads, self.cpu_threads);
        set(&mut settings.cpu_scheduling, self.cpu_scheduling);
        set(&mut settings.io_threads, self.io_threads);
        set(&mut settings.blocking_threads, self.blocking_threads);
        set(&mut settings.grace_period, self.grace_period);
        set(&mut settings.drain_delay, self.drain_delay);
        settings.state = self.state.or(settings.state);
        settings.members = self.members.or(settings.members);
        settings.advertise = self.advertise.or(settings.advertise);
        settings.zone = self.zone.or(settings.zone).filter(|zone| !zone.is_empty());
        settings.membership.token = self.membership_token.or(settings.membership.token);
        settings.membership.ca = self.membership_ca.or(settings.membership.ca);
        settings.refresh_interval = self.refresh_interval.or(settings.refresh_interval);
        settings.tokens = self.tokens.or(settings.tokens);
        settings.gpu_hour_cost = self.gpu_hour_cost.or(settings.gpu_hour_cost);
        settings.network_bandwidth = self.network_bandwidth.or(settings.network_bandwidth);
        settings.insecure |= self.insecure;
        settings.open_datasets |= self.open_datasets;
        settings.exit_when_idle = self.exit_when_idle.or(settings.exit_when_idle);
        settings.traces.endpoint = self.traces_endpoint.or(settings.traces.endpoint);
        if let (Some(certificate), Some(key)) = (self.tls_certificate, self.tls_key) {
            let client_ca = settings.tls.take().and_then(|tls| tls.client_ca);
            settings.tls = Some(Tls { certificate, key, client_ca });
        }
        match (&mut settings.tls, self.tls_client_ca) {
            (Some(tls), client_ca) => tls.client_ca = client_ca.or(tls.client_ca.take()),
            (None, Some(_)) => bail!("--tls-client-ca: expected --tls-certificate and --tls-key, too"),
            (None, None) => {}
        }
        Ok(settings)
    }
}

fn scheduling(word: &str) -> Result<Scheduling, serde::de::value::Error> {
    Scheduling::deserialize(word.into_deserializer())
}

fn set<T>(setting: &mut T, flag: Option<T>) {
    if let Some(flag) = flag {
        *setting = flag;
    }
}

/// Initializes logging, also of panics. `FOREBAY_LOG` takes the directives of tracing's `EnvFilter`, such as `debug` or `forebay=trace`.
fn init_logs(format: LogFormat, level: &str, max_size: Option<ByteSize>) {
    let filter = tracing_subscriber::EnvFilter::try_from_env("FOREBAY_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(level));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(log::Log::new(max_size));
    // In tests a subscriber may already be set.
    let is_set = match format {
        LogFormat::Text => builder.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    if is_set.is_ok() {
        panics::log_panics();
    }
}
