//! The protocol of consumer processes: JSON lines over their standard streams.
//!
//! A consumer prints `{"ready": true}`, and then answers each [`RunRequest`] with a [`RunResult`] or with
//! `{"error": "message"}`. It exits when its input ends. Consumers in Python use the same protocol (`peers/lines.py`), so that
//! every system is measured in the same way.

use std::io::Write;

use anyhow::Context;
use forebay_proto::{Encoding, v1};
use serde::{Deserialize, Serialize};

use crate::stats::Spread;

/// A run to perform.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct RunRequest {
    /// Ticket in JSON.
    pub(crate) ticket: String,
    /// Time of the simulated accelerator per batch, in milliseconds. Absent: batches are dropped on arrival.
    pub(crate) compute_ms: Option<f64>,
}

impl RunRequest {
    /// Requests `train`, without a simulated accelerator.
    pub(crate) fn of(train: v1::Train) -> Self {
        Self { ticket: ticket(train), compute_ms: None }
    }
}

/// Returns the ticket of `train` in JSON.
pub(crate) fn ticket(train: v1::Train) -> String {
    String::from_utf8_lossy(&Encoding::Json.encode(&v1::Command::from(train))).into_owned()
}

/// Measurements of one run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct RunResult {
    pub(crate) rows: u64,
    /// Bytes of the received buffers.
    pub(crate) bytes: u64,
    pub(crate) batches: u64,
    /// Time from the request to the end of the stream, or of the last computation.
    pub(crate) seconds: f64,
    /// Time from the request to the first batch.
    pub(crate) first_batch_seconds: f64,
    /// Waits for batches other than the first batch of an epoch.
    pub(crate) wait_seconds: Option<Spread>,
    /// Waits for the first batches of later epochs. Absent if the client cannot detect epochs.
    pub(crate) epoch_wait_seconds: Option<Spread>,
    /// Utilization of the simulated accelerator, 0 to 1. Absent without one.
    pub(crate) au: Option<f64>,
}

/// Prints one line of JSON and flushes it.
pub(crate) fn say(line: &impl Serialize) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, line)?;
    writeln!(out).and_then(|()| out.flush()).context("standard output is closed")
}
