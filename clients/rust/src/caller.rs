//! The caller's side of a batch queue.

use std::time::Duration;

use arrow_array::RecordBatch;
use forebay_proto::{
    code_of,
    v1::{Command, Failure, Infer, InferRequest, InferResult},
};
use prost::Message;
use tokio::time::Instant;
use tonic::Code;

use crate::{
    Batch, Error,
    requests::{About, Answered, Asked, Requests},
    route::Route,
};

/// Asks a batch queue. Any number of requests may be on their way at a time, by one exchange with a server, of which they
/// are answered in any order; it is closed when this is dropped, or has been idle for
/// [`Config::idle_exchange`](crate::Config), and opened again when needed.
pub struct Caller {
    queue: String,
    requests: Requests<InferResult>,
}

/// What a worker computed.
#[derive(Debug, Clone)]
pub struct Answer {
    /// A row for each key, in their order.
    pub rows: Batch,
    /// How long it took where, and of which snapshots the features were.
    pub about: InferResult,
}

impl About for InferResult {
    const IN_ORDER: bool = false;

    fn request(&self) -> u64 {
        self.id
    }

    fn withdrawal(number: u64) -> Option<Vec<u8>> {
        Some(InferRequest { cancel: Some(number), ..InferRequest::default() }.encode_to_vec())
    }
}

impl Caller {
    /// Nothing is opened yet.
    pub(crate) fn new(route: Route, queue: &str) -> Self {
        let infer = Infer { queue: queue.to_owned() };
        let requests = Requests::new(route, Command { infer: Some(infer), ..Command::default() });
        Self { queue: queue.to_owned(), requests }
    }

    pub(crate) async fn open(route: Route, queue: &str) -> Result<Self, Error> {
        let caller = Self::new(route, queue);
        let route = caller.requests.route();
        route.run(route.config().deadline, || caller.requests.pipeline()).await?;
        Ok(caller)
    }

    /// What the queue's workers make of `keys`; those of all requests have columns of the same names and types. `timeout` is
    /// the time in which the answer is of use, from now on; without one it is the queue's own. It waits while
    /// [`Config::max_requests`](crate::Config) are on their way. Once it is sent it is not asked again, whatever happens.
    /// Cancel-safe: dropping it takes the request back, and disturbs no other.
    ///
    /// # Errors
    /// [`Error::Refused`] when there is no answer to this request: the queue is full, its time is over, the worker failed.
    /// [`Error::Lost`] or a status when the exchange ended meanwhile: the next request opens another one. [`Error::Request`]
    /// for keys that can't be sent. [`Error::GaveUp`] when no server was reached until the deadline.
    pub async fn ask(&self, keys: &RecordBatch, timeout: Option<Duration>) -> Result<Answer, Error> {
        let config = self.requests.route().config();
        let patience = timeout.map_or(config.deadline, |timeout| timeout.saturating_add(config.answer_grace));
        let asked = Asked::new(keys)?;
        let answered = tokio::time::timeout(patience, self.answered(&asked, timeout)).await;
        let Answered { rows, about } = answered.map_err(|_| self.late())??;
        if let Some(failure) = about.error {
            return Err(refused(failure));
        }
        let rows = rows.ok_or_else(|| Error::protocol("an answer came without rows"))?;
        if rows.rows() != keys.num_rows() as u64 {
            let (rows, keys) = (rows.rows(), keys.num_rows());
            return Err(Error::Foreign(format!("{rows} rows came for {keys} keys")));
        }
        Ok(Answer { rows, about })
    }

    async fn answered(
        &self,
        asked: &Asked,
        timeout: Option<Duration>,
    ) -> Result<Answered<InferResult>, Error> {
        let (route, began) = (self.requests.route(), Instant::now());
        let send = || async move {
            let place = self.requests.place().await;
            let pipeline = self.requests.pipeline().await?;
            let left = timeout.map(|timeout| timeout.saturating_sub(began.elapsed()));
            // 0 would be the queue's own.
            if left.is_some_and(|left| left.is_zero()) {
                return Err(self.late());
            }
            let timeout = left.map_or(0.0, |left| left.as_secs_f64());
            let metadata =
                |id| InferRequest { id: Some(id), timeout, ..InferRequest::default() }.encode_to_vec();
            let reply = pipeline.send(asked, metadata, place)?;
            Ok((reply, pipeline))
        };
        let deadline = timeout.unwrap_or(Duration::MAX).min(route.config().deadline);
        // The exchange ends when nobody has the pipeline.
        let (reply, _pipeline) = route.run(deadline, send).await?;
        reply.wait().await
    }

    fn late(&self) -> Error {
        Error::Refused {
            code: Code::DeadlineExceeded,
            message: format!("queue '{}': no answer came in time", self.queue),
            retry_after: None,
        }
    }
}

fn refused(failure: Failure) -> Error {
    let retry_after = failure.retry_after.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    Error::Refused { code: code_of(&failure.code), message: failure.message, retry_after }
}
