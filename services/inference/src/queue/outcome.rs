//! What comes of requests: batches for workers, answers and failures for callers, counts for people.

use std::{collections::HashMap, fmt, time::Duration};

use serde::Serialize;
use tokio::time::Instant;
use utoipa::ToSchema;

use super::{BatchId, Coefficients, Load, Reason, Refusal, forecast::Typical};

/// How the rows of a batch are shared out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// Rows of each request, in order.
    pub sizes: Vec<u64>,
    /// Rows of all, with those that pad the batch.
    pub padded: u64,
}

/// What became of requests since the queue began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct Outcomes {
    /// That were let in.
    pub admitted: u64,
    /// Rows of these.
    pub admitted_rows: u64,
    /// Bytes of the features of these.
    pub admitted_bytes: u64,
    /// That were not.
    pub refused: u64,
    /// That got an answer.
    pub answered: u64,
    /// Whose time was over before.
    pub expired: u64,
    /// That nobody waited for any more.
    pub cancelled: u64,
    /// Whose worker failed or died.
    pub failed: u64,
}

impl Outcomes {
    /// The mean request.
    pub(super) fn typical(&self) -> Option<Typical> {
        let rows = self.admitted_rows as f64;
        let typical =
            Typical { rows: rows / self.admitted as f64, row_bytes: self.admitted_bytes as f64 / rows };
        (self.admitted_rows > 0).then_some(typical)
    }
}

/// A queue, for people.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct QueueStatus {
    /// What there is now.
    pub load: Load,
    /// What a batch takes, in seconds.
    pub model: Coefficients,
    /// How far the model is off, in the mean, in seconds.
    pub model_error: f64,
    /// What became of requests.
    pub outcomes: Outcomes,
    /// Batches by why they were closed.
    #[schema(value_type = HashMap<String, u64>)]
    pub reasons: HashMap<&'static str, u64>,
}

/// A batch for a worker.
#[derive(Debug)]
pub struct Batch<P> {
    /// Names it in the reply.
    pub id: BatchId,
    /// What its requests carry, in order.
    pub payloads: Vec<P>,
    /// Rows of the requests.
    pub rows: u64,
    /// Rows that it is to have, with those that pad it.
    pub padded: u64,
    /// Why it was closed.
    pub reason: Reason,
    /// When its most urgent request expires.
    pub deadline: Instant,
    /// How often requests of it were given to a worker before.
    pub attempts: u32,
}

/// A request's share of a reply.
#[derive(Debug)]
pub struct Answer<R> {
    /// What the worker sent for it.
    pub value: R,
    /// From arrival until its batch was closed.
    pub queued: Duration,
    /// Then until the batch was gathered and on its way.
    pub gathered: Duration,
    /// Then until the reply was there.
    pub computed: Duration,
    /// Rows of the batch.
    pub rows: u64,
    /// Why the batch was closed.
    pub reason: Reason,
}

/// Why a request has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// It was not let in.
    Refused(Refusal),
    /// Its time was over.
    Expired {
        /// How long it was here.
        waited: Duration,
        /// Whether any worker was there at the end.
        had_workers: bool,
    },
    /// Workers died with it.
    Lost {
        /// How many.
        attempts: u32,
    },
    /// Its features could not be had, and why.
    Features(String),
    /// Its worker could not compute it, and why.
    Failed(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(Refusal::Empty) => f.write_str("it has no rows, expected at least one"),
            Self::Refused(Refusal::Rows { limit }) => write!(f, "more rows than a batch may have, {limit}"),
            Self::Refused(Refusal::Bytes { limit }) => {
                write!(f, "its features have more bytes than a batch may have, {limit}")
            }
            Self::Refused(Refusal::Late { predicted, limit }) => {
                write!(f, "an answer would take {predicted:.1?}, it may take {limit:.1?}")
            }
            Self::Refused(Refusal::Full { .. }) => f.write_str("the queue is full"),
            Self::Refused(Refusal::Draining) => f.write_str("the server is stopping; go on on another one"),
            Self::Expired { waited, had_workers: true } => write!(f, "no answer came within {waited:.1?}"),
            Self::Expired { waited, had_workers: false } => {
                write!(f, "no answer came within {waited:.1?}; no worker serves the queue")
            }
            Self::Lost { attempts } => write!(f, "{attempts} workers died with it"),
            Self::Features(why) => write!(f, "its features can't be had: {why}"),
            Self::Failed(why) => write!(f, "the worker failed: {why}"),
        }
    }
}

impl Failure {
    /// After what time it is worth another try, if that is known.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused(Refusal::Late { predicted, limit }) => Some(predicted.saturating_sub(*limit)),
            Self::Refused(Refusal::Full { retry_after }) => Some(*retry_after),
            _ => None,
        }
    }
}
