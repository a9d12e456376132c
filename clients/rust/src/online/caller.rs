//! The caller of a batch queue.

use std::time::Duration;

use arrow_array::RecordBatch;
use forebay_proto::{
    code_of,
    v1::{Command, Failure, Infer, InferRequest, InferResult, Priority},
};
use prost::Message;
use tokio::time::Instant;
use tonic::Code;

use super::{
    answer::{AnswerMetadata, RawAnswer},
    exchange::Unanswered,
    requests::Requests,
};
use crate::{Batch, Error, route::Route, wire::EncodedRows};

/// A caller of a batch queue. Any number of requests can be in flight, and answers arrive in any order. Requests share one
/// DoExchange stream, which is closed after [`Config::idle_timeout`](crate::Config::idle_timeout) or on drop, and reopened when
/// needed.
pub struct Caller {
    queue: String,
    requests: Requests<InferResult>,
}

/// The answer of a batch queue.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Rows that a worker computed: one for each key, in the order of the keys.
    pub rows: Batch,
    /// Duration of each stage, and snapshots of the features.
    pub metadata: InferResult,
}

impl AnswerMetadata for InferResult {
    const IN_ORDER: bool = false;

    fn request(&self) -> u64 {
        self.id
    }

    fn cancellation(number: u64) -> Option<Vec<u8>> {
        Some(InferRequest { cancel: Some(number), ..InferRequest::default() }.encode_to_vec())
    }
}

impl Caller {
    /// Creates a caller without opening an exchange.
    pub(crate) fn new(route: Route, queue: &str) -> Self {
        let infer = Infer { queue: queue.to_owned() };
        let requests = Requests::new(route, Command { infer: Some(infer), ..Command::default() });
        Self { queue: queue.to_owned(), requests }
    }

    /// Creates a caller and opens its exchange.
    pub(crate) async fn open(route: Route, queue: &str) -> Result<Self, Error> {
        let caller = Self::new(route, queue);
        caller.requests.open().await?;
        Ok(caller)
    }

    /// Requests the answer of the queue's workers for `keys`. All requests must have columns of the same names and types.
    ///
    /// `timeout` is the time until the answer is useless, from the start of the call. The default is the timeout of the queue.
    /// Waits while [`Config::max_in_flight`](crate::Config::max_in_flight) requests are in flight. A request that was sent is
    /// never sent again. Cancel-safe: dropping the future cancels the request and does not affect others.
    ///
    /// # Errors
    /// - [`Error::RequestRejected`] if the queue is full, the timeout expires, or the worker fails.
    /// - [`Error::Lost`] or [`Error::Status`] if the exchange ends before the answer. The next request opens another exchange.
    /// - [`Error::Request`] if the keys cannot be encoded.
    /// - [`Error::RetryDeadlineExceeded`] if no server was reached in time.
    pub async fn ask(&self, keys: &RecordBatch, timeout: Option<Duration>) -> Result<Answer, Error> {
        self.ask_with_priority(keys, timeout, Priority::Normal).await
    }

    /// As [`ask`](Self::ask), with a priority.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub async fn ask_with_priority(
        &self,
        keys: &RecordBatch,
        timeout: Option<Duration>,
        priority: Priority,
    ) -> Result<Answer, Error> {
        let config = self.requests.route().config();
        let limit =
            timeout.map_or(config.retry_deadline, |timeout| timeout.saturating_add(config.answer_grace));
        let encoded = EncodedRows::new(keys)?;
        let answer = tokio::time::timeout(limit, self.answer(&encoded, timeout, priority)).await;
        let mut answer = answer.map_err(|_| self.timed_out())??;
        if let Some(failure) = answer.metadata.error.take() {
            return Err(rejected(failure));
        }
        let (rows, metadata) = answer.into_rows(keys.num_rows())?;
        Ok(Answer { rows, metadata })
    }

    async fn answer(
        &self,
        keys: &EncodedRows,
        timeout: Option<Duration>,
        priority: Priority,
    ) -> Result<RawAnswer<InferResult>, Error> {
        let (route, began) = (self.requests.route(), Instant::now());
        let send = || async move {
            let permit = self.requests.permit().await;
            let exchange = self.requests.exchange().await?;
            let remaining = timeout.map(|timeout| timeout.saturating_sub(began.elapsed()));
            // On the wire, 0 selects the timeout of the queue.
            if remaining.is_some_and(|remaining| remaining.is_zero()) {
                return Err(self.timed_out());
            }
            let timeout_seconds = remaining.map_or(0.0, |remaining| remaining.as_secs_f64());
            let metadata = |id| {
                let priority = priority.into();
                let request =
                    InferRequest { id: Some(id), timeout_seconds, priority, ..InferRequest::default() };
                request.encode_to_vec()
            };
            let pending = exchange.send(keys, metadata, permit)?;
            Ok((pending, exchange))
        };
        let deadline = timeout.unwrap_or(Duration::MAX).min(route.config().retry_deadline);
        // Holds the exchange, which ends when its last reference is dropped.
        let (pending, _exchange) = route.run(self.requests.subject(), deadline, send).await?;
        pending.wait().await.map_err(|unanswered| match unanswered {
            Unanswered::Failed(error) => error,
            Unanswered::NotProcessed => Error::protocol("requests of a queue have no order"),
        })
    }

    fn timed_out(&self) -> Error {
        Error::RequestRejected {
            code: Code::DeadlineExceeded,
            message: format!("queue '{}': no answer within the timeout", self.queue),
            retry_after: None,
        }
    }
}

fn rejected(failure: Failure) -> Error {
    let retry_after =
        failure.retry_after_seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    Error::RequestRejected { code: code_of(&failure.code), message: failure.message, retry_after }
}
