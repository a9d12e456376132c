//! The flags that `infer` and `tune` share.

use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::output::Output;

/// Name of the queue.
pub(super) const QUEUE: &str = "load";

/// The load, the simulated accelerator and the output.
#[derive(Debug, Args)]
pub(super) struct Setup {
    /// Rows per request.
    #[arg(long, default_value_t = 10, value_name = "N")]
    pub(super) rows: usize,
    /// DoExchange streams that share the requests.
    #[arg(long, default_value_t = 4, value_name = "N")]
    pub(super) callers: usize,
    /// Time that the simulated accelerator takes per batch.
    #[arg(long, default_value = "2ms", value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(super) fixed: Duration,
    /// Additional time that the simulated accelerator takes per row.
    #[arg(long, default_value = "20us", value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(super) row: Duration,
    /// Timeout of a request.
    #[arg(long, default_value = "200ms", value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(super) timeout: Duration,
    /// Exponent of the popularity of keys (Zipf). 0: all keys are equally popular.
    #[arg(long, default_value_t = 1.0, value_name = "S")]
    pub(super) zipf: f64,
    /// Distribution of the arrival times.
    #[arg(long, value_enum, default_value_t = Arrivals::Poisson)]
    pub(super) arrivals: Arrivals,
    /// Duration of the measurement of each setting.
    #[arg(long, default_value = "3s", value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(super) time: Duration,
    #[command(flatten)]
    pub(super) output: Output,
}

/// Distribution of the arrival times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
pub(super) enum Arrivals {
    /// Independent of each other.
    Poisson,
    /// Bursts of eight requests, with Poisson arrivals.
    Bursts,
}

impl Setup {
    /// Requests per second that the accelerator can compute in batches of at most `max_batch_rows` rows.
    pub(super) fn capacity(&self, max_batch_rows: u64) -> f64 {
        let rows = (max_batch_rows as usize / self.rows).max(1) * self.rows;
        rows as f64 / batch_time(self.fixed, self.row, rows as u64).as_secs_f64() / self.rows as f64
    }
}

/// Time of the simulated accelerator for a batch.
pub(super) fn batch_time(fixed: Duration, row: Duration, rows: u64) -> Duration {
    fixed + row * u32::try_from(rows).unwrap_or(u32::MAX)
}
