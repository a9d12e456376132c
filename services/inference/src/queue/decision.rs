//! Vocabulary of a queue's decisions: ids, reasons, refusals and closed batches.

#![deny(clippy::disallowed_methods, clippy::iter_over_hash_type)] // The clock is an argument; order is deterministic.

use std::time::Duration;

use forebay_loader::Tenant;

/// Time since the queue was created.
pub type Time = Duration;

/// Id of a request. Ids ascend in the order of arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Id of a batch that was assigned to a worker. Ids ascend in the order of assignment, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(pub u64);

/// Id of a worker. Ids ascend in the order of connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(pub u64);

/// Urgency of a request.
///
/// Requests of low priority are sent after those of normal priority. One of them joins a batch with requests of normal priority only if
/// every request of the batch still meets its deadline. If the queue is full, requests of low priority are removed to make room for those of normal priority.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// The default.
    #[default]
    Normal,
    /// For requests whose caller can do without the answer.
    Low,
}

/// Whose request it is, and how urgent it is.
#[derive(Debug, Clone, Copy)]
pub struct Class {
    /// Tenant of the caller.
    pub tenant: Tenant,
    /// Urgency.
    pub priority: Priority,
}

impl From<Tenant> for Class {
    fn from(tenant: Tenant) -> Self {
        Self { tenant, priority: Priority::Normal }
    }
}

/// Rule that closed a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CloseReason {
    /// The batch has `max_batch_rows` rows, or the next request does not fit.
    Rows,
    /// The batch has `max_batch_bytes` bytes, or the next request does not fit.
    Bytes,
    /// The oldest request of the batch has waited for `max_batch_delay`.
    Delay,
    /// A longer wait would miss the deadline of one of the requests.
    Deadline,
    /// A worker is free, and waiting longer is expected to cost more latency than it saves.
    Idle,
    /// The queue is draining.
    Drain,
    /// The requests are sent apart from others, because a batch with them failed, or other requests of their tenant failed.
    Alone,
}

impl CloseReason {
    /// Name in metrics and results, such as `deadline`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rows => "rows",
            Self::Bytes => "bytes",
            Self::Delay => "delay",
            Self::Deadline => "deadline",
            Self::Idle => "idle",
            Self::Drain => "drain",
            Self::Alone => "alone",
        }
    }
}

/// Possible causes of the failure of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The worker reported the failure: the cause is the worker or a request.
    Worker,
    /// The features of the requests or the reply are too large: the cause is a request.
    Size,
    /// The features of the requests could not be looked up. The cause is neither the worker nor a request.
    Features,
}

/// Reason why a request is not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The request has no rows.
    #[error("the request has no rows, expected at least one")]
    Empty,
    /// The request has more rows than a batch may have.
    #[error("the request has more rows than a batch may have, {limit}")]
    Rows {
        /// `max_batch_rows`.
        limit: u64,
    },
    /// The features and request columns of the request have more bytes than a batch may have.
    #[error(
        "the features and columns of the request have more bytes than a batch may have, {limit} (max_batch_bytes)"
    )]
    Bytes {
        /// `max_batch_bytes`.
        limit: u64,
    },
    /// The answer is predicted to be too late.
    #[error("the predicted time until the answer is {predicted:.1?}, the limit is {limit:.1?}")]
    Late {
        /// Predicted time until the answer.
        predicted: Duration,
        /// Maximum time until the answer: the request's timeout or `max_predicted_wait`.
        limit: Duration,
    },
    /// `max_queue_requests`, `max_queue_rows` or `max_queue_bytes` is reached.
    #[error("the queue is full")]
    Full {
        /// Time after which the queue is likely to have room.
        retry_after: Duration,
    },
    /// The request has low priority, and a request of normal priority took its room.
    #[error("the queue is full, and requests of low priority made room for others")]
    Displaced {
        /// Time after which the queue is likely to have room.
        retry_after: Duration,
    },
    /// The queue is draining and admits no more requests.
    #[error("the server is stopping; retry on another server")]
    Draining,
}

/// Next action of a queue's driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Send this batch to its worker and ask again.
    Send(FormedBatch),
    /// Ask again at this time, or after the next event. `None`: only after the next event.
    Wait(Option<Time>),
}

/// A closed batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormedBatch {
    /// Id of the batch.
    pub batch: BatchId,
    /// Worker that receives the batch.
    pub worker: WorkerId,
    /// Requests in the order of service: by priority, and then by turn.
    pub requests: Vec<RequestId>,
    /// Number of rows of the requests.
    pub rows: u64,
    /// Number of rows including padding.
    pub padded_rows: u64,
    /// Rule that closed the batch.
    pub close_reason: CloseReason,
    /// Deadline of the most urgent request.
    pub deadline: Time,
    /// Largest number of earlier attempts of a request in the batch.
    pub previous_attempts: u32,
}
