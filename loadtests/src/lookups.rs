//! `forebay-load lookups`: features by key, compared with Redis and Feast: rows per second, and latency at equal load.

use std::{
    path::PathBuf,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use arrow_array::{Int64Array, RecordBatch};
use clap::Args;
use forebay_client::{Client, Config};
use forebay_proto::v1;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tonic::transport::Endpoint;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use crate::{
    chart::{Bar, Chart},
    interference::Patience,
    machine::Machine,
    output::Output,
    process::{Process, free_port},
    protocol::{RunRequest, RunResult},
    python::Python,
    scenario::Scenario,
    server::{Server, Transport},
    source::Source,
    stats::median,
    turns::Turns,
    usage::Usage,
};

/// Flags of `forebay-load lookups`.
#[derive(Debug, Args)]
pub(crate) struct Lookups {
    /// Keys per request.
    #[arg(long, default_value_t = 500)]
    keys: usize,
    /// Number of callers, each in its own process.
    #[arg(long, default_value_t = 8)]
    callers: usize,
    /// Turns. Each turn measures all systems.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Duration of the load per system and turn.
    #[arg(long, default_value = "3s", value_name = "TIME", value_parser = humantime::parse_duration)]
    time: Duration,
    /// Python with pyarrow and redis, and optionally the package forebay [default: as for `ranking`].
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,
    #[command(flatten)]
    patience: Patience,
    #[command(flatten)]
    output: Output,
}

/// A system and its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
enum Method {
    Forebay,
    Package,
    Feast,
    Redis,
}

impl Method {
    /// All methods. The last one is the reference of the ratios.
    const ALL: [Self; 4] = [Self::Forebay, Self::Package, Self::Feast, Self::Redis];

    /// Returns the name of the method, its argument of `peers/lookups.py`, and the Python module that it requires.
    fn describe(self) -> [&'static str; 3] {
        match self {
            Self::Forebay => ["Forebay, stock pyarrow", "forebay", "pyarrow.flight"],
            Self::Package => ["Forebay, package", "package", "forebay"],
            Self::Feast => ["Feast, SQLite", "feast", "feast"],
            Self::Redis => ["Redis, MGET", "redis", "redis"],
        }
    }

    fn name(self) -> &'static str {
        self.describe()[0]
    }

    /// Starts a caller.
    fn caller(self, python: &Python, url: &str) -> anyhow::Result<Process> {
        let [_, argument, _] = self.describe();
        script(python, &[argument, url])
    }
}

/// Measurements of one caller.
#[derive(Debug, Clone, Deserialize)]
struct CallerResult {
    requests: u64,
    seconds: f64,
    latencies: Vec<f64>,
}

/// Measurements of all callers.
#[derive(Debug, Clone, Copy, Default, Serialize)]
struct Measured {
    requests_per_second: f64,
    p50: f64,
    p99: f64,
}

#[derive(Debug, Serialize)]
struct Turn {
    /// Closed-loop load: each caller sends the next request after an answer. One entry per method.
    closed_loop: Vec<Measured>,
    /// Open-loop load at 80% of the rate of the last method. One entry per method.
    open_loop: Vec<Measured>,
    /// Requests per second of the open-loop load.
    rate: f64,
}

impl Turn {
    /// Returns the rate of method `at` under closed-loop load, with `keys` rows per request.
    fn rows_per_second(&self, at: usize, keys: usize) -> f64 {
        self.closed_loop[at].requests_per_second * keys as f64
    }
}

impl Lookups {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let (scenario, data) = Source::built_in("users").load()?;
        let python = Python::prepare(self.python.clone())?;
        let redis = Redis::start(&python)?;
        let path = data.path.display().to_string();
        let mut methods = Vec::new();
        for method in Method::ALL {
            let [name, _, module] = method.describe();
            if method == Method::Redis && redis.is_none() {
                println!("skipped: Redis: redis-server is missing");
            } else if python.has(module) {
                methods.push(method);
            } else {
                println!("skipped: {name}: Python has no module {module}");
            }
        }
        if let Some(redis) = &redis
            && methods.contains(&Method::Redis)
        {
            script(&python, &["fill", &redis.url, &path])?;
        }
        let feast = tempfile::tempdir()?;
        let feast_folder = feast.path().display().to_string();
        if methods.contains(&Method::Feast) {
            script(&python, &["fill-feast", &feast_folder, &path])?;
        }
        let (tensor, tensor_data) = Source::built_in("tensor").load()?;
        let tensor_flag = format!("{}={}", tensor.name, tensor_data.path.display());
        let server = Server::start_with(
            &scenario.name,
            &path,
            Transport::Tcp,
            &["--online", "users=id", "--lookup-memory", "1GiB", "--dataset", &tensor_flag],
            &[],
        )?;
        server.ready()?;
        let mut callers = Vec::new();
        for method in &methods {
            let url = match method {
                Method::Redis => redis.as_ref().map_or("", |redis| &redis.url),
                Method::Feast => &feast_folder,
                Method::Forebay | Method::Package => server.url(),
            };
            let started = (0..self.callers).map(|_| method.caller(&python, url));
            callers.push(started.collect::<anyhow::Result<Vec<_>>>()?);
        }
        let users = data.sizes.rows;
        let mut with_training = Vec::new();
        for _ in 0..self.rounds {
            let first = callers.first_mut().context("there are no callers")?;
            with_training.push(self.with_training(first, &server, &tensor, users)?);
        }
        let singles = (0..self.rounds)
            .map(|_| Single::measure(server.url(), users))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let one = |round: usize| self.turn(&mut callers, users, round);
        let turns = Turns::measure(self.rounds, &self.patience, one)?;
        let machine = Machine::this();
        println!(
            "{machine}\n{users} users, 39 float32 each; {} callers, {} keys per request; {} turns, medians\n",
            self.callers,
            self.keys,
            turns.len()
        );
        self.report(&methods, &turns);
        let of = |value: fn(&WithTraining) -> f64| median(with_training.iter().map(value));
        println!(
            "\n{TRAINING_LOOKUP_RATE:.0} lookups/s, p99 in the server: alone {:.0} us, with a training job at full speed ({:.2} M rows/s of 512 \
             bytes) {:.0} us; ratio {:.2}",
            of(|with_training| with_training.alone) * 1e6,
            of(|with_training| with_training.training_rate) / 1e6,
            of(|with_training| with_training.training) * 1e6,
            of(|with_training| with_training.training / with_training.alone),
        );
        let of = |value: fn(&Single) -> f64| median(singles.iter().map(value));
        println!(
            "one key, one caller, Rust client: p50 {:.0} us; an empty unary call of the same server {:.0} us; ratio {:.2}",
            of(|single| single.lookup) * 1e6,
            of(|single| single.echo) * 1e6,
            of(|single| single.lookup / single.echo),
        );
        let bars = methods.iter().enumerate().map(|(at, method)| {
            let is_forebay = matches!(method, Method::Forebay | Method::Package);
            let rates = turns.values(|turn| turn.rows_per_second(at, self.keys) / 1e3);
            Bar::of(method.name(), rates, is_forebay)
        });
        let chart = Chart::bars("Lookups by key", &machine, "k rows/s", bars);
        let measurements =
            json!({ "methods": methods, "turns": turns, "singles": singles, "with_training": with_training });
        self.output.write("lookups", &machine, &measurements, &chart)
    }

    /// Measures all methods. The order rotates from round to round. Also returns the CPU seconds.
    fn turn(&self, callers: &mut [Vec<Process>], users: u64, round: usize) -> anyhow::Result<(Turn, f64)> {
        // This process and its children: callers and servers.
        let used = || anyhow::Ok(Usage::of_tree(std::process::id())?.cpu_seconds);
        let before = used()?;
        let count = callers.len();
        let order = || (0..count).map(|at| (at + round) % count);
        let (mut closed_loop, mut open_loop) =
            (vec![Measured::default(); count], vec![Measured::default(); count]);
        for at in order() {
            closed_loop[at] = self.ask(&mut callers[at], users, None)?;
        }
        // The rate of Redis. Feast cannot sustain a load that is relevant for the others.
        let rate = 0.8 * closed_loop.last().map_or(0.0, |measured| measured.requests_per_second);
        for at in order().filter(|at| closed_loop[*at].requests_per_second > rate) {
            open_loop[at] = self.ask(&mut callers[at], users, Some(rate / self.callers as f64))?;
        }
        Ok((Turn { closed_loop, open_loop, rate }, used()? - before))
    }

    /// Returns the p99 of lookups with and without a concurrent training job at full speed.
    fn with_training(
        &self,
        callers: &mut [Process],
        server: &Server,
        tensor: &Scenario,
        users: u64,
    ) -> anyhow::Result<WithTraining> {
        let rate = Some(TRAINING_LOOKUP_RATE / self.callers as f64);
        let p99 = |callers: &mut [Process]| {
            let before = server.histogram(LOOKUP_SECONDS)?;
            self.ask(callers, users, rate)?;
            quantile(&before, &server.histogram(LOOKUP_SECONDS)?, 0.99)
        };
        let alone = p99(callers)?;
        let mut trainer = Process::consumer("forebay", server.url())?;
        trainer.run(&RunRequest::of(tensor.train(0, 1)))?;
        trainer.send(&RunRequest::of(tensor.train(1, TRAINING_EPOCHS)))?;
        let training = p99(callers)?;
        let result: RunResult = trainer.receive()?;
        ensure!(
            result.seconds > self.time.as_secs_f64(),
            "the training job ended before the lookups: raise TRAINING_EPOCHS"
        );
        Ok(WithTraining { alone, training, training_rate: result.rows as f64 / result.seconds })
    }

    fn ask(&self, callers: &mut [Process], users: u64, rate: Option<f64>) -> anyhow::Result<Measured> {
        for (seed, caller) in callers.iter_mut().enumerate() {
            let seconds = self.time.as_secs_f64();
            caller.send(&json!({ "count": self.keys, "seconds": seconds, "rate": rate, "users": users, "seed": seed }))?;
        }
        let (mut latencies, mut requests_per_second) = (Vec::new(), 0.0);
        for caller in callers {
            let seen: CallerResult = caller.receive()?;
            requests_per_second += seen.requests as f64 / seen.seconds;
            latencies.extend(seen.latencies);
        }
        latencies.sort_by(f64::total_cmp);
        let at = |quantile: f64| latencies.get((latencies.len() as f64 * quantile) as usize).copied();
        let (Some(p50), Some(p99)) = (at(0.5), at(0.99)) else { bail!("no request was answered") };
        Ok(Measured { requests_per_second, p50, p99 })
    }

    fn report(&self, methods: &[Method], turns: &Turns<Turn>) {
        println!(
            "{:<24} {:>10} {:>8} {:>8} {:>8} {:>14} {:>8}",
            "", "k rows/s", "ratio", "p50 ms", "p99 ms", "equal load: p50", "p99 ms"
        );
        let last = methods.len().saturating_sub(1);
        for (at, method) in methods.iter().enumerate() {
            println!(
                "{:<24} {:>10.0} {:>8.2} {:>8.2} {:>8.2} {:>14.2} {:>8.2}",
                method.name(),
                turns.median(|turn| turn.rows_per_second(at, self.keys)) / 1e3,
                turns.median(|turn| turn.rows_per_second(at, 1) / turn.rows_per_second(last, 1)),
                turns.median(|turn| turn.closed_loop[at].p50) * 1e3,
                turns.median(|turn| turn.closed_loop[at].p99) * 1e3,
                turns.median(|turn| turn.open_loop[at].p50) * 1e3,
                turns.median(|turn| turn.open_loop[at].p99) * 1e3,
            );
        }
        println!("\nequal load: {:.0} requests/s", turns.median(|turn| turn.rate));
    }
}

/// Lookups per second during a training job, few enough that they do not wait for each other.
const TRAINING_LOOKUP_RATE: f64 = 400.0;
/// Epochs of the training job, more than it can stream during the lookups.
const TRAINING_EPOCHS: u64 = 24;
const LOOKUP_SECONDS: &str = "forebay_lookup_duration_seconds";

/// The p99 of lookups in seconds, measured in the server.
#[derive(Debug, Clone, Copy, Serialize)]
struct WithTraining {
    alone: f64,
    training: f64,
    /// Rows per second of the training job.
    training_rate: f64,
}

/// Returns a quantile of the samples between two readings of a histogram, interpolated within its bucket.
fn quantile(before: &[(f64, f64)], after: &[(f64, f64)], share: f64) -> anyhow::Result<f64> {
    let count = |at: usize| after[at].1 - before.get(at).map_or(0.0, |bucket| bucket.1);
    ensure!(!after.is_empty(), "the server has no {LOOKUP_SECONDS}");
    let rank = share * count(after.len() - 1);
    let at = (0..after.len()).find(|at| count(*at) >= rank).unwrap_or(after.len() - 1);
    let (low, below) = at.checked_sub(1).map_or((0.0, 0.0), |at| (after[at].0, count(at)));
    let high = after[at].0.min(low * 2.0 + 1e-5);
    Ok(low + (high - low) * (rank - below) / (count(at) - below).max(1.0))
}

/// Median seconds of lookups of one key and of an empty unary call (gRPC health).
#[derive(Debug, Clone, Copy, Serialize)]
struct Single {
    lookup: f64,
    echo: f64,
}

impl Single {
    /// Alternates after a hundred calls, so that both have the same conditions.
    fn measure(url: &str, users: u64) -> anyhow::Result<Self> {
        tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
            let tensor = v1::Tensor { name: "x".into(), columns: vec!["f*".into()], ..v1::Tensor::default() };
            let wanted =
                v1::Lookup { dataset: "users".into(), tensors: vec![tensor], ..v1::Lookup::default() };
            let lookups = Client::new([url], Config::default())?.lookup(&wanted).await?;
            let channel = Endpoint::from_shared(url.to_owned())?.tcp_nodelay(true).connect().await?;
            let mut health = HealthClient::new(channel);
            let (mut found, mut echoed) = (Vec::new(), Vec::new());
            for turn in 0..20 {
                for call in 0..100 {
                    let key = (turn * 7919 + call * 104_729) % users;
                    let keys = RecordBatch::try_from_iter([(
                        "id",
                        Arc::new(Int64Array::from(vec![key as i64])) as _,
                    )])?;
                    let began = Instant::now();
                    let rows = lookups.get(&keys).await?;
                    ensure!(rows.metadata.found == 1, "key {key} was not found");
                    found.push(began.elapsed().as_secs_f64());
                }
                for _ in 0..100 {
                    let began = Instant::now();
                    health.check(HealthCheckRequest::default()).await?;
                    echoed.push(began.elapsed().as_secs_f64());
                }
            }
            Ok(Self { lookup: median(found), echo: median(echoed) })
        })
    }
}

/// Starts `peers/lookups.py` and waits until it is ready.
fn script(python: &Python, arguments: &[&str]) -> anyhow::Result<Process> {
    let mut command = python.command("lookups.py");
    command.args(arguments);
    Process::spawn("lookups.py", command)
}

/// `redis-server` on a free port, without persistence. Dropping it stops it.
struct Redis {
    url: String,
    _process: Process,
}

impl Redis {
    /// Returns `None` if redis-server or the Python module is missing.
    fn start(python: &Python) -> anyhow::Result<Option<Self>> {
        if Command::new("redis-server").arg("--version").output().is_err() || !python.has("redis") {
            return Ok(None);
        }
        let port = free_port()?;
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--daemonize", "no"]);
        command.args(["--save", "", "--appendonly", "no"]);
        let process = Process::other_server("redis-server", command, port)?;
        Ok(Some(Self { url: format!("redis://127.0.0.1:{port}"), _process: process }))
    }
}
