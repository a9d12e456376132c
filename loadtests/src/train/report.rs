//! The report of `forebay-load train`.

use std::fmt::{self, Display};

use serde::Serialize;

use super::run::{Conditions, Run};
use crate::{
    chart::{self, Bar, Chart},
    interference::MAX_FOREIGN_SHARE,
    machine::Machine,
    scenario::Scenario,
    share::Found,
    stats::Spread,
};

/// Measurements of all runs.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    #[serde(skip)]
    pub(super) machine: Machine,
    scenario: Scenario,
    conditions: Conditions,
    rows_per_second: Option<Spread>,
    megabytes_per_second: Option<Spread>,
    au: Option<Spread>,
    first_batch_seconds: Option<Spread>,
    longest_wait_seconds: Option<Spread>,
    longest_epoch_wait_seconds: Option<Spread>,
    server_cpu_seconds_per_million_rows: Option<Spread>,
    client_cpu_seconds_per_million_rows: Option<Spread>,
    server_peak_rss_bytes: Option<u64>,
    client_peak_rss_bytes: u64,
    /// Fraction of the machine's CPU time that other processes used.
    foreign_share: Option<Spread>,
    found_share: Option<Found>,
    #[serde(skip)]
    bytes_per_row: f64,
    runs: Vec<Run>,
}

impl Report {
    pub(super) fn new(
        conditions: Conditions,
        scenario: &Scenario,
        runs: Vec<Run>,
        found_share: Option<Found>,
        (server_peak_rss_bytes, client_peak_rss_bytes): (Option<u64>, u64),
    ) -> Self {
        let of = |value: &dyn Fn(&Run) -> Option<f64>| Spread::of(runs.iter().filter_map(value));
        let millions = |run: &Run| run.rows as f64 / 1e6;
        let bytes_per_row = runs
            .first()
            .map_or(0.0, |run| (conditions.epoch_bytes * conditions.epochs) as f64 / run.rows as f64);
        Self {
            machine: Machine::this(),
            scenario: scenario.clone(),
            rows_per_second: of(&|run| Some(run.rows as f64 / run.seconds)),
            megabytes_per_second: of(&|run| Some(run.rows as f64 * bytes_per_row / run.seconds / 1e6)),
            au: of(&|run| run.au),
            first_batch_seconds: of(&|run| Some(run.first_batch_seconds)),
            longest_wait_seconds: of(&|run| run.longest_wait_seconds),
            longest_epoch_wait_seconds: of(&|run| run.longest_epoch_wait_seconds),
            server_cpu_seconds_per_million_rows: of(&|run| Some(run.server_cpu_seconds? / millions(run))),
            client_cpu_seconds_per_million_rows: of(&|run| Some(run.client_cpu_seconds / millions(run))),
            server_peak_rss_bytes,
            client_peak_rss_bytes,
            foreign_share: of(&|run| Some(run.foreign_share)),
            found_share,
            bytes_per_row,
            runs,
            conditions,
        }
    }

    /// Returns a chart with the rate of each run.
    pub(super) fn chart(&self) -> Chart {
        let rate = |run: &Run| run.rows as f64 * self.bytes_per_row / run.seconds / 1e6;
        let bar = |(number, run)| Bar::of(format!("run {number}"), [rate(run)], true);
        let bars = (1..).zip(&self.runs).map(bar);
        Chart::bars(&format!("forebay, {}", self.scenario.name), &self.machine, "MB/s", bars)
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.scenario.name, self.scenario.about)?;
        writeln!(f, "{}", self.machine)?;
        writeln!(
            f,
            "{} ranks, batches of {} rows, {} warm runs; median (minimum to maximum)\n",
            self.conditions.ranks,
            self.scenario.batch_size,
            self.runs.len()
        )?;
        let mut line = |name: &str, spread: Option<Spread>, scale: f64| match spread {
            Some(Spread { median, min, max }) => {
                let [median, min, max] = [median, min, max].map(|value| chart::short(value * scale));
                writeln!(f, "{name:<34} {median:>9}  ({min} to {max})")
            }
            None => Ok(()),
        };
        line("M rows/s", self.rows_per_second, 1e-6)?;
        line("MB/s", self.megabytes_per_second, 1.0)?;
        line("AU, %", self.au, 100.0)?;
        line("first batch p50, ms", self.first_batch_seconds, 1e3)?;
        line("longest wait for a batch, ms", self.longest_wait_seconds, 1e3)?;
        line("longest wait for an epoch, ms", self.longest_epoch_wait_seconds, 1e3)?;
        line("server CPU s / M rows", self.server_cpu_seconds_per_million_rows, 1.0)?;
        line("client CPU s / M rows", self.client_cpu_seconds_per_million_rows, 1.0)?;
        line("CPU share of other processes, %", self.foreign_share, 100.0)?;
        let memory = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        if let Some(bytes) = self.server_peak_rss_bytes {
            writeln!(f, "{:<34} {:>9.2}", "server peak RSS, GiB", memory(bytes))?;
        }
        writeln!(f, "{:<34} {:>9.2}", "client peak RSS, GiB", memory(self.client_peak_rss_bytes))?;
        if self.foreign_share.is_some_and(|foreign_share| foreign_share.median > MAX_FOREIGN_SHARE) {
            writeln!(f, "\nOther processes used the CPU: the rates are too low.")?;
        }
        let Some(found) = &self.found_share else { return Ok(()) };
        writeln!(f, "\nshare of an accelerator of {} ms per batch, for each rank", self.scenario.compute_ms)?;
        for probe in &found.probes {
            writeln!(f, "  {:>8.3}  AU {:.1}%", probe.share, probe.utilization * 100.0)?;
        }
        match found.best {
            Some(best) => writeln!(f, "largest at AU >= 70%: {:.3}", best.share),
            None => writeln!(f, "no share has AU >= 70%"),
        }
    }
}
