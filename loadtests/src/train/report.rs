//! What `forebay-load train` says.

use std::fmt::{self, Display};

use forebay_client::Config;
use serde::Serialize;

use super::{Run, Train};
use crate::{
    foreign::TROUBLING,
    machine::Machine,
    plot::{self, Bar},
    scenario::Scenario,
    share::Found,
    stats::Spread,
};

/// Figures of all runs.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    machine: Machine,
    scenario: Scenario,
    ranks: u64,
    share: Option<f64>,
    hash: bool,
    client: Config,
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
    /// The share of the machine that other processes had.
    others: Option<Spread>,
    found_share: Option<Found>,
    #[serde(skip)]
    bytes_a_row: f64,
    runs: Vec<Run>,
}

impl Report {
    pub(super) fn new(
        asked: &Train,
        scenario: &Scenario,
        epoch_bytes: u64,
        runs: Vec<Run>,
        found_share: Option<Found>,
        (server_peak_rss_bytes, client_peak_rss_bytes): (Option<u64>, u64),
    ) -> anyhow::Result<Self> {
        let of = |value: &dyn Fn(&Run) -> Option<f64>| Spread::of(runs.iter().filter_map(value));
        let millions = |run: &Run| run.rows as f64 / 1e6;
        let epochs = asked.epochs.unwrap_or(scenario.epochs).max(1);
        let bytes_a_row = runs.first().map_or(0.0, |run| (epoch_bytes * epochs) as f64 / run.rows as f64);
        Ok(Self {
            machine: Machine::this(),
            scenario: scenario.clone(),
            ranks: asked.ranks,
            share: asked.share,
            hash: asked.hash,
            client: asked.client_config()?,
            rows_per_second: of(&|run| Some(run.rows as f64 / run.seconds)),
            megabytes_per_second: of(&|run| Some(run.rows as f64 * bytes_a_row / run.seconds / 1e6)),
            au: of(&|run| run.au),
            first_batch_seconds: of(&|run| Some(run.first_batch_seconds)),
            longest_wait_seconds: of(&|run| run.longest_wait_seconds),
            longest_epoch_wait_seconds: of(&|run| run.longest_epoch_wait_seconds),
            server_cpu_seconds_per_million_rows: of(&|run| Some(run.server_cpu_seconds? / millions(run))),
            client_cpu_seconds_per_million_rows: of(&|run| Some(run.client_cpu_seconds / millions(run))),
            server_peak_rss_bytes,
            client_peak_rss_bytes,
            others: of(&|run| Some(run.others)),
            found_share,
            bytes_a_row,
            runs,
        })
    }

    /// Rates of every run.
    pub(super) fn plot(&self) -> String {
        let bars: Vec<Bar> = (1..)
            .zip(&self.runs)
            .filter_map(|(number, run)| {
                let rate = run.rows as f64 * self.bytes_a_row / run.seconds / 1e6;
                let label = format!("run {number}");
                Some(Bar { label, value: Spread::of([rate])?, is_ours: true })
            })
            .collect();
        plot::bars(&format!("forebay, {}", self.scenario.name), &self.machine.to_string(), "MB/s", &bars)
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.scenario.name, self.scenario.about)?;
        writeln!(f, "{}", self.machine)?;
        writeln!(
            f,
            "{} ranks, batches of {} rows, {} warm runs; median (least to most)\n",
            self.ranks,
            self.scenario.batch_size,
            self.runs.len()
        )?;
        let mut line = |name: &str, spread: Option<Spread>, scale: f64| match spread {
            Some(Spread { median, least, most }) => {
                let [median, least, most] = [median, least, most].map(|value| plot::short(value * scale));
                writeln!(f, "{name:<34} {median:>9}  ({least} to {most})")
            }
            None => Ok(()),
        };
        line("M rows/s", self.rows_per_second, 1e-6)?;
        line("MB/s", self.megabytes_per_second, 1.0)?;
        line("AU, %", self.au, 100.0)?;
        line("first batch p50, ms", self.first_batch_seconds, 1e3)?;
        line("longest wait for a batch, ms", self.longest_wait_seconds, 1e3)?;
        line("... that begins an epoch, ms", self.longest_epoch_wait_seconds, 1e3)?;
        line("server CPU s / M rows", self.server_cpu_seconds_per_million_rows, 1.0)?;
        line("client CPU s / M rows", self.client_cpu_seconds_per_million_rows, 1.0)?;
        line("others' share of the machine, %", self.others, 100.0)?;
        let memory = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        if let Some(bytes) = self.server_peak_rss_bytes {
            writeln!(f, "{:<34} {:>9.2}", "server peak RSS, GiB", memory(bytes))?;
        }
        writeln!(f, "{:<34} {:>9.2}", "client peak RSS, GiB", memory(self.client_peak_rss_bytes))?;
        if self.others.is_some_and(|others| others.median > TROUBLING) {
            writeln!(f, "\nOther processes were at work: these figures are too low.")?;
        }
        let Some(found) = &self.found_share else { return Ok(()) };
        writeln!(f, "\nshare of an accelerator of {} ms a batch, each rank", self.scenario.compute_ms)?;
        for probe in &found.probes {
            writeln!(f, "  {:>8.3}  AU {:.1} %", probe.share, probe.utilization * 100.0)?;
        }
        match found.best {
            Some(best) => writeln!(f, "largest at AU >= 70 %: {:.3}", best.share),
            None => writeln!(f, "no share was held at AU >= 70 %"),
        }
    }
}
