//! Evidence on failed batches: trials of requests, and records of workers.

#![deny(clippy::disallowed_methods, clippy::iter_over_hash_type)] // The clock is an argument; order is deterministic.

use std::time::Duration;

use crate::queue::{Time, WorkerId};

/// Time for which the requests of a tenant share no batches with those of others, after one of them failed alone.
pub(super) const UNSHARED: Duration = Duration::from_secs(60);

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

/// Batches failed, requests of a tenant left them without an outcome, and none of its requests has been answered since.
#[derive(Debug, Clone, Copy)]
pub(super) struct Suspicion {
    /// Number of these batches.
    pub(super) batches: u32,
    /// Time of the last failure.
    pub(super) at: Time,
}

/// State of a tenant whose requests share no batches.
#[derive(Debug)]
pub(super) struct Apart {
    pub(super) until: Time,
    /// True if it is only suspected, false if one of its requests failed alone.
    pub(super) is_suspected: bool,
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
