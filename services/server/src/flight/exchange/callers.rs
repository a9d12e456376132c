//! The callers of a batch queue: keys in, the worker's rows for them out, as they come.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use arrow_array::RecordBatch;
use arrow_flight::{FlightData, SchemaAsIpc};
use arrow_ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteContext, IpcWriteOptions};
use arrow_schema::SchemaRef;
use forebay_inference::{
    Lookup,
    queue::{Failure, Refusal},
};
use forebay_loader::Error;
use forebay_proto::v1::{self, InferRequest, InferResult};
use futures::{StreamExt, future::BoxFuture, stream, stream::FuturesUnordered};
use tonic::{Code, Status};

use super::{Exchange, Messages, stopping};
use crate::{
    flight::batches::BatchReader,
    queues::{Scored, Served},
    status,
};

/// A running exchange.
struct Caller {
    exchange: Exchange,
    served: Arc<Served>,
    lookup: Lookup,
    keys: BatchReader,
    /// Number of the next request.
    next: u64,
    asked: FuturesUnordered<
        BoxFuture<'static, (u64, Result<forebay_inference::queue::Answer<Scored>, Failure>)>,
    >,
    /// That of the answers, once there was one.
    schema: Option<SchemaRef>,
    sent_schema: bool,
    ready: VecDeque<FlightData>,
    /// The caller sends no more.
    is_done: bool,
    stopping: bool,
}

/// An answer or an error for each batch of keys; ends when all that were sent are there.
pub(super) async fn answers(exchange: Exchange, infer: &v1::Infer) -> Result<Messages, Status> {
    let context = &exchange.context;
    let served = context.queues.get(&infer.queue, &exchange.access)?;
    let lookup = context.online.lookup(&context.datasets, &exchange.access, &served.features).await?;
    let caller = Caller {
        exchange,
        served,
        lookup,
        keys: BatchReader::new("keys"),
        next: 0,
        asked: FuturesUnordered::new(),
        schema: None,
        sent_schema: false,
        ready: VecDeque::new(),
        is_done: false,
        stopping: false,
    };
    let messages = stream::unfold(Some(caller), |caller| async {
        let mut caller = caller?;
        match caller.step().await {
            Ok(Some(message)) => Some((Ok(message), Some(caller))),
            Ok(None) => None,
            Err(status) => Some((Err(status), None)),
        }
    });
    Ok(messages.boxed())
}

impl Caller {
    /// The next message; `None` at the end.
    async fn step(&mut self) -> Result<Option<FlightData>, Status> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Ok(Some(message));
            }
            let reads = !self.is_done && !self.stopping && self.asked.len() < self.served.max_pending;
            if self.asked.is_empty() && !reads {
                return if self.stopping { Err(stopping()) } else { Ok(None) };
            }
            let guard = self.exchange.context.guard.clone();
            tokio::select! {
                biased;
                () = guard.handed_over() => return Err(stopping()),
                () = guard.drained(), if !self.stopping => self.stopping = true,
                Some((id, answer)) = self.asked.next(), if !self.asked.is_empty() => self.answer(id, answer)?,
                message = self.exchange.messages.next(), if reads => match message.transpose()? {
                    Some(message) => self.ask(&message).await?,
                    None => self.is_done = true,
                },
            }
        }
    }

    async fn ask(&mut self, message: &FlightData) -> Result<(), Status> {
        let Some(keys) = self.keys.read(message, self.exchange.context.online.max_keys())? else {
            return Ok(());
        };
        // A token may be taken back while its exchange runs.
        self.exchange.context.check_access(&self.exchange.access, &self.served.features)?;
        let asked = request(&message.app_metadata)?;
        let id = asked.id.unwrap_or(self.next);
        self.next += 1;
        let timeout = Duration::try_from_secs_f64(asked.timeout).map_err(|_| {
            Status::invalid_argument(format!("timeout: is {}, expected seconds", asked.timeout))
        })?;
        let timeout = (!timeout.is_zero()).then_some(timeout);
        let rows = keys.num_rows() as u64;
        let pending = match self.lookup.encode(&keys).await {
            Ok(keys) => {
                let bytes = keys.row_bytes().saturating_mul(rows);
                self.served.queue.ask(Arc::new(keys), rows, bytes, timeout)
            }
            Err(error) => return self.fail(id, &of_load(&self.exchange, &self.served, &error)),
        };
        match pending {
            Ok(pending) => self.asked.push(Box::pin(async move { (id, pending.answer().await) })),
            Err(failure) => self.fail(id, &of_failure(&failure))?,
        }
        Ok(())
    }

    fn answer(
        &mut self,
        id: u64,
        answer: Result<forebay_inference::queue::Answer<Scored>, Failure>,
    ) -> Result<(), Status> {
        let answer = match answer {
            Ok(answer) => answer,
            Err(failure) => return self.fail(id, &of_failure(&failure)),
        };
        let Scored { rows, features } = answer.value;
        let schema = rows.schema();
        if *self.schema.get_or_insert_with(|| Arc::clone(&schema)) != schema {
            let message = "a worker replies with other columns than the one before; begin another exchange";
            return Err(Status::failed_precondition(message));
        }
        let about = InferResult {
            id,
            error: None,
            features: Some((*features).clone()),
            queue_seconds: answer.queued.as_secs_f64(),
            gather_seconds: answer.gathered.as_secs_f64(),
            worker_seconds: answer.computed.as_secs_f64(),
            batch_rows: answer.rows,
            reason: answer.reason.name().to_owned(),
        };
        if self.next_is_first() {
            self.ready.push_back(FlightData::from(SchemaAsIpc::new(&schema, &IpcWriteOptions::default())));
        }
        let metadata = self.exchange.encoding.encode(&about);
        self.ready.push_back(encoded(&rows)?.with_app_metadata(metadata));
        Ok(())
    }

    /// Whether the schema has not been sent.
    fn next_is_first(&mut self) -> bool {
        !std::mem::replace(&mut self.sent_schema, true)
    }

    fn fail(&mut self, id: u64, why: &v1::Failure) -> Result<(), Status> {
        let result = InferResult { id, error: Some(why.clone()), ..InferResult::default() };
        let metadata = self.exchange.encoding.encode(&result);
        self.ready.push_back(FlightData::new().with_app_metadata(metadata));
        Ok(())
    }
}

fn request(metadata: &[u8]) -> Result<InferRequest, Status> {
    if metadata.is_empty() {
        return Ok(InferRequest::default());
    }
    let encoding = forebay_proto::Encoding::of(metadata);
    encoding.decode("InferRequest", metadata).map_err(|error| status::of_decode(&error))
}

/// A batch as a message.
fn encoded(rows: &RecordBatch) -> Result<FlightData, Status> {
    let (mut tracker, options) = (DictionaryTracker::new(false), IpcWriteOptions::default());
    let (_, batch) = IpcDataGenerator::default()
        .encode(rows, &mut tracker, &options, &mut IpcWriteContext::default())
        .map_err(|error| Status::internal(error.to_string()))?;
    Ok(batch.into())
}

/// A failure of the queue as its caller is told.
fn of_failure(failure: &Failure) -> v1::Failure {
    let code = match failure {
        Failure::Refused(Refusal::Rows { .. } | Refusal::Bytes { .. }) => Code::InvalidArgument,
        Failure::Refused(Refusal::Late { .. } | Refusal::Full { .. }) => Code::ResourceExhausted,
        Failure::Refused(Refusal::Draining) | Failure::Lost { .. } => Code::Unavailable,
        Failure::Expired { .. } => Code::DeadlineExceeded,
        Failure::Failed(_) => Code::Internal,
    };
    let retry_after = failure.retry_after().map(|time| time.as_secs_f64());
    v1::Failure {
        code: status::name(code).to_owned(),
        message: status::clip(&failure.to_string()),
        retry_after,
    }
}

fn of_load(exchange: &Exchange, served: &Served, error: &Error) -> v1::Failure {
    let status = exchange.context.datasets.stream_status(&served.features.dataset, error);
    v1::Failure {
        code: status::name(status.code()).to_owned(),
        message: status.message().to_owned(),
        retry_after: None,
    }
}
