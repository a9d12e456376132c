//! `forebay-load train`: ranks that read from one server.

mod report;
mod run;

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use clap::Args;
use forebay_client::{Client, Config};
use forebay_proto::v1;
use tokio::runtime::Runtime;

use crate::{
    data::Dataset,
    interference::{Clock, Patience},
    logical,
    output::Output,
    receive::receive_ranks,
    scenario::Scenario,
    server::{self, Server, Transport},
    share,
    source::Source,
    stats::Spread,
    usage::Usage,
};
use report::Report;
use run::{Conditions, Run};

/// Flags of `forebay-load train`.
#[derive(Debug, Args)]
pub(crate) struct Train {
    #[command(flatten)]
    source: Source,
    /// URL of a running server with the dataset of the scenario under its name [default: starts a server].
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// Transport of a server that is started by this command.
    #[arg(long, value_enum, default_value = "tcp", conflicts_with = "server")]
    transport: Transport,
    /// Ranks that read concurrently, each on its own connection.
    #[arg(long, default_value_t = 1)]
    ranks: u64,
    /// Epochs per run [default: from the scenario].
    #[arg(long)]
    epochs: Option<u64>,
    /// Measured runs, after one epoch of warm-up.
    #[arg(long, default_value_t = 3)]
    runs: u64,
    /// Share of a simulated accelerator per rank; above 1 for several. Without it, batches are dropped on arrival.
    #[arg(long)]
    share: Option<f64>,
    /// Find the largest share that is busy for at least 70% of the time.
    #[arg(long, conflicts_with = "share")]
    find_share: bool,
    /// Settings of the client in TOML (`Config` of forebay-client), such as `stream_window_bytes = 1048576`.
    #[arg(long, value_name = "FILE")]
    client: Option<PathBuf>,
    /// Request a content hash for each batch.
    #[arg(long)]
    hash: bool,
    #[command(flatten)]
    patience: Patience,
    #[command(flatten)]
    output: Output,
}

impl Train {
    /// Measures all runs and reports.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        ensure!(self.ranks > 0 && self.runs > 0, "--ranks and --runs: expected at least 1");
        ensure!(self.share.is_none_or(|share| share > 0.0), "--share: expected more than 0");
        let (scenario, data) = self.source.load()?;
        let mut trainer = Trainer::new(&self, &scenario, &data)?;
        // Warm-up.
        trainer.one_run(1, None)?;
        let compute = self.share.map(|share| scenario.compute(share));
        let mut runs = Vec::new();
        for _ in 0..self.runs {
            runs.push(
                self.patience.undisturbed(|run: &Run| run.foreign_share, || trainer.next_run(compute))?,
            );
        }
        let found = if self.find_share { Some(trainer.find_share(&runs)?) } else { None };
        let conditions = Conditions {
            ranks: self.ranks,
            share: self.share,
            hash: self.hash,
            client: trainer.config.clone(),
            epoch_bytes: trainer.epoch_bytes,
            epochs: trainer.epochs,
        };
        let report = Report::new(conditions, &scenario, runs, found, trainer.peak_memory()?);
        print!("{report}");
        self.output.write("train", &report.machine, &report, &report.chart())
    }

    fn client_config(&self) -> anyhow::Result<Config> {
        let Some(file) = &self.client else { return Ok(Config::default()) };
        let text = std::fs::read_to_string(file).with_context(|| format!("can't read {}", file.display()))?;
        toml::from_str(&text).with_context(|| format!("--client {}", file.display()))
    }
}

/// The ranks, connected.
struct Trainer<'a> {
    flags: &'a Train,
    scenario: &'a Scenario,
    runtime: Runtime,
    server: Option<Server>,
    config: Config,
    clients: Vec<Client>,
    /// Epochs per run.
    epochs: u64,
    /// The next unread epoch.
    epoch: u64,
    epoch_rows: u64,
    epoch_bytes: u64,
}

impl<'a> Trainer<'a> {
    fn new(flags: &'a Train, scenario: &'a Scenario, data: &Dataset) -> anyhow::Result<Self> {
        let (runtime, config) = (Runtime::new()?, flags.client_config()?);
        let (url, server) = match &flags.server {
            Some(url) => (url.clone(), None),
            None => {
                let server = Server::start(&scenario.name, &data.path, flags.transport)?;
                (server.url().to_owned(), Some(server))
            }
        };
        let rows = runtime.block_on(server::opened(&url, &scenario.train(0, 1)))?.rows;
        ensure!(rows == data.sizes.rows, "the server has {rows} rows, the data {}", data.sizes.rows);
        let clients = (0..flags.ranks).map(|_| Client::new([&url], config.clone()));
        let clients = clients.collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            flags,
            scenario,
            runtime,
            server,
            config,
            clients,
            epochs: flags.epochs.unwrap_or(scenario.epochs).max(1),
            epoch: 0,
            epoch_rows: data.sizes.rows,
            epoch_bytes: data.sizes.epoch_bytes(&scenario.request)?,
        })
    }

    /// Measures a run of the next epochs with all ranks.
    fn next_run(&mut self, compute: Option<Duration>) -> anyhow::Result<Run> {
        self.one_run(self.epochs, compute)
    }

    fn one_run(&mut self, epochs: u64, compute: Option<Duration>) -> anyhow::Result<Run> {
        let train = v1::Train {
            world_size: Some(self.flags.ranks),
            content_hash: Some(self.flags.hash),
            ..self.scenario.train(self.epoch, epochs)
        };
        let usage = || self.server.as_ref().map(Server::usage).transpose();
        let (server_before, client_before) = (usage()?, Usage::own()?);
        let clock = Clock::now()?;
        let started = Instant::now();
        let ranks = receive_ranks(self.runtime.handle(), &self.clients, &train, compute, || Ok(()))?;
        let seconds = started.elapsed().as_secs_f64();
        let (server_after, client_after) = (usage()?, Usage::own()?);
        let server_cpu_seconds =
            server_after.zip(server_before).map(|(after, before)| after.cpu_seconds - before.cpu_seconds);
        let client_cpu_seconds = client_after.cpu_seconds - client_before.cpu_seconds;
        let foreign_share =
            clock.foreign_share_since(server_cpu_seconds.unwrap_or(0.0) + client_cpu_seconds)?;
        let rows: u64 = ranks.iter().map(|rank| rank.rows).sum();
        let expected = self.epoch_rows * epochs;
        ensure!(rows == expected, "received {rows} rows, expected {expected}");
        logical::check_bytes(ranks.iter().map(|rank| rank.bytes).sum(), self.epoch_bytes * epochs)?;
        self.epoch += epochs;
        let mut firsts: Vec<f64> = ranks.iter().map(|rank| rank.first_batch_seconds).collect();
        firsts.sort_by(f64::total_cmp);
        let used: Option<Vec<f64>> = ranks.iter().map(|rank| rank.au).collect();
        Ok(Run {
            rows,
            batches: ranks.iter().map(|rank| rank.batches).sum(),
            seconds,
            first_batch_seconds: firsts[firsts.len() / 2],
            longest_wait_seconds: longest(ranks.iter().map(|rank| rank.wait_seconds)),
            longest_epoch_wait_seconds: longest(ranks.iter().map(|rank| rank.epoch_wait_seconds)),
            au: used.map(|used| used.iter().sum::<f64>() / used.len() as f64),
            server_cpu_seconds,
            client_cpu_seconds,
            foreign_share,
        })
    }

    /// Searches for the largest share, starting at the speed of `runs`, which had no accelerator.
    fn find_share(&mut self, runs: &[Run]) -> anyhow::Result<share::Found> {
        let delivery = |run: &Run| run.seconds * self.flags.ranks as f64 / run.batches as f64;
        let fastest = runs.iter().map(delivery).fold(f64::INFINITY, f64::min);
        let guess = share::guess(self.scenario.compute_ms / 1e3, fastest);
        let (patience, scenario) = (&self.flags.patience, self.scenario);
        share::search(guess, |share| {
            let one = || self.next_run(Some(scenario.compute(share)));
            let run = patience.undisturbed(|run: &Run| run.foreign_share, one)?;
            run.au.context("the utilization of a rank requires two batches: use fewer ranks or more epochs")
        })
    }

    /// Returns the peak memory of the server, if this command started it, and of this process.
    fn peak_memory(&self) -> anyhow::Result<(Option<u64>, u64)> {
        let server = self.server.as_ref().map(Server::usage).transpose()?;
        Ok((server.map(|usage| usage.peak_rss_bytes), Usage::own()?.peak_rss_bytes))
    }
}

fn longest(waits: impl Iterator<Item = Option<Spread>>) -> Option<f64> {
    waits.flatten().map(|waits| waits.max).max_by(f64::total_cmp)
}
