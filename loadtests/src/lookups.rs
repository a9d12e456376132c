//! `forebay-load lookups`: features by key, beside Redis and Feast: how many rows a second, and how late at the same load.

use std::{
    net::TcpListener,
    path::PathBuf,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use arrow_array::{Int64Array, RecordBatch};
use clap::Args;
use forebay_client::{Client, Config};
use forebay_proto::{Encoding, v1};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tonic::transport::Endpoint;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use crate::{
    Source,
    ask::{Ask, Passed},
    foreign::{Clock, Patience},
    machine::Machine,
    output::Json,
    peers::python::Python,
    process::Process,
    scenario::Scenario,
    server::{Server, Transport},
    stats::median,
    usage::Usage,
};

/// Flags of `forebay-load lookups`.
#[derive(Debug, Args)]
pub(crate) struct Lookups {
    /// Keys of a request.
    #[arg(long, default_value_t = 500)]
    keys: usize,
    /// Callers, a process each.
    #[arg(long, default_value_t = 8)]
    callers: usize,
    /// Turns; in each all contestants are asked.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// How long a contestant is asked in a turn.
    #[arg(long, default_value = "3s", value_name = "TIME", value_parser = humantime::parse_duration)]
    time: Duration,
    /// Python with pyarrow and redis, and perhaps the package forebay; else as for `ranking`.
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,
    #[command(flatten)]
    patience: Patience,
    #[command(flatten)]
    json: Json,
}

/// Who is asked, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
enum Way {
    Forebay,
    Package,
    Feast,
    Redis,
}

impl Way {
    /// What the others are compared with comes last.
    const ALL: [Self; 4] = [Self::Forebay, Self::Package, Self::Feast, Self::Redis];

    fn name(self) -> &'static str {
        match self {
            Self::Forebay => "Forebay, stock pyarrow",
            Self::Package => "Forebay, package",
            Self::Feast => "Feast, SQLite",
            Self::Redis => "Redis, MGET",
        }
    }

    /// As `peers/lookups.py` calls it.
    fn word(self) -> &'static str {
        match self {
            Self::Forebay => "forebay",
            Self::Package => "package",
            Self::Feast => "feast",
            Self::Redis => "redis",
        }
    }

    /// What it imports.
    fn needs(self) -> &'static str {
        match self {
            Self::Forebay => "pyarrow.flight",
            Self::Package => "forebay",
            Self::Feast => "feast",
            Self::Redis => "redis",
        }
    }
}

/// What one caller saw.
#[derive(Debug, Clone, Deserialize)]
struct Seen {
    requests: u64,
    seconds: f64,
    latencies: Vec<f64>,
}

/// What all of them saw.
#[derive(Debug, Clone, Copy, Serialize)]
struct Measured {
    requests_per_second: f64,
    p50: f64,
    p99: f64,
}

#[derive(Debug, Clone, Serialize)]
struct Turn {
    /// Asked as fast as they answer, in the order of the contestants.
    most: Vec<Measured>,
    /// At four fifths of what the last one can do, requests coming when they come.
    same: Vec<Measured>,
    /// Requests a second of the latter.
    rate: f64,
    others: f64,
}

impl Lookups {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let (scenario, data) = Source { scenario: "users".into(), data: None }.prepared()?;
        let python = Python::prepare(self.python.clone())?;
        let redis = Redis::start(&python)?;
        let path = data.path.display().to_string();
        let mut ways = Vec::new();
        for way in Way::ALL {
            match way {
                Way::Redis if redis.is_none() => println!("skipped: Redis: there is no redis-server"),
                way if !python.has(way.needs()) => println!("skipped: {}: no {}", way.name(), way.needs()),
                way => ways.push(way),
            }
        }
        if let Some(redis) = &redis
            && ways.contains(&Way::Redis)
        {
            let mut command = python.command("lookups.py");
            command.args(["fill", &redis.url, &path]);
            Process::spawn("lookups.py fill", command)?.ready()?;
        }
        let feast = tempfile::tempdir()?;
        let feast_folder = feast.path().display().to_string();
        if ways.contains(&Way::Feast) {
            let mut command = python.command("lookups.py");
            command.args(["fill-feast", &feast_folder, &path]);
            Process::spawn("lookups.py fill-feast", command)?.ready()?;
        }
        let (tensor, tensor_data) = Source { scenario: "tensor".into(), data: None }.prepared()?;
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
        for way in &ways {
            let url = match way {
                Way::Redis => redis.as_ref().map_or("", |redis| &redis.url),
                Way::Feast => &feast_folder,
                Way::Forebay | Way::Package => server.url(),
            };
            callers.push(
                (0..self.callers).map(|_| caller(&python, *way, url)).collect::<anyhow::Result<Vec<_>>>()?,
            );
        }
        let users = data.sizes.rows;
        let mut beside = Vec::new();
        for _ in 0..self.rounds {
            let first = callers.first_mut().context("pyarrow is always there")?;
            beside.push(self.beside(first, &server, &tensor, users)?);
        }
        let singles = (0..self.rounds)
            .map(|_| Single::measure(server.url(), users))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let mut turns = Vec::new();
        for round in 1..=self.rounds {
            eprintln!("round {round} of {}", self.rounds);
            let one = || self.turn(&mut callers, users, round);
            turns.push(self.patience.undisturbed(|turn: &Turn| turn.others, one)?);
        }
        let machine = Machine::this();
        println!(
            "{machine}\n{users} users, 39 float32 each; {} callers of {} keys a request; {} turns, medians\n",
            self.callers,
            self.keys,
            turns.len()
        );
        self.report(&ways, &turns);
        let of = |value: fn(&Beside) -> f64| median(beside.iter().map(value));
        println!(
            "\n{BESIDE_RATE:.0} lookups/s, p99 in the server: alone {:.0} us, beside a training job at full speed ({:.2} M rows/s of 512 \
             bytes) {:.0} us; {:.2} of it",
            of(|beside| beside.alone) * 1e6,
            of(|beside| beside.training_rate) / 1e6,
            of(|beside| beside.training) * 1e6,
            of(|beside| beside.training / beside.alone),
        );
        let of = |value: fn(&Single) -> f64| median(singles.iter().map(value));
        println!(
            "one key, one caller, Rust client: p50 {:.0} us; an empty unary call of the same server {:.0} us; {:.2} of it",
            of(|single| single.lookup) * 1e6,
            of(|single| single.echo) * 1e6,
            of(|single| single.lookup / single.echo),
        );
        self.json.write(&json!({ "machine": machine, "ways": ways, "turns": turns, "singles": singles, "beside": beside }))
    }

    /// Which comes first changes from round to round.
    fn turn(&self, callers: &mut [Vec<Process>], users: u64, round: usize) -> anyhow::Result<Turn> {
        let clock = Clock::now()?;
        let before = used()?;
        let count = callers.len();
        let order = || (0..count).map(|at| (at + round) % count);
        let none = Measured { requests_per_second: 0.0, p50: 0.0, p99: 0.0 };
        let (mut most, mut same) = (vec![none; count], vec![none; count]);
        for at in order() {
            most[at] = self.ask(&mut callers[at], users, None)?;
        }
        // Redis'; Feast could not keep up with any load that the others feel.
        let rate = 0.8 * most.last().map_or(0.0, |measured| measured.requests_per_second);
        for at in order().filter(|at| most[*at].requests_per_second > rate) {
            same[at] = self.ask(&mut callers[at], users, Some(rate / self.callers as f64))?;
        }
        let others = clock.others_since(used()? - before)?;
        Ok(Turn { most, same, rate, others })
    }

    /// The p99 of lookups with and without a training job that takes batches as fast as they come.
    fn beside(
        &self,
        callers: &mut [Process],
        server: &Server,
        tensor: &Scenario,
        users: u64,
    ) -> anyhow::Result<Beside> {
        let rate = Some(BESIDE_RATE / self.callers as f64);
        let p99 = |callers: &mut [Process]| {
            let before = server.histogram(LOOKUP_SECONDS)?;
            self.ask(callers, users, rate)?;
            quantile(&before, &server.histogram(LOOKUP_SECONDS)?, 0.99)
        };
        let alone = p99(callers)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["consume", "--client", "forebay", "--url", server.url()]);
        let mut trainer = Process::spawn("consume", command)?;
        trainer.ready()?;
        let ask = |epoch, epochs| -> anyhow::Result<Ask> {
            let train = tensor.train(epoch, epochs);
            Ok(Ask {
                ticket: String::from_utf8(Encoding::Json.encode(&v1::Command::from(train)))?,
                compute_ms: None,
            })
        };
        trainer.ask(&ask(0, 1)?)?;
        trainer.send(&ask(1, BESIDE_EPOCHS)?)?;
        let training = p99(callers)?;
        let passed: Passed = trainer.receive()?;
        ensure!(
            passed.seconds > self.time.as_secs_f64(),
            "the training job ended before the lookups; raise its epochs"
        );
        Ok(Beside { alone, training, training_rate: passed.rows as f64 / passed.seconds })
    }

    fn ask(&self, callers: &mut [Process], users: u64, rate: Option<f64>) -> anyhow::Result<Measured> {
        for (seed, caller) in callers.iter_mut().enumerate() {
            let seconds = self.time.as_secs_f64();
            caller.send(&json!({ "count": self.keys, "seconds": seconds, "rate": rate, "users": users, "seed": seed }))?;
        }
        let (mut latencies, mut requests_per_second) = (Vec::new(), 0.0);
        for caller in callers {
            let seen: Seen = caller.receive()?;
            requests_per_second += seen.requests as f64 / seen.seconds;
            latencies.extend(seen.latencies);
        }
        latencies.sort_by(f64::total_cmp);
        let at = |quantile: f64| latencies.get((latencies.len() as f64 * quantile) as usize).copied();
        let (Some(p50), Some(p99)) = (at(0.5), at(0.99)) else { bail!("nothing was answered") };
        Ok(Measured { requests_per_second, p50, p99 })
    }

    fn report(&self, ways: &[Way], turns: &[Turn]) {
        println!(
            "{:<24} {:>10} {:>8} {:>8} {:>8} {:>14} {:>8}",
            "", "k rows/s", "of last", "p50 ms", "p99 ms", "same load: p50", "p99 ms"
        );
        let of = |value: &dyn Fn(&Turn) -> f64| median(turns.iter().map(value));
        let last = ways.len().saturating_sub(1);
        for (at, way) in ways.iter().enumerate() {
            println!(
                "{:<24} {:>10.0} {:>8.2} {:>8.2} {:>8.2} {:>14.2} {:>8.2}",
                way.name(),
                of(&|turn| turn.most[at].requests_per_second) * self.keys as f64 / 1e3,
                of(&|turn| turn.most[at].requests_per_second / turn.most[last].requests_per_second),
                of(&|turn| turn.most[at].p50) * 1e3,
                of(&|turn| turn.most[at].p99) * 1e3,
                of(&|turn| turn.same[at].p50) * 1e3,
                of(&|turn| turn.same[at].p99) * 1e3,
            );
        }
        println!("\nthe same load is {:.0} requests/s", of(&|turn| turn.rate));
    }
}

/// Lookups a second beside a training job, few enough that they don't wait for each other.
const BESIDE_RATE: f64 = 400.0;
/// More than it can stream while the lookups run.
const BESIDE_EPOCHS: u64 = 24;
const LOOKUP_SECONDS: &str = "forebay_online_lookup_duration_seconds";

/// The p99 of lookups, in seconds, as the server sees them.
#[derive(Debug, Clone, Copy, Serialize)]
struct Beside {
    alone: f64,
    training: f64,
    /// Rows a second of the training job.
    training_rate: f64,
}

/// Of what came between two readings of a histogram, interpolated between its bounds.
fn quantile(before: &[(f64, f64)], after: &[(f64, f64)], share: f64) -> anyhow::Result<f64> {
    let count = |at: usize| after[at].1 - before.get(at).map_or(0.0, |bucket| bucket.1);
    ensure!(!after.is_empty(), "the server has no {LOOKUP_SECONDS}");
    let wanted = share * count(after.len() - 1);
    let at = (0..after.len()).find(|at| count(*at) >= wanted).unwrap_or(after.len() - 1);
    let (low, below) = at.checked_sub(1).map_or((0.0, 0.0), |at| (after[at].0, count(at)));
    let high = after[at].0.min(low * 2.0 + 1e-5);
    Ok(low + (high - low) * (wanted - below) / (count(at) - below).max(1.0))
}

/// One key at a time beside a unary call that does nothing (gRPC health): seconds, medians.
#[derive(Debug, Clone, Copy, Serialize)]
struct Single {
    lookup: f64,
    echo: f64,
}

impl Single {
    /// In turns of a hundred, so that both see the same machine.
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
                    ensure!(rows.about.found == 1, "key {key} was not found");
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

fn caller(python: &Python, way: Way, url: &str) -> anyhow::Result<Process> {
    let mut command = python.command("lookups.py");
    command.args([way.word(), url]);
    let mut caller = Process::spawn("lookups.py", command)?;
    caller.ready()?;
    Ok(caller)
}

/// CPU seconds of this process and of all that it has started: callers and servers.
fn used() -> anyhow::Result<f64> {
    Ok(Usage::of_tree(std::process::id())?.cpu_seconds)
}

/// `redis-server` on a free port, without persistence; it ends when it is dropped.
struct Redis {
    url: String,
    _process: Process,
}

impl Redis {
    /// `None` where there is none.
    fn start(python: &Python) -> anyhow::Result<Option<Self>> {
        if Command::new("redis-server").arg("--version").output().is_err() || !python.has("redis") {
            return Ok(None);
        }
        // Redis takes no port 0.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
        let mut command = Command::new("redis-server");
        command.args([
            "--port",
            &port,
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--daemonize",
            "no",
        ]);
        let process = Process::spawn_without_input("redis-server", command)?;
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        while std::net::TcpStream::connect(format!("127.0.0.1:{port}")).is_err() {
            if std::time::Instant::now() > deadline {
                return Err(anyhow::anyhow!("it does not listen")).context("redis-server");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Some(Self { url: format!("redis://127.0.0.1:{port}"), _process: process }))
    }
}
