//! Batches for workers, and answers and failures for callers.

use std::time::Duration;

use tokio::time::Instant;

use super::{BatchId, CloseReason, Refusal};

/// Row counts of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchShape {
    /// Rows of each request, in order.
    pub request_rows: Vec<u64>,
    /// Rows of the batch, including padding.
    pub padded_rows: u64,
}

/// A batch for a worker.
#[derive(Debug)]
pub struct Batch<P> {
    /// Id of the batch, repeated in the reply.
    pub id: BatchId,
    /// Payloads of the requests, in order.
    pub payloads: Vec<P>,
    /// Number of rows of the requests.
    pub rows: u64,
    /// Number of rows to send, including padding.
    pub padded_rows: u64,
    /// Rule that closed the batch.
    pub close_reason: CloseReason,
    /// Deadline of the most urgent request.
    pub deadline: Instant,
    /// Largest number of earlier attempts of a request in the batch.
    pub previous_attempts: u32,
}

/// A request's share of a worker's reply.
#[derive(Debug)]
pub struct Answer<R> {
    /// The worker's result for the request.
    pub value: R,
    /// Time from the request's arrival until its batch was closed.
    pub queued: Duration,
    /// Time from then until the batch was gathered and sent.
    pub gathered: Duration,
    /// Time from then until the worker's reply.
    pub computed: Duration,
    /// Number of rows of the batch, without padding.
    pub rows: u64,
    /// Rule that closed the batch.
    pub close_reason: CloseReason,
}

/// Reason why a request has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The request was not admitted.
    #[error(transparent)]
    Refused(Refusal),
    /// The deadline passed, or the request was queued for `max_time_in_queue`.
    #[error("no answer within {waited:.1?}{}", without_workers(.had_workers))]
    Expired {
        /// Time since the request's arrival.
        waited: Duration,
        /// True if any worker was connected when the deadline passed.
        had_workers: bool,
    },
    /// The queue had no worker for half of the time that the request had left. No worker has received it since.
    #[error("no worker serves the queue, and none connected within {waited:.1?}")]
    Unserved {
        /// Time since the request's arrival.
        waited: Duration,
    },
    /// All workers that received the request disconnected before they replied, the last one with no other request.
    #[error("the workers that received the request disconnected before they replied")]
    Lost,
    /// The features could not be looked up, with the reason.
    #[error("the features cannot be looked up: {reason}")]
    Features {
        /// Reason of the failure.
        reason: String,
        /// Kind of the failure.
        kind: FeaturesFailure,
    },
    /// The worker replied, but the caller has too many unsent answers, with the limit.
    #[error("{0}")]
    Unsent(String),
    /// The reply of the worker is larger than the server accepts, with the sizes.
    #[error("{0}")]
    TooLarge(String),
    /// The worker could not compute the batch, with the reason.
    #[error("the worker failed: {0}")]
    Failed(String),
}

/// Kind of a failure to look up features, by what a caller can do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeaturesFailure {
    /// The request does not fit the current snapshot.
    Precondition,
    /// The stored data is corrupt.
    Corrupt,
    /// The features exceed a limit.
    Limit,
    /// Another attempt can succeed.
    Unavailable,
    /// A defect of this program.
    Internal,
}

fn without_workers(had_workers: &bool) -> &'static str {
    if *had_workers { "" } else { "; no worker serves the queue" }
}

impl Failure {
    /// Recommended wait before a retry, if known. For a request that no worker has received, it is always known.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused(Refusal::Late { predicted, limit }) => Some(predicted.saturating_sub(*limit)),
            Self::Refused(Refusal::Full { retry_after } | Refusal::Displaced { retry_after }) => {
                Some(*retry_after)
            }
            // Another server may have a worker, or accept requests.
            Self::Unserved { .. } | Self::Refused(Refusal::Draining) => Some(Duration::ZERO),
            _ => None,
        }
    }
}
