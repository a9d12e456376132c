//! `forebay-load peers`: Forebay and what its users would pick instead, taking turns on one scenario.
//!
//! - [`contestant`]: who they are, and how each is started and asked.
//! - [`prepared`], [`stock`]: servers in Rust; [`python`]: the environment of those in Python.
//! - [`report`]: medians, ratios, failures.

mod contestant;
pub(crate) mod prepared;
pub(crate) mod python;
mod report;
pub(crate) mod stock;

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;

use crate::{
    Source,
    ask::Passed,
    data::Prepared,
    foreign::{self, Clock, Patience},
    logical,
    output::{Json, Plot},
    scenario::Scenario,
    share,
    stats::Spread,
};
use contestant::{Contest, Contestant, Running};
use python::Python;
use report::Report;

/// Flags of `forebay-load peers`.
#[derive(Debug, Args)]
pub(crate) struct Peers {
    #[command(flatten)]
    source: Source,
    /// Turns of each contestant. In each it starts anew, warms up for an epoch and runs once.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Only these contestants, by name, separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    only: Vec<String>,
    /// Also find the largest share of an emulated accelerator that each keeps busy for 70 % of its time.
    #[arg(long)]
    find_share: bool,
    /// Python with pyarrow; else FOREBAY_PYTHON, the acceptance tests' environment, or one made for it.
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,
    #[command(flatten)]
    patience: Patience,
    #[command(flatten)]
    json: Json,
    #[command(flatten)]
    plot: Plot,
}

/// One turn of one contestant.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Turn {
    passed: Passed,
    server_cpu_seconds: f64,
    client_cpu_seconds: f64,
    server_peak_rss_bytes: u64,
    client_peak_rss_bytes: u64,
    /// The share of the machine that other processes had.
    others: f64,
}

/// What a contestant did in all rounds.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Standing {
    name: &'static str,
    about: &'static str,
    turns: Vec<Turn>,
    failures: Vec<String>,
    share: Option<share::Found>,
}

impl Turn {
    fn is_calm(&self) -> bool {
        self.others <= foreign::TROUBLING
    }
}

impl Standing {
    fn new(contestant: Contestant) -> Self {
        Self {
            name: contestant.name(),
            about: contestant.about(),
            turns: Vec::new(),
            failures: Vec::new(),
            share: None,
        }
    }

    /// Over the turns that others left alone; over all of them if there was none.
    fn spread(&self, value: impl Fn(&Turn) -> f64) -> Option<Spread> {
        let is_counted = |turn: &&Turn| turn.is_calm() || self.calm() == 0;
        Spread::of(self.turns.iter().filter(is_counted).map(value))
    }

    /// How many turns others left alone.
    fn calm(&self) -> usize {
        self.turns.iter().filter(|turn| turn.is_calm()).count()
    }
}

impl Peers {
    /// Runs all rounds and reports.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let (scenario, data) = self.source.prepared()?;
        let contestants = self.contestants(&scenario)?;
        let python = if contestants.iter().any(|contestant| contestant.needs_python()) {
            Python::prepare(self.python.clone())
        } else {
            Err(anyhow::anyhow!("no contestant needs it"))
        };
        let contest = Contest::new(&self.source, &scenario, &data, python)?;
        let mut standings: Vec<Standing> = contestants.iter().copied().map(Standing::new).collect();
        for round in 1..=self.rounds {
            for (contestant, standing) in contestants.iter().zip(&mut standings) {
                eprintln!("round {round} of {}: {}", self.rounds, contestant.name());
                let one = || turn(&contest, *contestant, &scenario, &data);
                match self.patience.undisturbed(|turn: &Turn| turn.others, one) {
                    Ok(turn) => standing.turns.push(turn),
                    Err(error) => standing.failures.push(format!("{error:#}")),
                }
            }
        }
        if self.find_share {
            for (contestant, standing) in contestants.iter().zip(&mut standings) {
                eprintln!("share: {}", contestant.name());
                match find_share(&contest, *contestant, &scenario, standing, &self.patience) {
                    Ok(found) => standing.share = Some(found),
                    Err(error) => standing.failures.push(format!("share: {error:#}")),
                }
            }
        }
        let report = Report::new(&scenario, &data, standings)?;
        print!("{report}");
        self.json.write(&report)?;
        self.plot.write(|| report.plot())
    }

    fn contestants(&self, scenario: &Scenario) -> anyhow::Result<Vec<Contestant>> {
        if self.only.is_empty() {
            let suits = |contestant: &Contestant| contestant.suits(scenario);
            return Ok(Contestant::ALL.into_iter().filter(suits).collect());
        }
        let named = |name: &String| match Contestant::ALL.iter().find(|contestant| contestant.name() == name)
        {
            Some(contestant) => Ok(*contestant),
            None => {
                let all: Vec<&str> = Contestant::ALL.iter().map(|contestant| contestant.name()).collect();
                bail!("--only {name}: expected some of {}", all.join(", "))
            }
        };
        self.only.iter().map(named).collect()
    }
}

/// Starts a contestant, warms it up and measures one run.
fn turn(
    contest: &Contest<'_>,
    contestant: Contestant,
    scenario: &Scenario,
    data: &Prepared,
) -> anyhow::Result<Turn> {
    let mut running = contest.start(contestant)?;
    running.ask(0, 1, None)?;
    let turn = measured(&mut running, &mut 1, scenario.epochs, None)?;
    let passed = &turn.passed;
    let expected = data.sizes.rows * scenario.epochs;
    anyhow::ensure!(passed.rows == expected, "{} rows were received, expected {expected}", passed.rows);
    logical::check_bytes(passed.bytes, data.sizes.epoch_bytes(&scenario.request)? * scenario.epochs)?;
    Ok(turn)
}

/// Streams `epochs` epochs from `epoch` on, which moves with them, and what that took.
fn measured(
    running: &mut Running<'_>,
    epoch: &mut u64,
    epochs: u64,
    compute_ms: Option<f64>,
) -> anyhow::Result<Turn> {
    let before = running.usage()?;
    let clock = Clock::now()?;
    let passed = running.ask(*epoch, epochs, compute_ms)?;
    *epoch += epochs;
    let after = running.usage()?;
    let server_cpu_seconds = after.server.cpu_seconds - before.server.cpu_seconds;
    let client_cpu_seconds = after.client.cpu_seconds - before.client.cpu_seconds;
    Ok(Turn {
        passed,
        server_cpu_seconds,
        client_cpu_seconds,
        server_peak_rss_bytes: after.server.peak_rss_bytes,
        client_peak_rss_bytes: after.client.peak_rss_bytes,
        others: clock.others_since(server_cpu_seconds + client_cpu_seconds)?,
    })
}

/// Searches from the contestant's own speed on.
fn find_share(
    contest: &Contest<'_>,
    contestant: Contestant,
    scenario: &Scenario,
    standing: &Standing,
    patience: &Patience,
) -> anyhow::Result<share::Found> {
    let seconds_a_batch = standing.spread(|turn| turn.passed.seconds / turn.passed.batches as f64);
    let seconds_a_batch = seconds_a_batch.context("it has no run to start from")?.median;
    let mut running = contest.start(contestant)?;
    running.ask(0, 1, None)?;
    let mut epoch = 1;
    share::search(share::guess(scenario.compute_ms / 1e3, seconds_a_batch), |share| {
        share::repeated(&mut || {
            let compute_ms = scenario.compute_ms / share;
            let one = || measured(&mut running, &mut epoch, scenario.epochs, Some(compute_ms));
            let turn = patience.undisturbed(|turn: &Turn| turn.others, one)?;
            turn.passed.au.context("the consumer reported no utilization")
        })
    })
}
