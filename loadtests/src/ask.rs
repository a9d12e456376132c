//! What a consumer process is asked, and what it answers: a line of JSON each, over its standard streams.
//!
//! A consumer says `{"ready": true}`, then takes one [`Ask`] after the other and answers each with what it
//! [`Passed`], or with `{"error": "why"}`. Its input's end is its own. Consumers in Python do the same
//! (`peers/consumer.py`), so every contestant is measured in the same way.

use serde::{Deserialize, Serialize};

use crate::stats::Spread;

/// One run that a consumer is asked for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Ask {
    /// The ticket to get, in JSON.
    pub(crate) ticket: String,
    /// What the emulated accelerator takes for a batch; absent: batches are dropped as they come.
    pub(crate) compute_ms: Option<f64>,
}

/// What came through in one run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Passed {
    pub(crate) rows: u64,
    /// Bytes of the received buffers, as the consumer counts them.
    pub(crate) bytes: u64,
    pub(crate) batches: u64,
    /// From the request to the end of the stream, or of the last batch's compute.
    pub(crate) seconds: f64,
    /// From the request to the first batch.
    pub(crate) first_batch_seconds: f64,
    /// How long batches were waited for, but for the first; and those that begin another epoch, if it can tell.
    pub(crate) wait_seconds: Option<Spread>,
    pub(crate) epoch_wait_seconds: Option<Spread>,
    /// Utilization of the emulated accelerator; absent without one.
    pub(crate) au: Option<f64>,
}
