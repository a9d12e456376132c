//! The command line.

use std::{
    net::{SocketAddr, ToSocketAddrs},
    path::PathBuf,
    time::Duration,
};

use anyhow::Context;
use bytesize::ByteSize;
use clap::{Args, Parser, Subcommand, ValueEnum};
use forebay_loader::Scheduling;
use serde::{Deserialize, de::IntoDeserializer};

use crate::{Address, Server, Settings, Tls, demo, explain::command::Explain, inspect};

/// Parquet in, deterministically shuffled Arrow Flight batches out.
#[derive(Debug, Parser)]
#[command(name = "forebay", version, about)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
    /// How logs are written to standard error.
    #[arg(long, env = "FOREBAY_LOG_FORMAT", value_enum, default_value = "text", global = true)]
    log_format: LogFormat,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve datasets to trainers.
    Serve(Box<Serve>),
    /// Shuffle and stream real Parquet to a small trainer in this process, and show what it took.
    Demo(demo::Demo),
    /// Say what a dataset holds, and what streaming it would cost.
    Inspect(inspect::Inspect),
    /// Say where the rows of a batch come from, and write it again: any batch of any job, also long after.
    Explain(Box<Explain>),
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

/// Flags of `forebay serve`; they override the configuration file.
#[derive(Debug, Args)]
struct Serve {
    /// A dataset by name: a Parquet file, or a folder of them. Repeats.
    #[arg(long = "dataset", value_name = "NAME=URL", env = "FOREBAY_DATASET")]
    datasets: Vec<String>,
    /// A dataset that is also looked up, by the columns of its key; it is kept in memory. Repeats.
    #[arg(long = "online", value_name = "NAME=COLUMN[,COLUMN]", env = "FOREBAY_ONLINE")]
    online: Vec<String>,
    /// Configuration file (TOML).
    #[arg(long, value_name = "FILE", env = "FOREBAY_CONFIG")]
    config: Option<PathBuf>,
    /// Folder for what can be rebuilt; held by one server at a time.
    #[arg(long, value_name = "DIR", env = "FOREBAY_CACHE_DIR")]
    cache_dir: Option<PathBuf>,
    /// Where manifests of snapshots are kept, a path or URL that all servers of a tier reach.
    #[arg(long, value_name = "URL", env = "FOREBAY_STATE")]
    state: Option<String>,
    /// Where gRPC (Arrow Flight) listens; port 0 takes a free one. unix:/path for trainers on this host.
    #[arg(long, value_name = "HOST:PORT", env = "FOREBAY_GRPC")]
    grpc: Option<Address>,
    /// Where HTTP (page, probes, metrics) listens; port 0 takes a free one.
    #[arg(long, value_name = "HOST:PORT", env = "FOREBAY_HTTP", value_parser = address)]
    http: Option<SocketAddr>,
    /// Memory for decoded data, such as 8GiB.
    #[arg(long, value_name = "SIZE", env = "FOREBAY_CACHE_MEMORY")]
    cache_memory: Option<ByteSize>,
    /// Of it, memory for datasets that are looked up (--online); half of it if it is not given.
    #[arg(long, value_name = "SIZE", env = "FOREBAY_LOOKUP_MEMORY")]
    lookup_memory: Option<ByteSize>,
    /// Disk for decoded columns in the cache directory, such as 200GiB; 0 for none.
    #[arg(long, value_name = "SIZE", env = "FOREBAY_CACHE_DISK")]
    cache_disk: Option<ByteSize>,
    /// Threads that decode and gather.
    #[arg(long, value_name = "N", env = "FOREBAY_CPU_THREADS")]
    cpu_threads: Option<usize>,
    /// How they stand with other threads: normal, or idle to run while no other wants the processor [default: idle on Linux, else normal]
    #[arg(long, value_name = "POLICY", env = "FOREBAY_CPU_SCHEDULING", value_parser = scheduling)]
    cpu_scheduling: Option<Scheduling>,
    /// Threads that read and send.
    #[arg(long, value_name = "N", env = "FOREBAY_IO_THREADS")]
    io_threads: Option<usize>,
    /// Threads that wait for local files [default: 16]
    #[arg(long, value_name = "N", env = "FOREBAY_FILE_THREADS")]
    file_threads: Option<usize>,
    /// How long running streams may finish after SIGTERM, such as 30s.
    #[arg(long, value_name = "TIME", env = "FOREBAY_GRACE_PERIOD", value_parser = humantime::parse_duration)]
    grace_period: Option<Duration>,
    /// How often datasets are looked at for new files, such as 5m.
    #[arg(long, value_name = "TIME", env = "FOREBAY_REFRESH_INTERVAL", value_parser = humantime::parse_duration)]
    refresh_interval: Option<Duration>,
    /// The server's certificate (PEM), for gRPC and HTTP; wants --tls-key.
    #[arg(long, value_name = "FILE", env = "FOREBAY_TLS_CERTIFICATE", requires = "tls_key")]
    tls_certificate: Option<PathBuf>,
    /// Its private key (PEM).
    #[arg(long, value_name = "FILE", env = "FOREBAY_TLS_KEY", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
    /// Authorities of clients (PEM): who has no certificate of theirs is not let in.
    #[arg(long, value_name = "FILE", env = "FOREBAY_TLS_CLIENT_CA")]
    tls_client_ca: Option<PathBuf>,
    /// The tokens that callers must show (TOML), and what each may read.
    #[arg(long, value_name = "FILE", env = "FOREBAY_TOKENS")]
    tokens: Option<PathBuf>,
    /// What an hour of a GPU costs, to say what waiting costs.
    #[arg(long, value_name = "COST", env = "FOREBAY_GPU_HOUR_COST")]
    gpu_hour_cost: Option<f64>,
    /// Collector of traces that speaks OTLP over gRPC, such as http://127.0.0.1:4317.
    #[arg(long, value_name = "URL", env = "FOREBAY_TRACES_ENDPOINT")]
    traces_endpoint: Option<String>,
    /// Listen beyond this machine without TLS and tokens.
    #[arg(long, env = "FOREBAY_INSECURE")]
    insecure: bool,
    /// Print the resolved configuration and stop.
    #[arg(long)]
    print_config: bool,
}

impl Cli {
    /// Runs the command to its end.
    ///
    /// # Errors
    /// Whatever stopped it, in words for a person.
    pub fn run(self) -> anyhow::Result<()> {
        let level = if matches!(self.command, Command::Serve(_)) { "info" } else { "warn" };
        init_logs(self.log_format, level);
        match self.command {
            Command::Serve(serve) => serve.run(),
            Command::Demo(demo) => demo.run(),
            Command::Inspect(inspect) => inspect.run(),
            Command::Explain(explain) => explain.run(),
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
        runtime(settings.io_threads, settings.file_threads)?.block_on(async {
            let server = Server::start(settings).await?;
            println!("{}", server.ready_line());
            server.run_until_signal().await
        })
    }

    fn settings(self) -> anyhow::Result<Settings> {
        let mut settings = match &self.config {
            Some(path) => Settings::read(path)?,
            None => Settings::default(),
        };
        settings.add_datasets(&self.datasets)?;
        settings.add_online(&self.online)?;
        set(&mut settings.cache_dir, self.cache_dir);
        set(&mut settings.grpc, self.grpc);
        set(&mut settings.http, self.http);
        set(&mut settings.cache_memory, self.cache_memory);
        settings.lookup_memory = self.lookup_memory.or(settings.lookup_memory);
        settings.cache_disk = self.cache_disk.or(settings.cache_disk);
        set(&mut settings.cpu_threads, self.cpu_threads);
        settings.cpu_scheduling = self.cpu_scheduling.or(settings.cpu_scheduling);
        set(&mut settings.io_threads, self.io_threads);
        set(&mut settings.file_threads, self.file_threads);
        set(&mut settings.grace_period, self.grace_period);
        settings.state = self.state.or(settings.state);
        settings.refresh_interval = self.refresh_interval.or(settings.refresh_interval);
        settings.tokens = self.tokens.or(settings.tokens);
        settings.gpu_hour_cost = self.gpu_hour_cost.or(settings.gpu_hour_cost);
        settings.insecure |= self.insecure;
        settings.traces.endpoint = self.traces_endpoint.or(settings.traces.endpoint);
        if let (Some(certificate), Some(key)) = (self.tls_certificate, self.tls_key) {
            let client_ca = settings.tls.take().and_then(|tls| tls.client_ca);
            settings.tls = Some(Tls { certificate, key, client_ca });
        }
        if let Some(tls) = &mut settings.tls {
            tls.client_ca = self.tls_client_ca.or(tls.client_ca.take());
        }
        Ok(settings)
    }
}

/// An address, or a name and a port.
fn address(text: &str) -> Result<SocketAddr, String> {
    let mut found = text.to_socket_addrs().map_err(|error| format!("expected HOST:PORT: {error}"))?;
    found.next().ok_or_else(|| "the name has no address".to_owned())
}

fn scheduling(word: &str) -> Result<Scheduling, serde::de::value::Error> {
    Scheduling::deserialize(word.into_deserializer())
}

fn set<T>(setting: &mut T, flag: Option<T>) {
    if let Some(flag) = flag {
        *setting = flag;
    }
}

/// The runtime on which everything but CPU work runs.
pub(crate) fn runtime(io_threads: usize, file_threads: usize) -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(io_threads)
        .max_blocking_threads(file_threads)
        .thread_name("forebay-io")
        .enable_all()
        .build()
        .context("can't start the I/O threads")
}

/// `FOREBAY_LOG` takes the directives of tracing's `EnvFilter`, such as `debug` or `forebay=trace`.
fn init_logs(format: LogFormat, level: &str) {
    let filter = tracing_subscriber::EnvFilter::try_from_env("FOREBAY_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(level));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A second call, as in tests, changes nothing.
    drop(match format {
        LogFormat::Text => builder.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).try_init(),
        LogFormat::Json => builder.json().try_init(),
    });
}
