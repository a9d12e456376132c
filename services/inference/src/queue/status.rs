//! Status of a queue: load, outcomes and the learned cost model.

#![deny(clippy::disallowed_methods, clippy::iter_over_hash_type)] // The clock is an argument; order is deterministic.

use std::{collections::HashMap, time::Duration};

use super::{Coefficients, WorkerId};

/// Current load of a queue.
#[derive(Debug, Clone, PartialEq)]
pub struct Load {
    /// Number of connected workers that are neither overdue nor suspended.
    pub workers: usize,
    /// Number of workers that did not reply to a batch in several times its predicted time. They receive no batches until they
    /// reply.
    pub overdue_workers: usize,
    /// Number of workers that failed batches which other workers computed. They receive no batches for a while.
    pub suspended_workers: usize,
    /// Number of requests that wait for a batch.
    pub queued_requests: usize,
    /// Rows of the queued requests.
    pub queued_rows: u64,
    /// Number of batches that were sent to workers and have no reply.
    pub batches: usize,
    /// Arrival rate in requests per second, including requests that were refused because the queue was too long.
    pub requests_per_second: f64,
    /// Predicted seconds until the answer to a request of one row that arrives now. `None` without workers or before the
    /// first computed batch.
    pub predicted_wait_seconds: Option<f64>,
}

/// A worker that is overdue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SilentWorker {
    /// Id of the worker.
    pub worker: WorkerId,
    /// Time for which its oldest batch has been waiting without any reply of the worker.
    pub silence: Duration,
}

/// A worker that is suspended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SuspendedWorker {
    /// Id of the worker.
    pub worker: WorkerId,
    /// Time until the suspension ends, after which the next batch shows whether the worker works again.
    pub remaining: Duration,
}

/// Number of requests by outcome since the queue was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcomes {
    /// Admitted requests.
    pub admitted: u64,
    /// Rows of the admitted requests.
    pub admitted_rows: u64,
    /// Bytes of features of the admitted requests.
    pub admitted_bytes: u64,
    /// Requests that were refused on arrival.
    pub refused: u64,
    /// Requests of low priority that were removed to make room for others.
    pub displaced: u64,
    /// Requests that were answered with rows.
    pub answered: u64,
    /// Requests whose deadline passed before an answer, and those that waited for a worker while there was none.
    pub expired: u64,
    /// Requests that their caller canceled.
    pub cancelled: u64,
    /// Requests whose worker failed or disconnected, or whose features could not be looked up.
    pub failed: u64,
}

impl Outcomes {
    /// Mean size of the admitted requests; `None` before the first.
    pub(super) fn mean_request(&self) -> Option<MeanRequest> {
        let rows = self.admitted_rows as f64;
        let mean =
            MeanRequest { rows: rows / self.admitted as f64, row_bytes: self.admitted_bytes as f64 / rows };
        (self.admitted_rows > 0).then_some(mean)
    }
}

/// Mean size of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct MeanRequest {
    pub(super) rows: f64,
    pub(super) row_bytes: f64,
}

/// Current state of a queue.
#[derive(Debug, Clone, PartialEq)]
pub struct QueueStatus {
    /// Current load.
    pub load: Load,
    /// Up to 16 of the [overdue](Load::overdue_workers) workers, the one that has not replied for the longest time first.
    pub silent_workers: Vec<SilentWorker>,
    /// Up to 16 of the [suspended](Load::suspended_workers) workers, the one with the longest remaining suspension first.
    pub suspended_workers: Vec<SuspendedWorker>,
    /// Learned cost of a batch.
    pub model: Coefficients,
    /// Mean absolute error of the model's predictions, in seconds.
    pub model_error: f64,
    /// Requests by outcome.
    pub outcomes: Outcomes,
    /// Number of batches by the name of their [`CloseReason`](super::CloseReason).
    pub close_reasons: HashMap<&'static str, u64>,
}
