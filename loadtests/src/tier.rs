//! `forebay-load tier`: rates of several servers with limited links, and the waits of ranks when a server stops or joins.

mod changes;
mod job;
mod link;
mod servers;

use std::time::Duration;

use anyhow::ensure;
use clap::Args;
use forebay_client::Config;
use serde::Serialize;
use serde_json::json;
use tokio::runtime::Runtime;

use crate::{
    chart::{Bar, Chart},
    machine::Machine,
    output::Output,
    scenario::Scenario,
    source::Source,
    stats::{Spread, median},
};
use changes::{Join, Stop, WAYS, config, join_server, stop_servers};
use job::Job;
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
    /// Number of times that one of the servers is killed in the middle of an epoch, that one is stopped with SIGTERM, that the
    /// network drops everything from and to one, and that another server joins. These epochs use the largest number of servers.
    #[arg(long, default_value_t = 3)]
    stops: u64,
    #[command(flatten)]
    output: Output,
}

/// Interval at which ranks ask for their plans again while a server joins.
const REPLAN_INTERVAL: Duration = Duration::from_secs(1);

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
                let mut job =
                    Job::new(&runtime, &scenario, &servers, self.ranks, partitions, &Config::default())?;
                job.epoch(1, || Ok(()))?;
                let decoded = servers.decoded_rows()?.iter().sum::<f64>() / data.sizes.rows as f64;
                let mut measured = Vec::new();
                for _ in 0..self.runs {
                    measured.push(epoch_bytes as f64 / 1e6 / job.epoch(1, || Ok(()))?.seconds);
                }
                rates.push(Rate { servers: count, partitions, megabytes_per_second: measured, decoded });
            }
        }
        let (mut stops, mut joins) = (Vec::new(), Vec::new());
        if let Some(&count) = self.servers.iter().max()
            && count > 1
            && self.stops > 0
        {
            let job = |servers: &Servers, config: Config| {
                Job::new(&runtime, &scenario, servers, self.ranks, self.partitions, &config)
            };
            let servers = start(count)?;
            stops = stop_servers(&mut job(&servers, config())?, servers, self.stops)?;
            for turn in 0..self.stops {
                eprintln!("turn {} of {}: a server joins", turn + 1, self.stops);
                let servers = start(count)?;
                let config = Config { replan_interval: REPLAN_INTERVAL, ..config() };
                joins.push(join_server(&mut job(&servers, config)?, servers)?);
            }
        }
        self.report(&scenario, &rates, &stops, &joins)
    }

    fn report(
        &self,
        scenario: &Scenario,
        rates: &[Rate],
        stops: &[Stop],
        joins: &[Join],
    ) -> anyhow::Result<()> {
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
        if let Some(agreed) = Spread::of(stops.iter().filter_map(|stop| stop.agreed_after_seconds)) {
            println!(
                "the network of a server returns: all servers know each other after {:.2} s, {:.2} to {:.2}",
                agreed.median, agreed.min, agreed.max
            );
        }
        if let Some(waits) = Spread::of(joins.iter().map(|join| join.longest_wait_seconds))
            && let Some(Spread { median, min, max }) = Spread::of(joins.iter().map(|join| join.seconds))
        {
            println!(
                "a server joins: longest wait {:.2} s, {:.2} to {:.2}",
                waits.median, waits.min, waits.max
            );
            println!("its share of the streams has moved after {median:.2} s, {min:.2} to {max:.2}");
        }
        let bars = rates.iter().map(|rate| {
            let label = format!("{} servers, {} partitions", rate.servers, rate.partitions);
            Bar::of(label, rate.megabytes_per_second.iter().copied(), rate.partitions > 1)
        });
        let title = format!("{} ranks, links of {} MB/s per server", self.ranks, self.link);
        let chart = Chart::bars(&title, &machine, "MB/s", bars);
        let measurements = json!({
            "ranks": self.ranks, "link_megabytes_per_second": self.link, "rates": rates, "stops": stops,
            "joins": joins
        });
        self.output.write("tier", &machine, &measurements, &chart)
    }
}
