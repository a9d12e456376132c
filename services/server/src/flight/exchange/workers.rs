//! Worker side of a batch queue: sends batches of features and receives replies.

use std::sync::Arc;

use arrow_flight::FlightData;
use arrow_schema::SchemaRef;
use dashmap::DashMap;
use forebay_inference::{
    Lookup,
    queue::{Batch, BatchId, Failure, FeaturesFailure, Notice, Replies, Worker, WorkerId},
};
use forebay_proto::{
    Encoding,
    v1::{self, BatchReply, BatchRequest, LookupMetadata},
};
use futures::{StreamExt, stream};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::task::AbortOnDropHandle;
use tonic::{Code, Status};

use super::{
    reply_rows,
    stream::{Exchange, Messages, is_too_long, message, schema_message},
};
use crate::{
    Error,
    auth::Access,
    callers::{Account, Caller, Charge, Resource, WeakCharge},
    drain::stopping,
    error::clip,
    events::{Event, Kind},
    flight::{
        Context,
        batches::{BatchReader, Received},
    },
    registry::queues::{
        QueuedKeys, Scored, Served,
        worker_names::{self, Origin},
    },
    traces::{Span, number},
};

/// Credits of a worker that sets none.
const DEFAULT_CREDITS: u64 = 2;

/// Maximum number of rows per reply: that of any batch.
const MAX_REPLY_ROWS: usize = 1 << 20;

/// A batch that the worker is computing.
struct Gathered {
    /// Snapshots of the features.
    features: Arc<LookupMetadata>,
    /// Caller of each request, and what it is charged for the request. The request holds the charge, so that it ends with the
    /// request, or remains if the request is queued again.
    callers: Vec<(Caller, WeakCharge)>,
    /// Span of the worker's computation and of the batch, if one of its requests is traced. Dropping them ends them.
    spans: Option<(Span, Span)>,
}

/// A worker's connection, for both directions of its stream.
struct Connection {
    context: Context,
    access: Access,
    queue: String,
    served: Arc<Served>,
    worker: WorkerId,
    origin: Origin,
    /// Batches that the worker is computing.
    at_work: DashMap<BatchId, Gathered>,
}

/// Sends batches to the worker.
struct Batches {
    connection: Arc<Connection>,
    encoding: Encoding,
    lookup: Lookup,
    schema: SchemaRef,
    worker: Worker<QueuedKeys, Scored>,
    /// Dropped after `worker`, so that the worker is removed before the event is emitted.
    _presence: Presence,
    /// Task that receives replies; it ends before the worker leaves only with an error.
    inward: AbortOnDropHandle<Result<(), Status>>,
    _charge: Charge,
}

/// Receives replies from the worker, in a task of its own, so that replies are read while a send is blocked.
struct Inward {
    connection: Arc<Connection>,
    messages: Messages,
    replies: Replies<QueuedKeys, Scored>,
    reader: BatchReader,
    /// Notices about the worker. They are received in this task, because the task that sends batches is blocked if the worker receives none.
    notices: mpsc::Receiver<Notice>,
}

/// Streams batches as they are formed. Ends with a status if the server stops or the worker sends an invalid reply.
pub(super) async fn batches(exchange: Exchange, request: &v1::Worker) -> Result<Messages, Status> {
    let Exchange { context, access, encoding, messages, charge, .. } = exchange;
    let served = context.services.queues.get(&request.queue, &access)?;
    access.check_worker(&request.queue)?;
    let mut lookup = context.services.online.lookup_of(&context.services.datasets, &access, &served).await?;
    let schema = context.prepare(&mut lookup, &served.features).await?;
    let head = schema_message(&schema);
    let credits = if request.credits == 0 { DEFAULT_CREDITS } else { request.credits };
    let mut worker = served.queue.add_worker(credits);
    let (id, origin, notices) = (worker.id(), Origin::new(&access), worker.notices());
    let (queue, at_work) = (request.queue.clone(), DashMap::new());
    let connection = Arc::new(Connection { context, access, queue, served, worker: id, origin, at_work });
    let presence = Presence::new(&connection, credits);
    let account = Account::new(&connection.context.services.callers, connection.access.caller());
    let (replies, reader) = (worker.replies(), BatchReader::of_replies(MAX_REPLY_ROWS, account));
    let inward = Inward { connection: Arc::clone(&connection), messages, replies, reader, notices };
    let inward = AbortOnDropHandle::new(tokio::spawn(inward.run()));
    let batches = Batches {
        connection,
        encoding,
        lookup,
        schema,
        worker,
        _presence: presence,
        inward,
        _charge: charge,
    };
    let batches = stream::try_unfold(batches, |mut batches| async move {
        let message = batches.next().await?;
        Ok::<_, Status>(message.map(|message| (message, batches)))
    });
    Ok(stream::iter([Ok(head)]).chain(batches).boxed())
}

/// Emits an event when a worker connects and when it disconnects.
struct Presence {
    connection: Arc<Connection>,
}

impl Presence {
    fn new(connection: &Arc<Connection>, credits: u64) -> Self {
        connection.served.worker_names.insert(connection.worker, connection.origin.clone());
        connection.note(Kind::WorkerJoined, &format!("connected, credits {credits}"));
        Self { connection: Arc::clone(connection) }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.connection.note(Kind::WorkerLeft, "disconnected");
        self.connection.served.worker_names.remove(self.connection.worker);
    }
}

impl Connection {
    /// Emits an event about the worker. Its message is the name of the worker, followed by `words`.
    fn note(&self, kind: Kind, words: &str) {
        let name = worker_names::name(self.worker, &self.origin.public());
        let event = Event::new(kind, &format!("{name} {words}")).queue(&self.queue, self.served.reads());
        self.context.services.events.note(event);
    }

    fn note_notice(&self, notice: Notice) {
        match notice {
            Notice::Overdue { silence } => {
                let words = format!(
                    "has not answered for {silence:.1?} and receives no batches until it does; other workers receive its requests"
                );
                self.note(Kind::WorkerOverdue, &words);
            }
            Notice::Answering { silence } => {
                let words = format!("answers again, after {silence:.1?}");
                self.note(Kind::WorkerAnswering, &words);
            }
            Notice::Suspended { time } => {
                let words = format!(
                    "failed batches that other workers computed, and receives none for {time:?}; see the log of the worker"
                );
                self.note(Kind::WorkerSuspended, &words);
            }
        }
    }

    /// Checks the permissions of the worker again, because a token may be revoked while the stream runs.
    fn check_access(&self) -> Result<(), Error> {
        self.context.check_access(&self.access, &self.served.features)?;
        self.access.check_worker(&self.queue)
    }
}

impl Batches {
    async fn next(&mut self) -> Result<Option<FlightData>, Status> {
        loop {
            let drain = self.connection.context.services.drain.clone();
            let batch = tokio::select! {
                biased;
                () = drain.interrupted() => return Err(stopping().into()),
                batch = self.worker.next() => batch,
            };
            let Some(batch) = batch else { return self.end().await };
            let id = batch.id;
            self.connection.check_access()?;
            if !self.worker.replies().has_waiting_requests(id) {
                let reason = "all requests of the batch were cancelled".to_owned();
                let cancelled = Failure::Features { reason, kind: FeaturesFailure::Precondition };
                self.worker.replies().reply(id, Err(cancelled));
                continue;
            }
            match self.gather(batch).await {
                Ok(message) => {
                    self.worker.replies().gathered(id);
                    return Ok(Some(message));
                }
                Err(BatchFailure::Batch(error)) => {
                    self.connection.at_work.remove(&id);
                    self.worker.replies().reply(id, Err(without_features(&error)));
                }
                Err(BatchFailure::Worker(error)) => return Err(error.into()),
            }
        }
    }

    /// Ends the stream: the worker disconnected or failed, or the queue is empty and the server stops.
    async fn end(&mut self) -> Result<Option<FlightData>, Status> {
        tokio::select! {
            biased;
            ended = &mut self.inward => {
                ended.unwrap_or_else(|error| Err(Error::internal(error.to_string()).into())).map(|()| None)
            }
            () = self.connection.context.services.drain.drained() => Err(stopping().into()),
        }
    }

    async fn gather(&mut self, batch: Batch<QueuedKeys>) -> Result<FlightData, BatchFailure> {
        let Connection { context, queue, served, at_work, .. } = &*self.connection;
        let began = Instant::now();
        let Batch { id, payloads, rows, padded_rows, close_reason, deadline, previous_attempts } = batch;
        let traced = payloads.iter().filter_map(|asked| Some(asked.trace.as_ref()?.context().clone()));
        let mut span = context.services.traces.linked("micro-batch", traced.collect(), began);
        if let Some(span) = &mut span {
            span.set("forebay.queue", queue.clone());
            span.set("forebay.rows", number(rows));
            span.set("forebay.requests", number(payloads.len() as u64));
            span.set("forebay.reason", close_reason.name());
        }
        let callers: Vec<_> =
            payloads.iter().map(|asked| (asked.caller.clone(), asked.charge.downgrade())).collect();
        let mut payloads = payloads.into_iter().map(|asked| asked.keys);
        let mut keys = payloads
            .next()
            .map(Arc::unwrap_or_clone)
            .ok_or_else(|| BatchFailure::Batch(Error::internal("a batch without requests")))?;
        if !payloads.all(|others| keys.append(&others)) {
            return Err(BatchFailure::Batch(Error::unavailable(
                "the key has another type in the new snapshot",
            )));
        }
        let features = &served.features;
        let failed = |error| BatchFailure::Batch(context.services.datasets.read_error(served.reads(), error));
        let answer = self
            .lookup
            .gather(keys, usize::try_from(padded_rows).unwrap_or(usize::MAX))
            .await
            .map_err(failed)?;
        if self.lookup.schema(&answer.lookup_rows).map_err(failed)? != self.schema {
            // Clients open a new stream automatically.
            return Err(BatchFailure::Worker(Error::unavailable(
                "the columns of the features have changed with a new snapshot; begin another exchange",
            )));
        }
        let about = context.metadata(features, &answer).map_err(BatchFailure::Batch)?;
        let spans = span.map(|span| {
            span.trace().child("gather", began).end(Instant::now());
            let worker = span.trace().child("worker", Instant::now());
            (worker, span)
        });
        at_work.insert(id, Gathered { features: Arc::new(about.clone()), callers, spans });
        let request = BatchRequest {
            batch: id.0,
            valid_rows: rows,
            features: Some(about),
            seconds_left: deadline.saturating_duration_since(Instant::now()).as_secs_f64(),
            previous_attempts: previous_attempts.into(),
        };
        Ok(message(answer, self.encoding.encode(&request)))
    }
}

/// The failure of requests whose features cannot be looked up.
fn without_features(error: &Error) -> Failure {
    let kind = match error.grpc_code() {
        Code::DataLoss => FeaturesFailure::Corrupt,
        Code::ResourceExhausted => FeaturesFailure::Limit,
        Code::Unavailable => FeaturesFailure::Unavailable,
        Code::Internal => FeaturesFailure::Internal,
        _ => FeaturesFailure::Precondition,
    };
    Failure::Features { reason: error.message().to_owned(), kind }
}

/// Failure of a batch.
enum BatchFailure {
    /// The requests of the batch fail.
    Batch(Error),
    /// The stream ends, and another worker receives the batch.
    Worker(Error),
}

impl Inward {
    async fn run(mut self) -> Result<(), Status> {
        let ended = self.replies().await;
        while let Ok(notice) = self.notices.try_recv() {
            self.connection.note_notice(notice);
        }
        // This also ends the stream of batches.
        self.replies.disconnect();
        ended
    }

    async fn replies(&mut self) -> Result<(), Status> {
        loop {
            let message = tokio::select! {
                biased;
                Some(notice) = self.notices.recv() => {
                    self.connection.note_notice(notice);
                    continue;
                }
                message = self.messages.next() => message,
            };
            let Some(message) = message else { return Ok(()) };
            let message = message.inspect_err(|status| self.fail_too_long(status))?;
            self.connection.check_access()?;
            self.reply(message).await?;
        }
    }

    /// Fails the batch of a reply that is longer than the limit, if `status` is about one. The reply is not read, so that its batch is
    /// known only if the worker has no other one. Of several, those with several requests are divided, which harms none of them; the
    /// others are lost.
    fn fail_too_long(&self, status: &Status) {
        if !is_too_long(status) {
            return;
        }
        let at_work = &self.connection.at_work;
        let mut ids: Vec<BatchId> = at_work.iter().map(|entry| *entry.key()).collect();
        ids.sort();
        let is_only = ids.len() == 1;
        for id in ids {
            let Some(shape) = self.replies.shape(id) else { continue };
            if !is_only && shape.request_rows.len() < 2 {
                continue;
            }
            at_work.remove(&id);
            let why = format!("the reply is too long: {}", status.message());
            self.replies.reply(id, Err(Failure::TooLarge(clip(&why))));
        }
    }

    /// Fails a batch because of its reply, with `error`, which ends the stream.
    fn invalid(&self, id: BatchId, error: Error) -> Result<(), Error> {
        self.replies.reply(id, Err(Failure::Failed(clip(error.message()))));
        Err(error)
    }

    async fn reply(&mut self, message: FlightData) -> Result<(), Error> {
        let reply: BatchReply = match message.app_metadata.as_ref() {
            [] => BatchReply::default(),
            metadata => Encoding::of(metadata).decode("BatchReply", metadata).map_err(Error::from)?,
        };
        let (online, access) = (&self.connection.context.services.online, &self.connection.access);
        let is_empty = message.data_header.is_empty() && message.app_metadata.is_empty();
        let is_schema = !message.data_header.is_empty();
        let rows = match self.reader.read(online, access, message).await? {
            Received::Batch(rows) => Some(rows),
            Received::Nothing => None,
        };
        if rows.is_none() && reply.error.is_empty() && (is_schema || is_empty) {
            return Ok(());
        }
        let id = if reply.batch == 0 { self.replies.oldest_batch() } else { Some(BatchId(reply.batch)) };
        let unknown = || Error::invalid(format!("reply: this worker has no batch {}", reply.batch));
        let id = id.ok_or_else(unknown)?;
        let (_, Gathered { features, callers, spans }) =
            self.connection.at_work.remove(&id).ok_or_else(unknown)?;
        let shape = self.replies.shape(id).ok_or_else(unknown)?;
        if let Some((worker, mut span)) = spans {
            drop(worker);
            if !reply.error.is_empty() {
                span.fail(clip(&reply.error));
            }
        }
        if !reply.error.is_empty() {
            let failure = if reply.too_large { Failure::TooLarge } else { Failure::Failed };
            self.replies.reply(id, Err(failure(clip(&reply.error))));
            return Ok(());
        }
        let missing = || Err(Error::invalid("reply: the message has neither rows nor an `error`"));
        let rows = match rows.unwrap_or_else(missing) {
            Ok(rows) => rows,
            Err(error) => return self.invalid(id, error),
        };
        if let Err(why) = reply_rows::check(&rows.rows, &shape) {
            return self.invalid(id, Error::invalid(format!("reply: {why}")));
        }
        let schema = rows.rows.schema();
        self.connection.served.replied(&schema);
        let bytes = reply_rows::split_bytes(&rows.rows, &shape);
        let connection = Arc::clone(&self.connection);
        let split = move || {
            let parts = reply_rows::split(&rows.rows, &shape).zip(callers);
            // One at a time, so that no more than one part takes memory without a charge.
            let values = parts.map(|(part, (caller, charge))| {
                connection.scored(&schema, part.map_err(Failure::Failed)?, &caller, &charge, &features)
            });
            values.collect()
        };
        let (online, access) = (&self.connection.context.services.online, &self.connection.access);
        self.replies.reply_each(id, online.work(access, bytes, split).await?);
        Ok(())
    }
}

impl Connection {
    /// The answer to a request. It takes over the charge of the request.
    fn scored(
        &self,
        schema: &SchemaRef,
        rows: FlightData,
        caller: &Caller,
        request: &WeakCharge,
        features: &Arc<LookupMetadata>,
    ) -> Result<Scored, Failure> {
        let bytes = (rows.data_header.len() + rows.data_body.len()) as u64;
        let charge = match request.take() {
            Some(charge) => charge.resized(bytes),
            // The request has ended, so that no client waits for this answer.
            None => self.context.services.callers.take(caller, Resource::UnsentBytes, bytes),
        };
        let charge = charge.map_err(|error| Failure::Unsent(error.message().to_owned()))?;
        let (schema, features) = (Arc::clone(schema), Arc::clone(features));
        Ok(Scored { schema, rows, features, charge, replied: Instant::now() })
    }
}
