//! The callers of a batch queue: keys in, the worker's rows for them out, as they come.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use arrow_array::RecordBatch;
use arrow_flight::{FlightData, SchemaAsIpc};
use arrow_ipc::writer::IpcWriteOptions;
use arrow_schema::SchemaRef;
use forebay_inference::{
    Lookup,
    queue::{Answer, Failure, Refusal},
};
use forebay_proto::{
    code_name,
    v1::{self, InferRequest, InferResult},
};
use futures::{
    StreamExt,
    future::{AbortHandle, BoxFuture, abortable},
    stream,
    stream::FuturesUnordered,
};
use tonic::{Code, Status};

use super::{Exchange, Messages, stopping};
use crate::{
    flight::batches::BatchReader,
    queues::{Asked, Scored, Served},
    status,
    traces::{Span, number},
};

/// `None` if the request was taken back.
type Outcome = Option<Result<Answer<Scored>, Failure>>;

const TAKEN_BACK: &str = "the request was taken back";

/// A running exchange.
struct Caller {
    exchange: Exchange,
    served: Arc<Served>,
    queue: String,
    lookup: Lookup,
    keys: BatchReader,
    /// Number of the next request.
    next: u64,
    asked: FuturesUnordered<BoxFuture<'static, (u64, Option<Span>, Outcome)>>,
    /// How these are taken back, by their ids; of two with one id, the later one.
    handles: HashMap<u64, AbortHandle>,
    /// A message that was read while there were as many as there may be.
    parked: Option<FlightData>,
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
        queue: infer.queue.clone(),
        lookup,
        keys: BatchReader::new("keys"),
        next: 0,
        asked: FuturesUnordered::new(),
        handles: HashMap::new(),
        parked: None,
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
            let has_room = self.asked.len() < self.served.max_pending;
            if !self.stopping
                && has_room
                && let Some(message) = self.parked.take()
            {
                self.ask(&message).await?;
                continue;
            }
            let reads = !self.is_done && !self.stopping && self.parked.is_none();
            if self.asked.is_empty() && !reads {
                return if self.stopping { Err(stopping()) } else { Ok(None) };
            }
            let guard = self.exchange.context.guard.clone();
            tokio::select! {
                biased;
                () = guard.handed_over() => return Err(stopping()),
                () = guard.drained(), if !self.stopping => self.stopping = true,
                Some((id, span, answer)) = self.asked.next(), if !self.asked.is_empty() => {
                    self.handles.remove(&id);
                    trace(span, &answer);
                    self.answer(id, answer);
                }
                message = self.exchange.messages.next(), if reads => match message.transpose()? {
                    Some(message) if self.take_back(&message)? => {}
                    Some(message) if has_room => self.ask(&message).await?,
                    Some(message) => self.parked = Some(message),
                    None => self.is_done = true,
                },
            }
        }
    }

    /// Takes a request back, if that is what a message asks.
    fn take_back(&mut self, message: &FlightData) -> Result<bool, Status> {
        if !message.data_header.is_empty() {
            return Ok(false);
        }
        let Some(id) = request(&message.app_metadata)?.cancel else { return Ok(false) };
        // One that has been answered meanwhile is not there any more.
        if let Some(handle) = self.handles.remove(&id) {
            handle.abort();
        }
        Ok(true)
    }

    /// Asks what a message asks. What is wrong with one request costs that one alone.
    async fn ask(&mut self, message: &FlightData) -> Result<(), Status> {
        // A token may be taken back while its exchange runs.
        self.exchange.context.check_access(&self.exchange.access, &self.served.features)?;
        let is_batch = BatchReader::is_batch(message);
        let keys = self.keys.read(message, self.exchange.context.online.max_keys());
        if !is_batch {
            return keys.map(drop);
        }
        let asked = request(&message.app_metadata)?;
        let id = asked.id.unwrap_or(self.next);
        self.next += 1;
        if asked.cancel.is_some() {
            let message = "cancel: stands in a message without a batch, and takes another request back";
            self.fail(id, &of_status(&Status::invalid_argument(message)));
            return Ok(());
        }
        let span = self.span(&asked);
        if let Err(status) = self.admit(id, keys, asked.timeout, span).await {
            self.fail(id, &of_status(&status));
        }
        Ok(())
    }

    async fn admit(
        &mut self,
        id: u64,
        keys: Result<Option<RecordBatch>, Status>,
        timeout: f64,
        mut span: Option<Span>,
    ) -> Result<(), Status> {
        let keys = keys?.ok_or_else(|| Status::invalid_argument("keys: there are none"))?;
        let timeout = Duration::try_from_secs_f64(timeout).map_err(|_| {
            Status::invalid_argument(format!("timeout: is {timeout}, expected seconds of 0 or more"))
        })?;
        let timeout = (!timeout.is_zero()).then_some(timeout);
        let failed =
            |error| self.exchange.context.datasets.stream_status(&self.served.features.dataset, &error);
        let rows = keys.num_rows() as u64;
        let keys = self.lookup.encode(&keys).await.map_err(failed)?;
        let sizes = (rows, keys.row_bytes().saturating_mul(rows), keys.bytes());
        if let Some(span) = &mut span {
            span.set("forebay.rows", number(rows));
        }
        let asked = Asked { keys: Arc::new(keys), trace: span.as_ref().map(|span| span.trace().clone()) };
        match self.served.queue.ask(asked, sizes, timeout) {
            Ok(pending) => {
                let (answer, handle) = abortable(pending.answer());
                self.handles.insert(id, handle);
                self.asked.push(Box::pin(async move { (id, span, answer.await.ok()) }));
            }
            Err(failure) => {
                if let Some(span) = &mut span {
                    span.fail(failure.to_string());
                }
                self.fail(id, &of_failure(&failure));
            }
        }
        Ok(())
    }

    /// The span of a request that came now, if it or its exchange is traced.
    fn span(&self, asked: &InferRequest) -> Option<Span> {
        let Exchange { context, trace, .. } = &self.exchange;
        let mut span = context.traces.within("request", &asked.traceparent, trace.as_ref())?;
        span.set("forebay.queue", self.queue.clone());
        Some(span)
    }

    fn answer(&mut self, id: u64, answer: Outcome) {
        let answer = match answer {
            Some(Ok(answer)) => answer,
            Some(Err(failure)) => return self.fail(id, &of_failure(&failure)),
            None => return self.fail(id, &of_status(&Status::cancelled(TAKEN_BACK))),
        };
        let Scored { schema, rows, features } = answer.value;
        if self.schema.get_or_insert_with(|| Arc::clone(&schema)).fields() != schema.fields() {
            let message =
                "this worker replies with other columns than the ones before; begin another exchange";
            return self.fail(id, &of_status(&Status::failed_precondition(message)));
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
        if !std::mem::replace(&mut self.sent_schema, true) {
            self.ready.push_back(FlightData::from(SchemaAsIpc::new(&schema, &IpcWriteOptions::default())));
        }
        self.ready.push_back(rows.with_app_metadata(self.exchange.encoding.encode(&about)));
    }

    fn fail(&mut self, id: u64, why: &v1::Failure) {
        let result = InferResult { id, error: Some(why.clone()), ..InferResult::default() };
        let metadata = self.exchange.encoding.encode(&result);
        self.ready.push_back(FlightData::new().with_app_metadata(metadata));
    }
}

/// Ends the span of a request that has been answered.
fn trace(span: Option<Span>, answer: &Outcome) {
    let Some(mut span) = span else { return };
    match answer {
        Some(Ok(answer)) => {
            span.set("forebay.batch_rows", number(answer.rows));
            span.set("forebay.reason", answer.reason.name());
            span.set("forebay.queue_seconds", answer.queued.as_secs_f64());
            span.set("forebay.gather_seconds", answer.gathered.as_secs_f64());
            span.set("forebay.worker_seconds", answer.computed.as_secs_f64());
        }
        Some(Err(failure)) => span.fail(failure.to_string()),
        None => span.fail(TAKEN_BACK.to_owned()),
    }
}

fn request(metadata: &[u8]) -> Result<InferRequest, Status> {
    if metadata.is_empty() {
        return Ok(InferRequest::default());
    }
    let encoding = forebay_proto::Encoding::of(metadata);
    encoding.decode("InferRequest", metadata).map_err(|error| status::of_decode(&error))
}

/// A failure of the queue as its caller is told.
fn of_failure(failure: &Failure) -> v1::Failure {
    let code = match failure {
        Failure::Refused(Refusal::Empty | Refusal::Rows { .. } | Refusal::Bytes { .. }) => {
            Code::InvalidArgument
        }
        Failure::Refused(Refusal::Late { .. } | Refusal::Full { .. }) => Code::ResourceExhausted,
        Failure::Refused(Refusal::Draining) | Failure::Lost { .. } => Code::Unavailable,
        Failure::Expired { .. } => Code::DeadlineExceeded,
        Failure::Features(_) => Code::FailedPrecondition,
        Failure::Failed(_) => Code::Internal,
    };
    let retry_after = failure.retry_after().map(|time| time.as_secs_f64());
    v1::Failure { code: code_name(code).to_owned(), message: status::clip(&failure.to_string()), retry_after }
}

fn of_status(status: &Status) -> v1::Failure {
    v1::Failure {
        code: code_name(status.code()).to_owned(),
        message: status.message().to_owned(),
        retry_after: None,
    }
}
