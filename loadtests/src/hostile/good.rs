//! The good clients, and what they measure.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use forebay_client::{Client, Config, Token};
use forebay_proto::v1;
use serde::Serialize;
use xxhash_rust::xxh3::xxh3_64;

use super::calls::{get, keys};
use crate::{scenario::Scenario, server::Server};

/// Keys per lookup.
const KEYS: i64 = 100;
/// Time between two lookups.
const LOOKUP_INTERVAL: Duration = Duration::from_millis(2);
/// Time between two probes, each on a connection of its own.
const PROBE_INTERVAL: Duration = Duration::from_millis(20);
/// Time limit of a probe. A failed probe counts as one that took this long.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// Results of the good clients.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Measured {
    seconds: f64,
    rows: u64,
    /// Time for which the trainer waited for each batch.
    wait_seconds: Vec<f64>,
    lookup_seconds: Vec<f64>,
    probe_seconds: Vec<f64>,
}

impl Measured {
    /// Adds the samples of another measurement.
    pub(super) fn add(&mut self, other: Self) {
        self.seconds += other.seconds;
        self.rows += other.rows;
        self.wait_seconds.extend(other.wait_seconds);
        self.lookup_seconds.extend(other.lookup_seconds);
        self.probe_seconds.extend(other.probe_seconds);
    }

    pub(super) fn rows_per_second(&self) -> f64 {
        self.rows as f64 / self.seconds
    }

    pub(super) fn lookups_per_second(&self) -> f64 {
        self.lookup_seconds.len() as f64 / self.seconds
    }

    pub(super) fn wait_p99_seconds(&self) -> f64 {
        p99(&self.wait_seconds)
    }

    pub(super) fn lookup_p99_seconds(&self) -> f64 {
        p99(&self.lookup_seconds)
    }

    pub(super) fn probe_p99_seconds(&self) -> f64 {
        p99(&self.probe_seconds)
    }
}

/// Runs the good clients for `time`.
pub(super) async fn measure(
    server: &Server,
    scenario: &Scenario,
    token: &str,
    time: Duration,
) -> anyhow::Result<Measured> {
    let config = Config { token: Some(Token::new(token)), ..Config::default() };
    let client = Client::new([server.url()], config)?;
    let (rows, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let train = scenario.train(0, 1_000_000);
    let training = tokio::spawn(train_until(client.clone(), train, Arc::clone(&rows), Arc::clone(&ended)));
    let looking = tokio::spawn(look_up_until(client, Arc::clone(&ended)));
    let probing = tokio::spawn(probe_until(server.http_address().parse()?, Arc::clone(&ended)));
    let (begin, first) = (Instant::now(), rows.load(Ordering::Relaxed));
    tokio::time::sleep(time).await;
    let (seconds, rows) = (begin.elapsed().as_secs_f64(), rows.load(Ordering::Relaxed) - first);
    ended.store(true, Ordering::Relaxed);
    Ok(Measured {
        seconds,
        rows,
        wait_seconds: training.await??,
        lookup_seconds: looking.await??,
        probe_seconds: probing.await?,
    })
}

async fn train_until(
    client: Client,
    train: v1::Train,
    rows: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
) -> anyhow::Result<Vec<f64>> {
    let mut training = client.train(&train).await?;
    let mut waits = Vec::new();
    while !ended.load(Ordering::Relaxed) {
        let begin = Instant::now();
        let Some(batch) = training.next().await else { break };
        waits.push(begin.elapsed().as_secs_f64());
        rows.fetch_add(batch?.rows(), Ordering::Relaxed);
    }
    Ok(waits)
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
        tokio::time::sleep(LOOKUP_INTERVAL).await;
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

fn p99(latencies: &[f64]) -> f64 {
    let mut latencies = latencies.to_vec();
    latencies.sort_by(f64::total_cmp);
    latencies.get(latencies.len() * 99 / 100).copied().unwrap_or(f64::NAN)
}
