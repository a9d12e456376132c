//! `forebay-load peers`: compares Forebay with other systems on one scenario, in alternating runs.
//!
//! - [`system`]: the systems, and how each is started and driven.
//! - [`copy_only`], [`stock`]: servers in Rust.
//! - [`results`], [`report`]: measurements, medians, ratios, failures.

pub(crate) mod copy_only;
mod report;
mod results;
pub(crate) mod stock;
mod system;

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, ValueEnum};

use crate::{interference::Patience, logical, output::Output, python::Python, share, source::Source};
use report::Report;
use results::{SystemResults, Turn};
use system::{Comparison, System};

/// Flags of `forebay-load peers`.
#[derive(Debug, Args)]
pub(crate) struct Peers {
    #[command(flatten)]
    source: Source,
    /// Runs of each system. Each starts new processes, with one epoch of warm-up.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Names of the systems to compare, separated by commas [default: all that support the scenario].
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAMES")]
    only: Vec<System>,
    /// Also find the largest share of a simulated accelerator that each system keeps 70% busy.
    #[arg(long)]
    find_share: bool,
    /// Python with pyarrow [default: FOREBAY_PYTHON, or the environment of the acceptance tests, or a new one].
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,
    #[command(flatten)]
    patience: Patience,
    #[command(flatten)]
    output: Output,
}

impl Peers {
    /// Runs all systems and reports.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let (scenario, data) = self.source.load()?;
        let mut systems = self.only;
        if systems.is_empty() {
            systems.extend(System::value_variants().iter().filter(|system| system.supports(&scenario)));
        }
        let python = if systems.iter().any(|system| system.requires_python()) {
            Python::prepare(self.python)
        } else {
            Err(anyhow::anyhow!("no system requires Python"))
        };
        let comparison = Comparison::new(&self.source, &scenario, &data, python)?;
        let results = systems.iter().map(|system| SystemResults::new(system.name(), system.about()));
        let mut results: Vec<_> = results.collect();
        for round in 1..=self.rounds {
            // Each round has another order, so that no system always follows the same one.
            let mut order: Vec<usize> = (0..systems.len()).collect();
            fastrand::Rng::with_seed(round as u64).shuffle(&mut order);
            for at in order {
                let (system, results) = (systems[at], &mut results[at]);
                eprintln!("round {round} of {}: {}", self.rounds, system.name());
                let one = || turn(&comparison, system, round);
                match self.patience.undisturbed(|turn: &Turn| turn.foreign_share, one) {
                    Ok(turn) => results.turns.push(turn),
                    Err(error) => results.failures.push(format!("{error:#}")),
                }
            }
        }
        if self.find_share {
            for (system, results) in systems.iter().zip(&mut results) {
                eprintln!("share: {}", system.name());
                match find_share(&comparison, *system, results, &self.patience) {
                    Ok(found) => results.share = Some(found),
                    Err(error) => results.failures.push(format!("share: {error:#}")),
                }
            }
        }
        let report = Report::new(&scenario, &data, results)?;
        print!("{report}");
        self.output.write("peers", &report.machine, &report, &report.chart())?;
        let failed: Vec<&str> = report.failed().collect();
        anyhow::ensure!(failed.is_empty(), "failed: {}; remove them with --only", failed.join(", "));
        Ok(())
    }
}

/// Starts a system, warms it up, and measures one run.
fn turn(comparison: &Comparison<'_>, system: System, round: usize) -> anyhow::Result<Turn> {
    let Comparison { scenario, data, .. } = comparison;
    let turn = Turn { round, ..comparison.start(system)?.measure(scenario.epochs, None)? };
    let result = &turn.result;
    let expected = data.sizes.rows * scenario.epochs;
    anyhow::ensure!(result.rows == expected, "{} rows were received, expected {expected}", result.rows);
    logical::check_bytes(result.bytes, data.sizes.epoch_bytes(&scenario.request)? * scenario.epochs)?;
    Ok(turn)
}

/// Searches for the largest share, starting at the speed of the system without an accelerator.
fn find_share(
    comparison: &Comparison<'_>,
    system: System,
    results: &SystemResults,
    patience: &Patience,
) -> anyhow::Result<share::Found> {
    let seconds_per_batch = results.spread(|turn| turn.result.seconds / turn.result.batches as f64);
    let seconds_per_batch = seconds_per_batch.context("the system has no successful run")?.median;
    let mut running = comparison.start(system)?;
    let scenario = comparison.scenario;
    share::search(share::guess(scenario.compute_ms / 1e3, seconds_per_batch), |share| {
        let one = || running.measure(scenario.epochs, Some(scenario.compute_ms / share));
        let turn = patience.undisturbed(|turn: &Turn| turn.foreign_share, one)?;
        turn.result.au.context("the consumer reported no utilization")
    })
}
