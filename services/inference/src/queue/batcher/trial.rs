//! Evidence on failed batches: trials of requests, and records of workers.

#![deny(clippy::disallowed_methods, clippy::iter_over_hash_type)] // The clock is an argument; order is deterministic.

use crate::queue::{Time, WorkerId};

/// Requests of a failed batch that have no outcome yet.
#[derive(Debug)]
pub(super) struct Trial {
    /// Worker that reported the failure.
    pub(super) worker: WorkerId,
    /// Number of the requests.
    pub(super) open: usize,
    /// True if another worker answered a request.
    pub(super) is_answered_by_another: bool,
}

/// Failures of a worker.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// Failures in succession that were its own.
    pub(super) strikes: u32,
    /// Suspensions in succession.
    pub(super) suspensions: u32,
    /// End of the last suspension; `None` after a computed batch.
    pub(super) suspended_until: Option<Time>,
}

impl Record {
    /// True if the worker receives no batches at `now`.
    pub(super) fn is_suspended(&self, now: Time) -> bool {
        self.suspended_until.is_some_and(|until| now < until)
    }

    /// True if the worker has computed a batch since its last suspension.
    pub(super) fn is_trusted(&self) -> bool {
        self.suspended_until.is_none()
    }
}
