//! A setting of the queue, and its measurements.

use std::{fmt, time::Duration};

use serde::Serialize;

use crate::chart::{Chart, Content, Curve};

/// Settings of the queue at one point of the grid.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Setting {
    pub(super) max_batch_rows: u64,
    /// `max_batch_delay`. `None`: `eager_dispatch`.
    pub(super) delay: Option<Duration>,
}

/// Outcomes and latencies of the requests of one measurement.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(super) struct Measured {
    /// Requests that were due.
    pub(super) due: u64,
    /// Requests with a result before their timeout.
    pub(super) answered: u64,
    /// Requests that the queue rejected.
    pub(super) rejected: u64,
    /// Requests that exceeded their timeout.
    pub(super) expired: u64,
    pub(super) failed: u64,
    pub(super) answers_per_second: f64,
    /// Median latency of the answered requests, in seconds after they were due.
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) max: f64,
    /// Fraction of the mean latency that is neither waiting in the queue nor computing: gather, encoding and network.
    pub(super) overhead_fraction: f64,
    /// Mean seconds until a rejection.
    pub(super) rejection_seconds: f64,
    /// Fraction of the time in which the accelerator was busy.
    pub(super) busy: f64,
    /// Mean rows per batch.
    pub(super) batch_rows: f64,
}

/// A setting at one rate, with its measurements.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Cell {
    pub(super) setting: Setting,
    /// Requests per second.
    pub(super) rate: f64,
    pub(super) measured: Measured,
    /// Mean error of the queue's cost model, as a fraction of the time of a batch.
    pub(super) model_error: f64,
}

impl Measured {
    pub(super) fn answered_fraction(&self) -> f64 {
        self.answered as f64 / self.due.max(1) as f64
    }
}

impl Setting {
    /// Returns the setting in TOML.
    pub(super) fn as_toml(self) -> String {
        let rows = self.max_batch_rows;
        match self.delay {
            Some(delay) => {
                let delay = humantime::format_duration(delay);
                format!("max_batch_rows = {rows}, max_batch_delay = \"{delay}\", eager_dispatch = false")
            }
            None => format!("max_batch_rows = {rows}, eager_dispatch = true"),
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.delay {
            Some(delay) => write!(f, "{} rows, {}", self.max_batch_rows, humantime::format_duration(delay)),
            None => write!(f, "{} rows, eager", self.max_batch_rows),
        }
    }
}

impl Cell {
    pub(super) const HEAD: &str = "setting             requests/s   answered    p50 ms    p99 ms   max ms  rows/batch  busy     overhead  rejected expired  model";
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { setting, rate, measured: m, model_error } = self;
        write!(
            f,
            "{:<19} {rate:>10.0} {:>10.0} {:>9.2} {:>9.2} {:>8.1} {:>11.0} {:>4.0}% {:>11.0}% {:>9} {:>7} {:>5.0}%",
            setting.to_string(),
            m.answers_per_second,
            m.p50 * 1e3,
            m.p99 * 1e3,
            m.max * 1e3,
            m.batch_rows,
            m.busy * 100.0,
            m.overhead_fraction * 100.0,
            m.rejected,
            m.expired,
            model_error * 100.0,
        )
    }
}

/// Returns the throughput-latency curve: p99 over answers per second, one curve per setting.
pub(super) fn throughput_latency(subtitle: String, cells: &[Cell]) -> Chart {
    let mut settings: Vec<Setting> = Vec::new();
    for cell in cells {
        if !settings.contains(&cell.setting) {
            settings.push(cell.setting);
        }
    }
    let mut sizes: Vec<u64> = settings.iter().map(|setting| setting.max_batch_rows).collect();
    sizes.dedup();
    let curve = |setting: &Setting| Curve {
        label: setting.to_string(),
        group: sizes.iter().position(|size| *size == setting.max_batch_rows).unwrap_or(0),
        dash: setting.delay.map_or(0, |delay| 2 + delay.as_millis().min(12) as u32),
        points: cells
            .iter()
            .filter(|cell| cell.setting == *setting && cell.measured.answered > 0)
            .map(|cell| (cell.measured.answers_per_second, cell.measured.p99 * 1e3))
            .collect(),
    };
    Chart {
        title: "Batch queue: throughput and latency".to_owned(),
        subtitle,
        content: Content::Curves {
            x: "answers per second".to_owned(),
            y: "p99 latency, ms".to_owned(),
            curves: settings.iter().map(curve).collect(),
        },
    }
}
