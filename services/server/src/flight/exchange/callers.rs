//! Caller side of a batch queue: receives keys, and sends the worker's rows for them as they are computed.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use arrow_flight::FlightData;
use arrow_schema::SchemaRef;
use forebay_inference::{
    Lookup,
    queue::{Answer, Class, Failure, Priority},
};
use forebay_proto::v1::{self, InferRequest, InferResult};
use futures::{
    StreamExt,
    future::{AbortHandle, BoxFuture, abortable},
    stream,
    stream::FuturesUnordered,
};
use tonic::Status;

use super::stream::{Exchange, Messages, from_error, schema_message};
use crate::{
    Error,
    callers::{Account, Charge},
    connections::unsent_limit,
    drain::stopping,
    flight::batches::{BatchReader, Received, Rows},
    registry::queues::{Scored, Served},
    services::Services,
    traces::{Span, number},
};

/// Outcome of a request; `None` if it was cancelled.
type Outcome = Option<Result<Answer<Scored>, Failure>>;

/// A request that ended: its id and number, its span if it is traced, and the outcome.
type Ended = (u64, u64, Option<Span>, Outcome);

const CANCELLED: &str = "the request was cancelled";

/// A caller's stream.
struct Caller {
    exchange: Exchange,
    served: Arc<Served>,
    queue: String,
    lookup: Lookup,
    keys: BatchReader,
    /// Default id of the next request.
    next: u64,
    /// Unanswered requests.
    asked: FuturesUnordered<BoxFuture<'static, Ended>>,
    /// Numbers and cancel handles of requests, by id; of several with one id, of the last one.
    handles: HashMap<u64, (u64, AbortHandle)>,
    /// A message that was read while the limit of unanswered requests was reached.
    parked: Option<FlightData>,
    /// Schema of the answers, once known.
    schema: Option<SchemaRef>,
    sent_schema: bool,
    /// Messages to be sent, each with the charge of its answer.
    ready: VecDeque<(FlightData, Option<Charge>)>,
    /// True if the caller has sent its last message.
    is_done: bool,
    stopping: bool,
}

/// Streams an answer or an error for each batch of keys, and ends after the last answer.
pub(super) async fn answers(exchange: Exchange, infer: &v1::Infer) -> Result<Messages, Status> {
    let context = &exchange.context;
    let served = context.services.queues.get(&infer.queue, &exchange.access)?;
    let Services { online, datasets, .. } = &context.services;
    let lookup = online.lookup_of(datasets, &exchange.access, &served).await?;
    let account = Account::new(&context.services.callers, exchange.access.caller());
    let keys = BatchReader::of_requests(lookup.request_names(), online.max_keys(), account);
    let caller = Caller {
        exchange,
        served,
        queue: infer.queue.clone(),
        lookup,
        keys,
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
    let messages = stream::try_unfold(caller, |mut caller| async move {
        let message = caller.step().await?;
        Ok::<_, Status>(message.map(|message| (message, caller)))
    });
    Ok(messages.boxed())
}

impl Caller {
    /// The next message; `None` at the end.
    async fn step(&mut self) -> Result<Option<FlightData>, Status> {
        loop {
            if let Some((message, charge)) = self.ready.pop_front() {
                if let Some(charge) = charge {
                    self.exchange.answers.charge_next(charge);
                }
                return Ok(Some(message));
            }
            let has_room = self.asked.len() < self.served.max_pending;
            if !self.stopping
                && has_room
                && let Some(message) = self.parked.take()
            {
                self.ask(message).await?;
                continue;
            }
            let reads = !self.is_done && !self.stopping && self.parked.is_none();
            if self.asked.is_empty() && !reads {
                return if self.stopping { Err(stopping().into()) } else { Ok(None) };
            }
            let drain = self.exchange.context.services.drain.clone();
            tokio::select! {
                biased;
                () = drain.interrupted() => return Err(stopping().into()),
                () = drain.drained(), if !self.stopping => self.stopping = true,
                Some((id, number, span, answer)) = self.asked.next(), if !self.asked.is_empty() => {
                    // Of several requests with one id, the last one can be cancelled.
                    if self.handles.get(&id).is_some_and(|(last, _)| *last == number) {
                        self.handles.remove(&id);
                    }
                    trace(span, &answer);
                    self.answer(id, answer)?;
                }
                message = self.exchange.messages.next(), if reads => match message.transpose()? {
                    Some(message) if self.cancel(&message)? => {}
                    Some(message) if has_room => self.ask(message).await?,
                    Some(message) => self.parked = Some(message),
                    None => self.is_done = true,
                },
            }
        }
    }

    /// Cancels a request if the message says so. Returns true if it does.
    fn cancel(&mut self, message: &FlightData) -> Result<bool, Error> {
        if !message.data_header.is_empty() {
            return Ok(false);
        }
        let Some(id) = request(&message.app_metadata)?.cancel else { return Ok(false) };
        // An answered request no longer has a handle.
        if let Some((_, handle)) = self.handles.remove(&id) {
            handle.abort();
        }
        Ok(true)
    }

    /// Queues the request of a message. An invalid request fails alone.
    async fn ask(&mut self, message: FlightData) -> Result<(), Error> {
        // A token may be revoked while the stream runs.
        self.exchange.context.check_access(&self.exchange.access, &self.served.features)?;
        let (metadata, has_header) = (message.app_metadata.clone(), !message.data_header.is_empty());
        let Exchange { context, access, .. } = &self.exchange;
        let Received::Batch(keys) = self.keys.read(&context.services.online, access, message).await? else {
            if !has_header && !metadata.is_empty() {
                let id = request(&metadata)?.id.unwrap_or(self.next);
                self.next += 1;
                self.fail(id, &from_error(&Error::invalid("the message has neither a batch nor `cancel`")));
            }
            return Ok(());
        };
        let asked = request(&metadata)?;
        drop(metadata);
        let id = asked.id.unwrap_or(self.next);
        self.next += 1;
        if asked.cancel.is_some() {
            let message = "cancel: is allowed only in a message without a batch; it cancels another request";
            self.fail(id, &from_error(&Error::invalid(message)));
            return Ok(());
        }
        let span = self.span(&asked);
        if let Err(error) = self.admit(id, keys, &asked, span).await {
            self.fail(id, &from_error(&error));
        }
        Ok(())
    }

    async fn admit(
        &mut self,
        id: u64,
        keys: Result<Rows, Error>,
        asked: &InferRequest,
        mut span: Option<Span>,
    ) -> Result<(), Error> {
        let request = keys?;
        let seconds = asked.timeout_seconds;
        let timeout = Duration::try_from_secs_f64(seconds).map_err(|_| {
            Error::invalid(format!(
                "timeout_seconds: is {seconds:?}, expected a number of seconds from 0 to 1e19"
            ))
        })?;
        let priority = match v1::Priority::try_from(asked.priority) {
            Ok(v1::Priority::Normal) => Priority::Normal,
            Ok(v1::Priority::Low) => Priority::Low,
            Err(_) => {
                let found = asked.priority;
                return Err(Error::invalid(format!("priority: is {found}, expected 0 (NORMAL) or 1 (LOW)")));
            }
        };
        let timeout = (seconds != 0.0).then_some(timeout);
        let failed = |error| self.exchange.context.services.datasets.read_error(self.served.reads(), error);
        let rows = request.rows.num_rows() as u64;
        let keys = self.lookup.encode(&request.rows).await.map_err(failed)?;
        drop(request);
        let sizes = (rows, keys.answer_bytes(), keys.memory_bytes());
        if let Some(span) = &mut span {
            span.set("forebay.rows", number(rows));
        }
        let trace = span.as_ref().map(|span| span.trace().clone());
        let callers = &self.exchange.context.services.callers;
        let asked = self.served.queued(callers, self.exchange.access.caller(), priority, keys, 0, trace)?;
        let class = Class { tenant: self.exchange.access.tenant(), priority };
        match self.served.queue.submit_for(class, asked, sizes, timeout) {
            Ok(pending) => {
                let (answer, handle) = abortable(pending.answer());
                let number = self.next;
                self.handles.insert(id, (number, handle));
                self.asked.push(Box::pin(async move { (id, number, span, answer.await.ok()) }));
            }
            Err(failure) => {
                if let Some(span) = &mut span {
                    span.fail(failure.to_string());
                }
                self.fail(id, &from_failure(&failure));
            }
        }
        Ok(())
    }

    /// Starts the span of a request, if the request or its stream is traced.
    fn span(&self, asked: &InferRequest) -> Option<Span> {
        let Exchange { context, trace, .. } = &self.exchange;
        let mut span = context.services.traces.within("request", &asked.traceparent, trace.as_ref())?;
        span.set("forebay.queue", self.queue.clone());
        Some(span)
    }

    /// Prepares the messages of an answer.
    ///
    /// # Errors
    /// If the client does not receive its answers in time.
    fn answer(&mut self, id: u64, answer: Outcome) -> Result<(), Error> {
        let answer = match answer {
            Some(Ok(answer)) => answer,
            Some(Err(failure)) => {
                self.fail(id, &from_failure(&failure));
                return Ok(());
            }
            None => {
                self.fail(id, &from_error(&Error::cancelled(CANCELLED)));
                return Ok(());
            }
        };
        let Scored { schema, rows, features, charge, replied } = answer.value;
        let limit = unsent_limit(self.exchange.context.services.limits.receive_timeout, &charge);
        if replied.elapsed() > limit {
            return Err(Error::timeout(format!(
                "an answer of the exchange was not received within {limit:?}; receive answers faster or ask less at a time"
            )));
        }
        if self.schema.get_or_insert_with(|| Arc::clone(&schema)).fields() != schema.fields() {
            let message = "this worker replies with other columns than previous workers; open another stream";
            self.fail(id, &from_error(&Error::precondition(message)));
            return Ok(());
        }
        let about = InferResult {
            id,
            error: None,
            features: Some((*features).clone()),
            queue_seconds: answer.queued.as_secs_f64(),
            gather_seconds: answer.gathered.as_secs_f64(),
            worker_seconds: answer.computed.as_secs_f64(),
            batch_rows: answer.rows,
            close_reason: answer.close_reason.name().to_owned(),
        };
        if !std::mem::replace(&mut self.sent_schema, true) {
            self.ready.push_back((schema_message(&schema), None));
        }
        let message = rows.with_app_metadata(self.exchange.encoding.encode(&about));
        self.ready.push_back((message, Some(charge)));
        Ok(())
    }

    fn fail(&mut self, id: u64, why: &v1::Failure) {
        let result = InferResult { id, error: Some(why.clone()), ..InferResult::default() };
        let metadata = self.exchange.encoding.encode(&result);
        self.ready.push_back((FlightData::new().with_app_metadata(metadata), None));
    }
}

/// Ends the span of an answered request.
fn trace(span: Option<Span>, answer: &Outcome) {
    let Some(mut span) = span else { return };
    match answer {
        Some(Ok(answer)) => {
            span.set("forebay.batch_rows", number(answer.rows));
            span.set("forebay.reason", answer.close_reason.name());
            span.set("forebay.queue_seconds", answer.queued.as_secs_f64());
            span.set("forebay.gather_seconds", answer.gathered.as_secs_f64());
            span.set("forebay.worker_seconds", answer.computed.as_secs_f64());
        }
        Some(Err(failure)) => span.fail(failure.to_string()),
        None => span.fail(CANCELLED.to_owned()),
    }
}

fn request(metadata: &[u8]) -> Result<InferRequest, Error> {
    if metadata.is_empty() {
        return Ok(InferRequest::default());
    }
    let encoding = forebay_proto::Encoding::of(metadata);
    encoding.decode("InferRequest", metadata).map_err(Error::from)
}

/// Converts a failure of the queue to its wire form.
fn from_failure(failure: &Failure) -> v1::Failure {
    let limited = from_error(&Error::from(failure));
    // The queue predicts the time of its own limits.
    let predicted = failure.retry_after().map(|time| time.as_secs_f64());
    v1::Failure { retry_after_seconds: predicted.or(limited.retry_after_seconds), ..limited }
}
