//! `forebay-load hostile`: a trainer, a caller of lookups and probes, while others attack the server.
//!
//! An attack costs CPU time on the same machine, whatever the server does. Each attack is therefore measured twice: on the
//! server of the good clients, and on another server. The attackers have the lowest CPU priority.

mod attack;
mod calls;

use std::{
    net::SocketAddr,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use forebay_client::{Client, Config, Token};
use forebay_proto::v1;
use ring::digest::{SHA256, digest};
use serde::Serialize;
use serde_json::json;
use tokio::runtime::Runtime;
use xxhash_rust::xxh3::xxh3_64;

pub(crate) use attack::Attack;
use attack::Kind;
use calls::{get, keys};

use crate::{
    chart::{Bar, Chart},
    machine::Machine,
    output::Output,
    process::Process,
    scenario::Scenario,
    server::{Server, Transport},
    source::Source,
    stats::median,
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
    #[arg(long, default_value = "5s", value_name = "TIME", value_parser = humantime::parse_duration)]
    time: Duration,
    #[command(flatten)]
    output: Output,
}

/// Time between the start of an attack and the measurement.
const LEAD: Duration = Duration::from_secs(2);
/// Keys per lookup of the good caller.
const KEYS: i64 = 100;
/// Time between two probes, each on a connection of its own.
const PROBE_INTERVAL: Duration = Duration::from_millis(50);
/// Time limit of a probe. A failed probe counts as one that took this long.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// Largest acceptable ratio of latencies and rates.
const MAX_RATIO: f64 = 2.0;
const GOOD: &str = "good";
const BAD: &str = "attacker";

/// Results of the good clients.
#[derive(Debug, Clone, Copy, Serialize)]
struct Measured {
    rows_per_second: f64,
    lookup_p99_seconds: f64,
    probe_p99_seconds: f64,
}

/// Measurements of one attack.
#[derive(Debug, Serialize)]
struct Attacked {
    kind: Kind,
    /// Results while the attack is on another server.
    control: Vec<Measured>,
    /// Results while the attack is on the server of the good clients.
    here: Vec<Measured>,
    /// Peak of the server's resident memory so far, in bytes.
    peak_rss_bytes: u64,
}

impl Attacked {
    /// Medians of a figure, as (attack on another server, attack on this server).
    fn medians(&self, figure: fn(&Measured) -> f64) -> (f64, f64) {
        (median(self.control.iter().map(figure)), median(self.here.iter().map(figure)))
    }

    /// Ratios of an attack on this server to one on another server: rate of rows, p99 of lookups and of probes. Above 1 is worse.
    fn ratios(&self) -> [f64; 3] {
        let (control, here) = self.medians(|measured| measured.rows_per_second);
        let slower = |figure| {
            let (control, here) = self.medians(figure);
            here / control
        };
        [
            control / here,
            slower(|measured| measured.lookup_p99_seconds),
            slower(|measured| measured.probe_p99_seconds),
        ]
    }
}

impl Hostile {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let (scenario, data) = Source::built_in("users").load()?;
        let folder = tempfile::tempdir()?;
        let tokens = folder.path().join("tokens.toml");
        let token = |name: &str| {
            let digest = hex::encode(digest(&SHA256, name.as_bytes()));
            format!("[{name}]\nsha256 = \"{digest}\"\ndatasets = [\"*\"]\n")
        };
        std::fs::write(&tokens, token(GOOD) + &token(BAD))?;
        let path = data.path.display().to_string();
        let tokens = tokens.display().to_string();
        let flags = [
            "--online",
            "users=id",
            "--lookup-memory",
            "512MiB",
            "--cache-memory",
            "1GiB",
            "--tokens",
            &tokens,
        ];
        let start = || Server::start_with(&scenario.name, &path, Transport::Tcp, &flags, &[]);
        let (server, other) = (start()?, start()?);
        let runtime = Runtime::new()?;
        for server in [&server, &other] {
            server.ready()?;
        }
        runtime.block_on(good(&server, &scenario, LEAD))?;
        let before = server.usage()?.peak_rss_bytes;
        let kinds = if self.only.is_empty() { Kind::value_variants() } else { &self.only };
        let mut attacks = Vec::new();
        for kind in kinds {
            let mut attacked =
                Attacked { kind: *kind, control: Vec::new(), here: Vec::new(), peak_rss_bytes: 0 };
            for round in 1..=self.rounds {
                eprintln!("{kind:?}: round {round} of {}", self.rounds);
                for (target, results) in [(&other, &mut attacked.control), (&server, &mut attacked.here)] {
                    let attacker = start_attack(*kind, target)?;
                    std::thread::sleep(LEAD);
                    results.push(runtime.block_on(good(&server, &scenario, self.time))?);
                    drop(attacker);
                }
            }
            attacked.peak_rss_bytes = server.usage()?.peak_rss_bytes;
            attacks.push(attacked);
        }
        self.report(&attacks, before)
    }

    fn report(&self, attacks: &[Attacked], before: u64) -> anyhow::Result<()> {
        let machine = Machine::this();
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        println!(
            "{machine}\n{} measurements of {:?} each; medians; ratios to the same attack on another server",
            self.rounds, self.time
        );
        println!("peak RSS before the first attack: {:.0} MiB\n", mib(before));
        println!(
            "{:<16} {:>14} {:>7} {:>16} {:>7} {:>15} {:>7} {:>14}",
            "attack",
            "M rows/s",
            "ratio",
            "lookup p99, ms",
            "ratio",
            "probe p99, ms",
            "ratio",
            "peak RSS, MiB"
        );
        for attacked in attacks {
            let [rate, lookup, probe] = attacked.ratios();
            let name = attacked.kind.to_possible_value().map(|value| value.get_name().to_owned());
            println!(
                "{:<16} {:>14.2} {rate:>7.2} {:>16.2} {lookup:>7.2} {:>15.2} {probe:>7.2} {:>14.0}",
                name.unwrap_or_default(),
                attacked.medians(|measured| measured.rows_per_second).1 / 1e6,
                attacked.medians(|measured| measured.lookup_p99_seconds).1 * 1e3,
                attacked.medians(|measured| measured.probe_p99_seconds).1 * 1e3,
                mib(attacked.peak_rss_bytes),
            );
        }
        let bars = attacks.iter().map(|attacked| {
            let ratios = attacked.ratios();
            Bar::of(format!("{:?}", attacked.kind), [ratios.into_iter().fold(0.0, f64::max)], true)
        });
        let chart = Chart::bars("Good clients during attacks", &machine, "worst ratio", bars);
        let measurements = json!({ "attacks": attacks, "peak_rss_before": before });
        self.output.write("hostile", &machine, &measurements, &chart)?;
        let worst = attacks.iter().flat_map(Attacked::ratios).fold(0.0, f64::max);
        ensure!(worst <= MAX_RATIO, "a ratio is {worst:.2}; expected at most {MAX_RATIO}");
        Ok(())
    }
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

/// Runs the good clients for `time`.
async fn good(server: &Server, scenario: &Scenario, time: Duration) -> anyhow::Result<Measured> {
    let config = Config { token: Some(Token::new(GOOD)), ..Config::default() };
    let client = Client::new([server.url()], config)?;
    let (rows, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let train = scenario.train(0, 1_000_000);
    let training = tokio::spawn(train_until(client.clone(), train, Arc::clone(&rows), Arc::clone(&ended)));
    let looking = tokio::spawn(look_up_until(client, Arc::clone(&ended)));
    let probing = tokio::spawn(probe_until(server.http_address().parse()?, Arc::clone(&ended)));
    let (begin, first) = (Instant::now(), rows.load(Ordering::Relaxed));
    tokio::time::sleep(time).await;
    let received = rows.load(Ordering::Relaxed) - first;
    let rows_per_second = received as f64 / begin.elapsed().as_secs_f64();
    ended.store(true, Ordering::Relaxed);
    training.await??;
    Ok(Measured {
        rows_per_second,
        lookup_p99_seconds: p99(looking.await??),
        probe_p99_seconds: p99(probing.await?),
    })
}

async fn train_until(
    client: Client,
    train: v1::Train,
    rows: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
) -> anyhow::Result<()> {
    let mut training = client.train(&train).await?;
    while !ended.load(Ordering::Relaxed)
        && let Some(batch) = training.next().await
    {
        rows.fetch_add(batch?.rows(), Ordering::Relaxed);
    }
    Ok(())
}

async fn look_up_until(client: Client, ended: Arc<AtomicBool>) -> anyhow::Result<Vec<f64>> {
    let lookup = v1::Lookup { dataset: "users".into(), ..v1::Lookup::default() };
    let lookups = client.lookup(&lookup).await?;
    let mut latencies = Vec::new();
    for turn in 0.. {
        if ended.load(Ordering::Relaxed) {
            break;
        }
        let first = (xxh3_64(&u64::to_le_bytes(turn)) % 900_000) as i64;
        let begin = Instant::now();
        lookups.get(&keys(first..first + KEYS)?).await?;
        latencies.push(begin.elapsed().as_secs_f64());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(latencies)
}

async fn probe_until(address: SocketAddr, ended: Arc<AtomicBool>) -> Vec<f64> {
    let mut latencies = Vec::new();
    while !ended.load(Ordering::Relaxed) {
        let begin = Instant::now();
        let answer = tokio::time::timeout(PROBE_TIMEOUT, get(address, "/livez", None)).await;
        let is_alive = matches!(answer, Ok(Ok(200)));
        latencies.push(if is_alive { begin.elapsed() } else { PROBE_TIMEOUT }.as_secs_f64());
        tokio::time::sleep(PROBE_INTERVAL).await;
    }
    latencies
}

fn p99(mut latencies: Vec<f64>) -> f64 {
    latencies.sort_by(f64::total_cmp);
    latencies.get(latencies.len() * 99 / 100).copied().unwrap_or(f64::NAN)
}
