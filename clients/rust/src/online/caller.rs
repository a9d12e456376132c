//! The caller of a batch queue.

use std::{sync::Arc, time::Duration};

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
    exchange::{Exchange, PendingAnswer, Unanswered},
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
    /// Waits while [`Config::max_in_flight`](crate::Config::max_in_flight) requests are in flight. A request is sent again only if the
    /// server says that no worker has received it, because the queue has none there or the server stops: a caller of several servers
    /// thereby finds the one with the workers. Cancel-safe: dropping the future cancels the request and does not affect others.
    ///
    /// # Errors
    /// - [`Error::RequestRejected`] if the queue is full, the timeout expires, the worker fails, the message is larger than the server
    ///   accepts (`RESOURCE_EXHAUSTED`), or the exchange ends before the answer (`UNAVAILABLE`, or the code of the server). The next
    ///   request opens another exchange.
    /// - [`Error::Request`] if the keys cannot be encoded.
    /// - [`Error::Status`] if the server rejects the exchange.
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
        if timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Err(self.timed_out());
        }
        let answer = tokio::time::timeout(limit, self.answer(&encoded, timeout, priority)).await;
        let answer = answer.map_err(|_| self.timed_out())??;
        let (rows, metadata) = answer.into_rows(keys.num_rows())?;
        Ok(Answer { rows, metadata })
    }

    /// Sends the request until a server has accepted it, and waits for its answer.
    async fn answer(
        &self,
        keys: &EncodedRows,
        timeout: Option<Duration>,
        priority: Priority,
    ) -> Result<RawAnswer<InferResult>, Error> {
        let (route, began) = (self.requests.route(), Instant::now());
        let deadline = timeout.unwrap_or(Duration::MAX).min(route.config().retry_deadline);
        let mut attempts = route.attempts(self.requests.subject(), deadline);
        loop {
            let left = deadline.saturating_sub(began.elapsed());
            let send = |limit| self.send(keys, timeout.map(|timeout| (began, timeout)), priority, limit);
            // Holds the exchange, which ends when its last reference is dropped.
            let sent = route.run(self.requests.subject(), left, send).await;
            let (pending, exchange) =
                sent.map_err(|error| if error.is_limit() { without_answer(error) } else { error })?;
            let mut answer = pending.wait(None).await.map_err(|unanswered| match unanswered {
                Unanswered::Failed(error) => without_answer(error),
                Unanswered::NotProcessed => Error::protocol("requests of a queue have no order"),
            })?;
            let Some(failure) = answer.metadata.error.take() else { return Ok(answer) };
            let error = rejected(failure);
            if !route.retries() || !was_not_received(&error) {
                return Err(error);
            }
            // Another server may have a worker.
            self.requests.leave_after(&exchange, &error);
            drop(exchange);
            attempts.pause(error, route.targets()).await.map_err(|error| match error {
                late @ Error::RetryDeadlineExceeded { .. } => Error::RequestRejected {
                    code: Code::DeadlineExceeded,
                    message: format!("queue '{}': {late}", self.queue),
                    retry_after: None,
                },
                other => other,
            })?;
        }
    }

    /// Sends the request once. `time` is the start of the call and its timeout.
    async fn send(
        &self,
        keys: &EncodedRows,
        time: Option<(Instant, Duration)>,
        priority: Priority,
        limit: Option<Duration>,
    ) -> Result<(PendingAnswer<InferResult>, Arc<Exchange<InferResult>>), Error> {
        let permit = self.requests.permit().await;
        let exchange = self.requests.exchange(limit).await?;
        let remaining = time.map(|(began, timeout)| timeout.saturating_sub(began.elapsed()));
        // On the wire, 0 selects the timeout of the queue.
        if remaining.is_some_and(|remaining| remaining.is_zero()) {
            return Err(self.timed_out());
        }
        let timeout_seconds = remaining.map_or(0.0, |remaining| remaining.as_secs_f64());
        let metadata = |id| {
            let priority = priority.into();
            InferRequest { id: Some(id), timeout_seconds, priority, ..InferRequest::default() }
                .encode_to_vec()
        };
        // The server answers at the deadline, at the latest.
        let grace = self.requests.route().config().answer_grace / 2;
        let silence = remaining.map(|remaining| remaining.saturating_add(grace));
        match exchange.send(keys, metadata, permit, silence) {
            Ok(pending) => Ok((pending, exchange)),
            Err(error) => {
                // Another server may accept the size.
                self.requests.leave_after(&exchange, &error);
                Err(error)
            }
        }
    }

    fn timed_out(&self) -> Error {
        Error::RequestRejected {
            code: Code::DeadlineExceeded,
            message: format!("queue '{}': no answer within the timeout", self.queue),
            retry_after: None,
        }
    }
}

/// Returns true if a request that was rejected with `error` was received by no worker, so that it may be sent again. Only the server knows
/// that. It then recommends a time.
fn was_not_received(error: &Error) -> bool {
    matches!(error, Error::RequestRejected { code: Code::Unavailable, retry_after: Some(_), .. })
}

/// Returns the error of a request whose exchange ended with `error` before the answer, or whose message is too long. Whether a worker has
/// received it is unknown.
fn without_answer(error: Error) -> Error {
    let retry_after = error.retry_after();
    match error {
        Error::Status(status) => {
            let (code, message) = (status.code(), status.message().to_owned());
            Error::RequestRejected { code, message, retry_after }
        }
        Error::Lost { .. } => {
            Error::RequestRejected { code: Code::Unavailable, message: error.with_causes(), retry_after }
        }
        other => other,
    }
}

fn rejected(failure: Failure) -> Error {
    let retry_after =
        failure.retry_after_seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    Error::RequestRejected { code: code_of(&failure.code), message: failure.message, retry_after }
}
