//! What `forebay-load peers` says.

use std::fmt::{self, Display};

use serde::Serialize;

use super::{Standing, Turn};
use crate::{
    data::Prepared,
    foreign::TROUBLING,
    machine::Machine,
    plot::{self, Bar},
    scenario::Scenario,
    stats::Spread,
};

/// The one that ratios are against.
const OURS: &str = "forebay";

/// Figures of all contestants.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    machine: Machine,
    scenario: Scenario,
    epoch_rows: u64,
    epoch_bytes: u64,
    lines: Vec<Line>,
}

/// One contestant's figures, medians over its turns.
#[derive(Debug, Serialize)]
struct Line {
    rows_per_second: Option<Spread>,
    megabytes_per_second: Option<Spread>,
    /// Of [`OURS`], median by median; absent unless both had a calm turn.
    ratio: Option<f64>,
    first_batch_seconds: Option<Spread>,
    server_cpu_seconds_per_million_rows: Option<Spread>,
    client_cpu_seconds_per_million_rows: Option<Spread>,
    server_peak_rss_bytes: Option<Spread>,
    client_peak_rss_bytes: Option<Spread>,
    /// The share of the machine that other processes had.
    others: Option<Spread>,
    standing: Standing,
}

impl Report {
    pub(super) fn new(
        scenario: &Scenario,
        data: &Prepared,
        standings: Vec<Standing>,
    ) -> anyhow::Result<Self> {
        let epoch_bytes = data.sizes.epoch_bytes(&scenario.request)?;
        let bytes_a_row = epoch_bytes as f64 / data.sizes.rows.max(1) as f64;
        let rate = |turn: &Turn| turn.passed.rows as f64 / turn.passed.seconds;
        let ours = standings.iter().find(|standing| standing.name == OURS && standing.calm() > 0);
        let ours = ours.and_then(|standing| standing.spread(rate)).map(|spread| spread.median);
        let line = |standing: Standing| {
            let millions = |turn: &Turn| turn.passed.rows as f64 / 1e6;
            let rows_per_second = standing.spread(rate);
            Line {
                rows_per_second,
                megabytes_per_second: standing.spread(|turn| rate(turn) * bytes_a_row / 1e6),
                ratio: rows_per_second
                    .filter(|_| standing.calm() > 0)
                    .zip(ours)
                    .map(|(spread, ours)| spread.median / ours),
                first_batch_seconds: standing.spread(|turn| turn.passed.first_batch_seconds),
                server_cpu_seconds_per_million_rows: standing
                    .spread(|turn| turn.server_cpu_seconds / millions(turn)),
                client_cpu_seconds_per_million_rows: standing
                    .spread(|turn| turn.client_cpu_seconds / millions(turn)),
                server_peak_rss_bytes: standing.spread(|turn| turn.server_peak_rss_bytes as f64),
                client_peak_rss_bytes: standing.spread(|turn| turn.client_peak_rss_bytes as f64),
                others: standing.spread(|turn| turn.others),
                standing,
            }
        };
        Ok(Self {
            machine: Machine::this(),
            scenario: scenario.clone(),
            epoch_rows: data.sizes.rows,
            epoch_bytes,
            lines: standings.into_iter().map(line).collect(),
        })
    }

    pub(super) fn plot(&self) -> String {
        let bars: Vec<Bar> = self
            .lines
            .iter()
            .filter_map(|line| {
                let name = line.standing.name;
                let value = line.megabytes_per_second?;
                Some(Bar { label: name.to_owned(), value, is_ours: name.starts_with(OURS) })
            })
            .collect();
        plot::bars(&self.scenario.name, &self.machine.to_string(), "MB/s", &bars)
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scenario = &self.scenario;
        writeln!(f, "{}: {}", scenario.name, scenario.about)?;
        writeln!(f, "{}", self.machine)?;
        writeln!(
            f,
            "{} rows, {:.0} bytes each, in batches of {}; {} epochs a run after one to warm up; medians\n",
            self.epoch_rows,
            self.epoch_bytes as f64 / self.epoch_rows.max(1) as f64,
            scenario.batch_size,
            scenario.epochs
        )?;
        writeln!(
            f,
            "{:<21} {:>9} {:>7} {:>15} {:>6} {:>9} {:>13} {:>13} {:>7} {:>8} {:>5}",
            "contestant",
            "M rows/s",
            "MB/s",
            "(range)",
            "ratio",
            "first, ms",
            "CPU s/M rows",
            "peak RSS GiB",
            "share",
            "others %",
            "calm"
        )?;
        for line in &self.lines {
            line.fmt(f)?;
        }
        for line in &self.lines {
            for failure in &line.standing.failures {
                writeln!(f, "FAILED {}: {failure}", line.standing.name)?;
            }
        }
        writeln!(f, "\nCPU and memory: server + client; memory that processes share counts for each")?;
        writeln!(
            f,
            "Calm: turns in which others had at most {:.0} % of the machine; only they count",
            TROUBLING * 100.0
        )?;
        writeln!(f, "if there is one, and without one there is no ratio.\n")?;
        for line in &self.lines {
            writeln!(f, "{:<21} {}", line.standing.name, line.standing.about)?;
        }
        Ok(())
    }
}

impl Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.standing.name;
        let (Some(rows), Some(bytes)) = (self.rows_per_second, self.megabytes_per_second) else {
            return writeln!(f, "{name:<21} FAILED");
        };
        let median = |spread: Option<Spread>| spread.map_or(f64::NAN, |spread| spread.median);
        let gib = |spread: Option<Spread>| median(spread) / f64::from(1 << 30);
        let range = format!("({:.0}-{:.0})", bytes.least, bytes.most);
        let cpu = format!(
            "{:.2}+{:.2}",
            median(self.server_cpu_seconds_per_million_rows),
            median(self.client_cpu_seconds_per_million_rows)
        );
        let memory = format!("{:.2}+{:.2}", gib(self.server_peak_rss_bytes), gib(self.client_peak_rss_bytes));
        let calm = format!("{}/{}", self.standing.calm(), self.standing.turns.len());
        let ratio = self.ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
        let share = match &self.standing.share {
            Some(found) => found.best.map_or_else(|| "none".to_owned(), |best| format!("{:.3}", best.share)),
            None => "-".to_owned(),
        };
        writeln!(
            f,
            "{name:<21} {:>9.2} {:>7.0} {range:>15} {ratio:>6} {:>9.1} {cpu:>13} {memory:>13} {share:>7} {:>8.1} {calm:>5}",
            rows.median / 1e6,
            bytes.median,
            median(self.first_batch_seconds) * 1e3,
            median(self.others) * 100.0,
        )
    }
}
