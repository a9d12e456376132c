//! The report of `forebay-load peers`.

use std::fmt::{self, Display};

use serde::Serialize;

use super::results::{SystemResults, Turn};
use crate::{
    chart::{Bar, Chart},
    data::Dataset,
    interference::MAX_FOREIGN_SHARE,
    machine::Machine,
    scenario::Scenario,
    stats::Spread,
};

/// Name of the system that ratios refer to.
const FOREBAY: &str = "forebay";

/// Heads of the columns of the report.
const HEAD: &str = "system                 M rows/s    MB/s         (range)  ratio first, ms  CPU s/M rows  peak RSS GiB   share others % quiet";

/// Measurements of all systems.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    #[serde(skip)]
    pub(super) machine: Machine,
    scenario: Scenario,
    epoch_rows: u64,
    epoch_bytes: u64,
    lines: Vec<Line>,
}

/// Medians and ranges of one system over its turns.
#[derive(Debug, Serialize)]
struct Line {
    rows_per_second: Option<Spread>,
    megabytes_per_second: Option<Spread>,
    /// Median ratio of the rate to that of [`FOREBAY`] in the same round, over the rounds in which both were undisturbed.
    ratio: Option<f64>,
    first_batch_seconds: Option<Spread>,
    server_cpu_seconds_per_million_rows: Option<Spread>,
    client_cpu_seconds_per_million_rows: Option<Spread>,
    server_peak_rss_bytes: Option<Spread>,
    client_peak_rss_bytes: Option<Spread>,
    /// Fraction of the machine's CPU time that other processes used.
    foreign_share: Option<Spread>,
    results: SystemResults,
}

impl Report {
    pub(super) fn new(
        scenario: &Scenario,
        data: &Dataset,
        results: Vec<SystemResults>,
    ) -> anyhow::Result<Self> {
        let epoch_bytes = data.sizes.epoch_bytes(&scenario.request)?;
        let bytes_per_row = epoch_bytes as f64 / data.sizes.rows.max(1) as f64;
        let ours = results.iter().find(|results| results.name == FOREBAY);
        let ours: Vec<(usize, f64)> = ours.map(undisturbed_rates).unwrap_or_default();
        let line = |results: SystemResults| {
            let millions = |turn: &Turn| turn.result.rows as f64 / 1e6;
            let rows_per_second = results.spread(rate);
            Line {
                rows_per_second,
                megabytes_per_second: results.spread(|turn| rate(turn) * bytes_per_row / 1e6),
                ratio: ratio(&undisturbed_rates(&results), &ours),
                first_batch_seconds: results.spread(|turn| turn.result.first_batch_seconds),
                server_cpu_seconds_per_million_rows: results
                    .spread(|turn| turn.server_cpu_seconds / millions(turn)),
                client_cpu_seconds_per_million_rows: results
                    .spread(|turn| turn.client_cpu_seconds / millions(turn)),
                server_peak_rss_bytes: results.spread(|turn| turn.server_peak_rss_bytes as f64),
                client_peak_rss_bytes: results.spread(|turn| turn.client_peak_rss_bytes as f64),
                foreign_share: results.spread(|turn| turn.foreign_share),
                results,
            }
        };
        Ok(Self {
            machine: Machine::this(),
            scenario: scenario.clone(),
            epoch_rows: data.sizes.rows,
            epoch_bytes,
            lines: results.into_iter().map(line).collect(),
        })
    }

    /// Returns a chart with the rate of each system.
    pub(super) fn chart(&self) -> Chart {
        let bar = |line: &Line| {
            let label = line.results.name.clone();
            let is_forebay = label.starts_with(FOREBAY);
            Some(Bar { label, value: line.megabytes_per_second?, is_forebay })
        };
        Chart::bars(&self.scenario.name, &self.machine, "MB/s", self.lines.iter().map(bar))
    }
}

impl Report {
    /// Names of the systems with a failed turn.
    pub(super) fn failed(&self) -> impl Iterator<Item = &str> {
        let failed = self.lines.iter().filter(|line| !line.results.failures.is_empty());
        failed.map(|line| &line.results.name[..])
    }
}

/// Rows per second.
fn rate(turn: &Turn) -> f64 {
    turn.result.rows as f64 / turn.result.seconds
}

/// Round and rate of each undisturbed turn.
fn undisturbed_rates(results: &SystemResults) -> Vec<(usize, f64)> {
    let undisturbed = results.turns.iter().filter(|turn| turn.is_undisturbed());
    undisturbed.map(|turn| (turn.round, rate(turn))).collect()
}

/// Median of the ratios of two systems' rates in the same rounds.
fn ratio(rates: &[(usize, f64)], ours: &[(usize, f64)]) -> Option<f64> {
    let in_round = |round| ours.iter().find(|(other, _)| *other == round).map(|(_, rate)| *rate);
    let ratios = rates.iter().filter_map(|(round, rate)| Some(rate / in_round(*round)?));
    Spread::of(ratios).map(|spread| spread.median)
}

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scenario = &self.scenario;
        writeln!(f, "{}: {}", scenario.name, scenario.about)?;
        writeln!(f, "{}", self.machine)?;
        writeln!(
            f,
            "{} rows, {:.0} bytes each, in batches of {}; {} epochs per run after one of warm-up; medians\n",
            self.epoch_rows,
            self.epoch_bytes as f64 / self.epoch_rows.max(1) as f64,
            scenario.batch_size,
            scenario.epochs
        )?;
        writeln!(f, "{HEAD}")?;
        for line in &self.lines {
            line.fmt(f)?;
        }
        for line in &self.lines {
            let mut failures = line.results.failures.clone();
            failures.dedup();
            for failure in failures {
                writeln!(f, "FAILED {}: {failure}", line.results.name)?;
            }
        }
        writeln!(f, "\nCPU and memory: server + client; shared memory counts once per process")?;
        writeln!(
            f,
            "quiet: turns in which other processes used at most {:.0}% of the CPU time. Only these turns count,",
            MAX_FOREIGN_SHARE * 100.0
        )?;
        writeln!(f, "unless there are none. ratio to forebay: median of rounds in which both were quiet.\n")?;
        for line in &self.lines {
            writeln!(f, "{:<21} {}", line.results.name, line.results.about)?;
        }
        Ok(())
    }
}

impl Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.results.name;
        let (Some(rows), Some(bytes)) = (self.rows_per_second, self.megabytes_per_second) else {
            return writeln!(f, "{name:<21} FAILED");
        };
        let median = |spread: Option<Spread>| spread.map_or(f64::NAN, |spread| spread.median);
        let gib = |spread: Option<Spread>| median(spread) / f64::from(1 << 30);
        let range = format!("({:.0}-{:.0})", bytes.min, bytes.max);
        let cpu = format!(
            "{:.2}+{:.2}",
            median(self.server_cpu_seconds_per_million_rows),
            median(self.client_cpu_seconds_per_million_rows)
        );
        let memory = format!("{:.2}+{:.2}", gib(self.server_peak_rss_bytes), gib(self.client_peak_rss_bytes));
        let quiet = format!("{}/{}", self.results.undisturbed_turns(), self.results.turns.len());
        let ratio = self.ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
        let share = match &self.results.share {
            Some(found) => found.best.map_or_else(|| "none".to_owned(), |best| format!("{:.3}", best.share)),
            None => "-".to_owned(),
        };
        writeln!(
            f,
            "{name:<21} {:>9.2} {:>7.0} {range:>15} {ratio:>6} {:>9.1} {cpu:>13} {memory:>13} {share:>7} {:>8.1} {quiet:>5}",
            rows.median / 1e6,
            bytes.median,
            median(self.first_batch_seconds) * 1e3,
            median(self.foreign_share) * 100.0,
        )
    }
}
