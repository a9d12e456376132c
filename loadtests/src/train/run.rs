//! Measurements of one run.

use forebay_client::Config;
use serde::Serialize;

/// Conditions of all runs.
#[derive(Debug, Serialize)]
pub(super) struct Conditions {
    pub(super) ranks: u64,
    pub(super) share: Option<f64>,
    pub(super) hash: bool,
    pub(super) client: Config,
    pub(super) epoch_bytes: u64,
    /// Epochs per run.
    pub(super) epochs: u64,
}

/// Measurements of all ranks in one run.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Run {
    pub(super) rows: u64,
    pub(super) batches: u64,
    /// Time until the last rank finished.
    pub(super) seconds: f64,
    /// Time to the first batch of the median rank.
    pub(super) first_batch_seconds: f64,
    /// Longest wait of any rank for a batch that does not begin an epoch.
    pub(super) longest_wait_seconds: Option<f64>,
    /// Longest wait of any rank for the first batch of a later epoch.
    pub(super) longest_epoch_wait_seconds: Option<f64>,
    /// Mean utilization of the simulated accelerators.
    pub(super) au: Option<f64>,
    /// CPU time of the server. Absent for a server that this command did not start.
    pub(super) server_cpu_seconds: Option<f64>,
    pub(super) client_cpu_seconds: f64,
    /// Fraction of the machine's CPU time that other processes used, including a server that this command did not start.
    pub(super) foreign_share: f64,
}
