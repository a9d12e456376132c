//! `forebay-load tier`: rates of several servers with limited links, and the waits of ranks when a server dies or drains.

mod link;
mod servers;

use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::Args;
use forebay_client::{Client, Config};
use forebay_proto::v1;
use serde::Serialize;
use serde_json::json;
use tokio::runtime::Runtime;

use crate::{
    chart::{Bar, Chart},
    machine::Machine,
    output::Output,
    receive::receive_ranks,
    scenario::Scenario,
    source::Source,
    stats::{Spread, median},
};
use servers::Servers;

/// Flags of `forebay-load tier`.
#[derive(Debug, Args)]
pub(crate) struct Tier {
    #[command(flatten)]
    source: Source,
    /// Numbers of servers to compare.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4")]
    servers: Vec<usize>,
    /// Ranks that read concurrently, each with its own client.
    #[arg(long, default_value_t = 8)]
    ranks: u64,
    /// Partitions of the order. The rates are also measured without partitions.
    #[arg(long, default_value_t = 8)]
    partitions: u64,
    /// Rate of the link of each server in megabytes per second.
    #[arg(long, default_value_t = 50)]
    link: u64,
    /// Measured epochs per number of servers, after one that fills the caches.
    #[arg(long, default_value_t = 3)]
    runs: u64,
    /// Number of times that one of the servers is killed in the middle of an epoch, and that one is stopped with SIGTERM. These
    /// epochs use the largest number of servers.
    #[arg(long, default_value_t = 3)]
    stops: u64,
    #[command(flatten)]
    output: Output,
}

/// Rates of one number of servers.
#[derive(Debug, Serialize)]
struct Rate {
    servers: usize,
    partitions: u64,
    /// Megabytes of batches per second, of each epoch.
    megabytes_per_second: Vec<f64>,
    /// Rows decoded by all servers in the first epoch, relative to those of the dataset.
    decoded: f64,
}

/// Waits of one number of ranks while a server stops.
#[derive(Debug, Serialize)]
struct Stop {
    how: How,
    /// Longest wait of any rank for a batch, in seconds.
    longest_wait_seconds: f64,
}

/// Way in which a server stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum How {
    /// No server stops.
    Never,
    /// SIGKILL.
    Killed,
    /// SIGTERM.
    Drained,
}

const WAYS: [(How, &str); 3] =
    [(How::Never, "no server stops"), (How::Killed, "a server is killed"), (How::Drained, "a server drains")];

impl Tier {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        ensure!(self.ranks > 0 && self.runs > 0, "--ranks and --runs: expected at least 1");
        ensure!(!self.servers.is_empty() && !self.servers.contains(&0), "--servers: expected numbers from 1");
        let (scenario, data) = self.source.load()?;
        let url = data.path.display().to_string();
        let epoch_bytes = data.sizes.epoch_bytes(&scenario.request)?;
        let runtime = Runtime::new()?;
        let start = |count| {
            runtime.block_on(Servers::start(&scenario.name, url.clone(), count, Some(self.link * 1_000_000)))
        };
        let mut rates = Vec::new();
        for &count in &self.servers {
            for partitions in [self.partitions, 1] {
                eprintln!("{count} servers, {partitions} partitions");
                let servers = start(count)?;
                let mut job = Job::new(&runtime, &scenario, &servers, self.ranks, partitions)?;
                job.epoch(1, || Ok(()))?;
                let decoded = servers.decoded_rows()?.iter().sum::<f64>() / data.sizes.rows as f64;
                let mut measured = Vec::new();
                for _ in 0..self.runs {
                    measured.push(epoch_bytes as f64 / 1e6 / job.epoch(1, || Ok(()))?.seconds);
                }
                rates.push(Rate { servers: count, partitions, megabytes_per_second: measured, decoded });
            }
        }
        let stops = match self.servers.iter().max() {
            Some(&count) if count > 1 && self.stops > 0 => self.stops(&runtime, &scenario, start(count)?)?,
            _ => Vec::new(),
        };
        self.report(&scenario, &rates, &stops)
    }

    /// Stops servers in the middle of an epoch, in turn.
    fn stops(
        &self,
        runtime: &Runtime,
        scenario: &Scenario,
        mut servers: Servers,
    ) -> anyhow::Result<Vec<Stop>> {
        let mut job = Job::new(runtime, scenario, &servers, self.ranks, self.partitions)?;
        let pause = Duration::from_secs_f64(job.epoch(1, || Ok(()))?.seconds / 2.0);
        let mut stops = Vec::new();
        for turn in 0..self.stops as usize {
            for (how, name) in WAYS {
                eprintln!("turn {} of {}: {name}", turn + 1, self.stops);
                let victim = turn % servers.urls().len();
                let run = job.epoch(2, || {
                    std::thread::sleep(pause);
                    match how {
                        How::Never => {}
                        How::Killed => servers.kill(victim),
                        How::Drained => servers.drain(victim)?,
                    }
                    Ok(())
                })?;
                stops.push(Stop { how, longest_wait_seconds: run.longest_wait_seconds });
                if how != How::Never {
                    runtime.block_on(servers.restart(victim))?;
                    job.epoch(1, || Ok(()))?;
                }
            }
        }
        Ok(stops)
    }

    fn report(&self, scenario: &Scenario, rates: &[Rate], stops: &[Stop]) -> anyhow::Result<()> {
        let machine = Machine::this();
        println!(
            "{}: {}\n{machine}\n{} ranks, links of {} MB/s, medians of {} warm epochs\n",
            scenario.name, scenario.about, self.ranks, self.link, self.runs
        );
        println!(
            "{:>8} {:>12} {:>10} {:>12} {:>22}",
            "servers", "partitions", "MB/s", "links", "decoded, first epoch"
        );
        for Rate { servers, partitions, megabytes_per_second, decoded } in rates {
            let rate = median(megabytes_per_second.iter().copied());
            let links = rate / self.link as f64;
            println!("{servers:>8} {partitions:>12} {rate:>10.1} {links:>12.2} {decoded:>21.2}x");
        }
        for (how, name) in WAYS {
            let waits = stops.iter().filter(|stop| stop.how == how).map(|stop| stop.longest_wait_seconds);
            if let Some(Spread { median, min, max }) = Spread::of(waits) {
                println!("{name}: longest wait {median:.2} s, {min:.2} to {max:.2}");
            }
        }
        let bars = rates.iter().map(|rate| {
            let label = format!("{} servers, {} partitions", rate.servers, rate.partitions);
            Bar::of(label, rate.megabytes_per_second.iter().copied(), rate.partitions > 1)
        });
        let title = format!("{} ranks, links of {} MB/s per server", self.ranks, self.link);
        let chart = Chart::bars(&title, &machine, "MB/s", bars);
        let measurements = json!({
            "ranks": self.ranks, "link_megabytes_per_second": self.link, "rates": rates, "stops": stops
        });
        self.output.write("tier", &machine, &measurements, &chart)
    }
}

/// The ranks of a job.
struct Job<'a> {
    runtime: &'a Runtime,
    scenario: &'a Scenario,
    clients: Vec<Client>,
    partitions: u64,
    /// The next unread epoch.
    epoch: u64,
}

/// Measurements of all ranks over some epochs.
struct Run {
    /// Time until the last rank finished.
    seconds: f64,
    /// Longest wait of any rank for a batch other than its first.
    longest_wait_seconds: f64,
}

impl<'a> Job<'a> {
    fn new(
        runtime: &'a Runtime,
        scenario: &'a Scenario,
        servers: &Servers,
        ranks: u64,
        partitions: u64,
    ) -> anyhow::Result<Self> {
        let clients = (0..ranks).map(|_| Client::new(servers.urls(), Config::default()));
        Ok(Self { runtime, scenario, clients: clients.collect::<Result<_, _>>()?, partitions, epoch: 0 })
    }

    /// Reads the next `epochs` with all ranks, and runs `concurrently` at the same time.
    fn epoch(
        &mut self,
        epochs: u64,
        concurrently: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<Run> {
        let shuffle = v1::Shuffle {
            partitions: (self.partitions > 1).then_some(self.partitions),
            ..v1::Shuffle::default()
        };
        let train = v1::Train {
            world_size: Some(self.clients.len() as u64),
            shuffle: Some(shuffle),
            ..self.scenario.train(self.epoch, epochs)
        };
        self.epoch += epochs;
        let started = Instant::now();
        let ranks = receive_ranks(self.runtime.handle(), &self.clients, &train, None, concurrently)?;
        let waits = ranks.iter().flat_map(|rank| [rank.wait_seconds, rank.epoch_wait_seconds]);
        let longest_wait_seconds = waits.flatten().map(|waits| waits.max).fold(0.0, f64::max);
        Ok(Run { seconds: started.elapsed().as_secs_f64(), longest_wait_seconds })
    }
}
