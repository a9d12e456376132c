//! `forebay-load hostile`: a trainer, a caller of lookups and probes, while others attack the server.
//!
//! An attack costs CPU time on the same machine, whatever the server does. Each attack is therefore measured twice: on the
//! server of the good clients, and on another server. The attackers have the lowest CPU priority.

mod attack;
mod calls;
mod good;
mod messages;
mod single;
mod unread;
mod values;

use std::{process::Command, sync::Arc, time::Duration};

use anyhow::{Context, ensure};
use arrow_array::{Float32Array, RecordBatch};
use clap::{Args, ValueEnum};
use forebay_client::{Client, Config, Token};
use ring::digest::{SHA256, digest};
use serde::Serialize;
use serde_json::json;
use tokio::runtime::Runtime;

pub(crate) use attack::Attack;
use attack::Kind;
use good::Measured;

use crate::{
    chart::{Bar, Chart},
    machine::Machine,
    output::Output,
    process::Process,
    server::{Server, Transport},
    source::Source,
};

/// Flags of `forebay-load hostile`.
#[derive(Debug, Args)]
pub(crate) struct Hostile {
    /// Attacks, separated by commas [default: all].
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Kind>,
    /// Measurements per attack and server.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Duration of a measurement.
    #[arg(long, default_value = "4s", value_name = "TIME", value_parser = humantime::parse_duration)]
    time: Duration,
    #[command(flatten)]
    output: Output,
}

/// Time between the start of an attack and the measurement.
const LEAD: Duration = Duration::from_secs(2);
/// Largest acceptable ratio of latencies and rates.
const MAX_RATIO: f64 = 2.0;
/// Largest acceptable latency of a probe during an attack with messages, in seconds.
const MAX_PROBE_SECONDS: f64 = 0.1;
const GOOD: &str = "good";
const BAD: &str = "attacker";
const MIB: u64 = 1 << 20;
const CACHE_BYTES: u64 = 1 << 30;
/// `limits.max_unsent_bytes`.
const UNSENT_BYTES: u64 = 256 * MIB;
/// `limits.max_incoming_bytes`.
const INCOMING_BYTES: u64 = 128 * MIB;
/// `loader.total_prefetch_bytes`.
const PREFETCH_BYTES: u64 = CACHE_BYTES / 8;
/// Memory that the limits permit to all callers, in addition to the cache. Finished batches may take `total_prefetch_bytes` twice, and the
/// replies of workers `max_incoming_bytes` in addition to the requests.
const BUDGET_BYTES: u64 = UNSENT_BYTES + 2 * INCOMING_BYTES + 2 * PREFETCH_BYTES;
/// Memory beyond the limits: connections, and pages that the allocator keeps.
const SLACK_BYTES: u64 = 64 * MIB;

/// Measurements of one attack, pooled over its rounds.
#[derive(Debug, Serialize)]
struct Attacked {
    kind: Kind,
    /// Results while the attack is on another server.
    control: Measured,
    /// Results while the attack is on the server of the good clients.
    here: Measured,
    /// Peak of the server's resident memory so far, in bytes.
    peak_rss_bytes: u64,
}

/// A figure of the good clients: its name, and whether more is better.
type Figure = (&'static str, fn(&Measured) -> f64, bool);

/// The figures that are compared.
const FIGURES: [Figure; 5] = [
    ("M rows/s", |measured| measured.rows_per_second() / 1e6, true),
    ("wait p99, ms", |measured| measured.wait_p99_seconds() * 1e3, false),
    ("lookups/s", Measured::lookups_per_second, true),
    ("lookup p99, ms", |measured| measured.lookup_p99_seconds() * 1e3, false),
    ("probe p99, ms", |measured| measured.probe_p99_seconds() * 1e3, false),
];

impl Attacked {
    /// Ratio of a figure during an attack on this server to that during an attack on another server. Above 1 is worse.
    fn ratio(&self, (_, figure, more_is_better): Figure) -> f64 {
        let (control, here) = (figure(&self.control), figure(&self.here));
        if more_is_better { control / here } else { here / control }
    }

    /// Largest of the ratios.
    fn worst(&self) -> f64 {
        FIGURES.iter().map(|figure| self.ratio(*figure)).fold(0.0, f64::max)
    }
}

impl Hostile {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let (scenario, data) = Source::built_in("users").load()?;
        let folder = tempfile::tempdir()?;
        let tokens = folder.path().join("tokens.toml");
        let token = |name: &str| {
            let digest = hex::encode(digest(&SHA256, name.as_bytes()));
            format!("[{name}]\nsha256 = \"{digest}\"\ndatasets = [\"*\"]\nserves = [\"*\"]\n")
        };
        let numbered = (0..values::TOKENS).map(|number| token(&values::token(BAD, number)));
        std::fs::write(&tokens, token(GOOD) + &token(BAD) + &numbered.collect::<String>())?;
        let path = data.path.display().to_string();
        let tokens = tokens.display().to_string();
        let config = folder.path().join("forebay.toml");
        std::fs::write(&config, settings())?;
        let (config, cache) = (config.display().to_string(), CACHE_BYTES.to_string());
        let flags = [
            "--config",
            &config,
            "--online",
            "users=id",
            "--lookup-memory",
            "512MiB",
            "--cache-memory",
            &cache,
            "--tokens",
            &tokens,
        ];
        let start = || Server::start_with(&scenario.name, &path, Transport::Tcp, &flags, &[]);
        let kinds = if self.only.is_empty() { Kind::value_variants() } else { &self.only };
        let runtime = Runtime::new()?;
        let costs = match kinds.contains(&Kind::Messages) {
            true => {
                let server = start()?;
                server.ready()?;
                runtime.block_on(single::measure(&server, "users", BAD))?
            }
            false => Vec::new(),
        };
        let (server, other) = (start()?, start()?);
        for server in [&server, &other] {
            server.ready()?;
            runtime.spawn(work(server.url().to_owned()));
        }
        runtime.block_on(good::measure(&server, &scenario, GOOD, LEAD))?;
        let before = server.usage()?.peak_rss_bytes;
        let mut attacks = Vec::new();
        for kind in kinds {
            let mut attacked = Attacked {
                kind: *kind,
                control: Measured::default(),
                here: Measured::default(),
                peak_rss_bytes: 0,
            };
            for round in 1..=self.rounds {
                eprintln!("{kind:?}: round {round} of {}", self.rounds);
                for (target, results) in [(&other, &mut attacked.control), (&server, &mut attacked.here)] {
                    let mut attacker = start_attack(*kind, target)?;
                    std::thread::sleep(LEAD);
                    results.add(runtime.block_on(good::measure(&server, &scenario, GOOD, self.time))?);
                    attacker.check_running()?;
                }
            }
            attacked.peak_rss_bytes = server.usage()?.peak_rss_bytes;
            attacks.push(attacked);
        }
        self.report(&attacks, before, &costs)
    }

    fn report(&self, attacks: &[Attacked], before: u64, costs: &[single::Cost]) -> anyhow::Result<()> {
        let machine = Machine::this();
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        println!(
            "{machine}\n{} measurements of {:?} each, pooled; ratios to the same attack on another server",
            self.rounds, self.time
        );
        println!("peak RSS before the first attack: {:.0} MiB\n", mib(before));
        let heads = FIGURES.map(|(name, ..)| format!("{name:>14}  ratio")).concat();
        println!("{:<16}{heads} peak RSS, MiB", "attack");
        for attacked in attacks {
            let cells = FIGURES.map(|figure| {
                let (_, value, _) = figure;
                format!("{:>14.2} {:>6.2}", value(&attacked.here), attacked.ratio(figure))
            });
            let name = attacked.kind.to_possible_value().map(|value| value.get_name().to_owned());
            let (name, cells) = (name.unwrap_or_default(), cells.concat());
            println!("{name:<16}{cells} {:>13.0}", mib(attacked.peak_rss_bytes));
        }
        if !costs.is_empty() {
            single::print(costs);
        }
        let bars =
            attacks.iter().map(|attacked| Bar::of(format!("{:?}", attacked.kind), [attacked.worst()], true));
        let chart = Chart::bars("Good clients during attacks", &machine, "worst ratio", bars);
        let figures = attacks.iter().map(|attacked| {
            let of = |measured: &Measured| FIGURES.map(|(name, value, _)| (name, value(measured)));
            json!({ "kind": attacked.kind, "control": of(&attacked.control), "here": of(&attacked.here) })
        });
        let figures: Vec<_> = figures.collect();
        let measurements =
            json!({ "figures": figures, "attacks": attacks, "peak_rss_before": before, "messages": costs });
        self.output.write("hostile", &machine, &measurements, &chart)?;
        let grown = attacks.iter().map(|attacked| attacked.peak_rss_bytes.saturating_sub(before)).max();
        let grown = grown.unwrap_or(0);
        single::judge(costs)?;
        ensure!(
            grown <= BUDGET_BYTES + SLACK_BYTES,
            "the memory has grown by {:.0} MiB; expected at most {:.0} MiB, which the limits permit, and {:.0} MiB",
            mib(grown),
            mib(BUDGET_BYTES),
            mib(SLACK_BYTES)
        );
        for attacked in attacks.iter().filter(|attacked| attacked.kind == Kind::Messages) {
            let seconds = attacked.here.probe_p99_seconds();
            ensure!(
                seconds <= MAX_PROBE_SECONDS,
                "1 % of the probes took {seconds:.3} s or longer; expected at most {MAX_PROBE_SECONDS} s"
            );
        }
        let worst = attacks.iter().map(Attacked::worst).fold(0.0, f64::max);
        ensure!(worst <= MAX_RATIO, "a ratio is {worst:.2}; expected at most {MAX_RATIO}");
        Ok(())
    }
}

/// Settings of the servers: a batch queue, and the limits that the memory is compared with.
fn settings() -> String {
    format!(
        "[limits]\nmax_unsent_bytes = {UNSENT_BYTES}\nmax_incoming_bytes = {INCOMING_BYTES}\n\
         [loader]\ntotal_prefetch_bytes = {PREFETCH_BYTES}\n\
         [queues.{}.features]\ndataset = \"users\"\ncolumns = [\"f000\"]\n",
        unread::QUEUE
    )
}

/// Serves the queue of the server at `url` until the server ends.
async fn work(url: String) -> anyhow::Result<()> {
    let client = Client::new([url], Config { token: Some(Token::new(GOOD)), ..Config::default() })?;
    let mut worker = client.worker(unread::QUEUE, 2).await?;
    while let Some(work) = worker.next().await? {
        let scores = Float32Array::from_iter_values((0..work.batch.rows()).map(|row| row as f32));
        work.reply(&RecordBatch::try_from_iter([("score", Arc::new(scores) as _)])?)?;
    }
    Ok(())
}

/// Starts an attack on `server` in a process of the lowest priority, and waits until it has begun.
fn start_attack(kind: Kind, server: &Server) -> anyhow::Result<Process> {
    let mut command = Command::new("nice");
    command.args(["-n", "19"]).arg(std::env::current_exe()?).arg("attack");
    let name = kind.to_possible_value().context("every kind has a name")?;
    command.args(["--kind", name.get_name(), "--token", BAD, "--dataset", "users"]);
    command.args(["--grpc", server.url().trim_start_matches("http://"), "--http", server.http_address()]);
    Process::server("attack", command)
}
