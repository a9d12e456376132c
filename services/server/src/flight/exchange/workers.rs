//! The workers of a batch queue: batches of features out, replies in.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_flight::{FlightData, SchemaAsIpc};
use arrow_ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteContext, IpcWriteOptions};
use arrow_schema::SchemaRef;
use dashmap::DashMap;
use forebay_inference::{
    Lookup,
    queue::{Batch, BatchId, Failure, Replies, Shape, Worker},
};
use forebay_proto::{
    Encoding,
    v1::{BatchReply, BatchRequest, LookupMetadata, Serve},
};
use futures::{StreamExt, stream};
use tokio::{sync::OwnedSemaphorePermit, time::Instant};
use tokio_util::task::AbortOnDropHandle;
use tonic::Status;

use super::{Context, Exchange, Messages, message, stopping, unless_drained};
use crate::{
    door::Access,
    events::{Events, Kind, Note},
    flight::batches::BatchReader,
    queues::{Asked, Scored, Served},
    status,
    traces::{Span, number},
};

/// Batches that a worker may have if it does not say.
const DEFAULT_CREDITS: u64 = 2;

/// Rows of a reply: as many as a batch may have at all.
const MAX_REPLY_ROWS: usize = 1 << 20;

/// Batches that are with the worker, by their numbers.
type AtWork = Arc<DashMap<BatchId, Gathered>>;

/// A batch that is with the worker.
struct Gathered {
    /// What its features are of.
    features: Arc<LookupMetadata>,
    /// The worker's part of its span, and the span, if one of its requests is traced. They end with it, however that is.
    spans: Option<(Span, Span)>,
}

/// The way out to the worker.
struct Batches {
    context: Context,
    encoding: Encoding,
    access: Access,
    queue: String,
    served: Arc<Served>,
    lookup: Lookup,
    schema: SchemaRef,
    worker: Worker<Asked, Scored>,
    /// After the worker: who hears that it has left finds it gone.
    _presence: Presence,
    at_work: AtWork,
    /// The way in; it ends before its worker does only with a status.
    inward: AbortOnDropHandle<Result<(), Status>>,
    _permit: OwnedSemaphorePermit,
}

/// The way in from the worker. It has a task of its own, so that replies are taken while a batch can't be sent.
struct Inward {
    context: Context,
    access: Access,
    queue: String,
    served: Arc<Served>,
    messages: Messages,
    replies: Replies<Asked, Scored>,
    reader: BatchReader,
    at_work: AtWork,
}

/// Batches as they are formed; ends with a status when the server stops or the worker sends what makes no sense.
pub(super) async fn batches(exchange: Exchange, serve: &Serve) -> Result<Messages, Status> {
    let Exchange { context, access, encoding, messages, permit, .. } = exchange;
    let served = context.queues.get(&serve.queue, &access)?;
    access.check_worker(&serve.queue)?;
    let queue = serve.queue.clone();
    let mut lookup = context.online.lookup(&context.datasets, &access, &served.features).await?;
    let residents = unless_drained(&context.guard, lookup.residents()).await?;
    let failed = |error| context.datasets.stream_status(&served.features.dataset, &error);
    let schema = residents.and_then(|residents| lookup.schema(&residents)).map_err(failed)?;
    let head = FlightData::from(SchemaAsIpc::new(&schema, &IpcWriteOptions::default()));
    let credits = if serve.credits == 0 { DEFAULT_CREDITS } else { serve.credits };
    let worker = served.queue.work(credits);
    let presence = Presence::new(context.events.clone(), &queue, &served, credits);
    let at_work = AtWork::default();
    let inward = Inward {
        context: context.clone(),
        access: access.clone(),
        queue: queue.clone(),
        served: Arc::clone(&served),
        messages,
        replies: worker.replies(),
        reader: BatchReader::new("reply"),
        at_work: Arc::clone(&at_work),
    };
    let inward = AbortOnDropHandle::new(tokio::spawn(inward.run()));
    let batches = Batches {
        context,
        encoding,
        access,
        queue,
        served,
        lookup,
        schema,
        worker,
        _presence: presence,
        at_work,
        inward,
        _permit: permit,
    };
    let batches = stream::unfold(Some(batches), |batches| async {
        let mut batches = batches?;
        match batches.next().await {
            Ok(Some(message)) => Some((Ok(message), Some(batches))),
            Ok(None) => None,
            Err(status) => Some((Err(status), None)),
        }
    });
    Ok(stream::iter([Ok(head)]).chain(batches).boxed())
}

/// Notes that a worker has come, and that it has left.
struct Presence {
    events: Events,
    queue: String,
    served: Arc<Served>,
}

impl Presence {
    fn new(events: Events, queue: &str, served: &Arc<Served>, credits: u64) -> Self {
        let presence = Self { events, queue: queue.to_owned(), served: Arc::clone(served) };
        presence.note(Kind::WorkerJoined, &format!("a worker has come, for {credits} batches at a time"));
        presence
    }

    fn note(&self, kind: Kind, words: &str) {
        self.events.note(Note::new(kind, words).queue(&self.queue, self.served.reads()));
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.note(Kind::WorkerLeft, "a worker has left");
    }
}

impl Batches {
    async fn next(&mut self) -> Result<Option<FlightData>, Status> {
        loop {
            let guard = self.context.guard.clone();
            let batch = tokio::select! {
                biased;
                () = guard.handed_over() => return Err(stopping()),
                batch = self.worker.next() => batch,
            };
            let Some(batch) = batch else { return self.end().await };
            let id = batch.id;
            self.context.check_access(&self.access, &self.served.features)?;
            self.access.check_worker(&self.queue)?;
            if !self.worker.replies().is_wanted(id) {
                let nobody = Failure::Features("nobody waits for them".to_owned());
                self.worker.replies().reply(id, Err(nobody));
                continue;
            }
            match self.gather(batch).await {
                Ok(message) => {
                    self.worker.replies().gathered(id);
                    return Ok(Some(message));
                }
                Err(Trouble::Batch(status)) => {
                    self.at_work.remove(&id);
                    self.worker.replies().reply(id, Err(Failure::Features(status.message().to_owned())));
                }
                Err(Trouble::Worker(status)) => return Err(status),
            }
        }
    }

    /// There are no more batches: the worker has gone or has erred, or the queue is empty and the server stops.
    async fn end(&mut self) -> Result<Option<FlightData>, Status> {
        tokio::select! {
            biased;
            ended = &mut self.inward => {
                ended.unwrap_or_else(|error| Err(Status::internal(error.to_string()))).map(|()| None)
            }
            () = self.context.guard.drained() => Err(stopping()),
        }
    }

    async fn gather(&mut self, batch: Batch<Asked>) -> Result<FlightData, Trouble> {
        let began = Instant::now();
        let Batch { id, payloads, rows, padded, reason, deadline, attempts } = batch;
        let traced = payloads.iter().filter_map(|asked| Some(asked.trace.as_ref()?.context().clone()));
        let mut span = self.context.traces.linked("micro-batch", traced.collect(), began);
        if let Some(span) = &mut span {
            span.set("forebay.queue", self.queue.clone());
            span.set("forebay.rows", number(rows));
            span.set("forebay.requests", number(payloads.len() as u64));
            span.set("forebay.reason", reason.name());
        }
        let mut payloads = payloads.into_iter().map(|asked| asked.keys);
        let mut keys = payloads
            .next()
            .map(Arc::unwrap_or_clone)
            .ok_or_else(|| Trouble::Batch(Status::internal("a batch of no request")))?;
        if !payloads.all(|others| keys.append(&others)) {
            return Err(Trouble::Batch(Status::unavailable("the key has another type in the new snapshot")));
        }
        let failed = |error| {
            Trouble::Batch(self.context.datasets.stream_status(&self.served.features.dataset, &error))
        };
        let answer =
            self.lookup.gather(keys, usize::try_from(padded).unwrap_or(usize::MAX)).await.map_err(failed)?;
        if self.lookup.schema(&answer.residents).map_err(failed)? != self.schema {
            // Clients begin another one by themselves.
            return Err(Trouble::Worker(Status::unavailable(
                "the columns of the features have changed with a new snapshot; begin another exchange",
            )));
        }
        let about = self.context.about(&self.served.features, &answer).map_err(Trouble::Batch)?;
        let spans = span.map(|span| {
            span.trace().child("gather", began).end(Instant::now());
            let worker = span.trace().child("worker", Instant::now());
            (worker, span)
        });
        self.at_work.insert(id, Gathered { features: Arc::new(about.clone()), spans });
        let request = BatchRequest {
            batch: id.0,
            rows,
            features: Some(about),
            seconds_left: deadline.saturating_duration_since(Instant::now()).as_secs_f64(),
            attempts: attempts.into(),
        };
        Ok(message(answer, self.encoding.encode(&request)))
    }
}

/// What went wrong with a batch.
enum Trouble {
    /// Its requests fail.
    Batch(Status),
    /// The exchange ends; the batch is for another worker.
    Worker(Status),
}

impl Inward {
    async fn run(mut self) -> Result<(), Status> {
        let ended = self.replies().await;
        // The way out ends with it.
        self.replies.leave();
        ended
    }

    async fn replies(&mut self) -> Result<(), Status> {
        while let Some(message) = self.messages.next().await.transpose()? {
            // A token may be taken back while its exchange runs.
            self.context.check_access(&self.access, &self.served.features)?;
            self.access.check_worker(&self.queue)?;
            self.reply(&message)?;
        }
        Ok(())
    }

    fn reply(&mut self, message: &FlightData) -> Result<(), Status> {
        let encoding = Encoding::of(&message.app_metadata);
        let reply: BatchReply = if message.app_metadata.is_empty() {
            BatchReply::default()
        } else {
            encoding.decode("BatchReply", &message.app_metadata).map_err(|error| status::of_decode(&error))?
        };
        let rows = self.reader.read(message, MAX_REPLY_ROWS)?;
        if rows.is_none() && reply.error.is_empty() {
            return Ok(()); // The schema.
        }
        let id = if reply.batch == 0 { self.replies.oldest() } else { Some(BatchId(reply.batch)) };
        let unknown = || Status::invalid_argument(format!("reply: this worker has no batch {}", reply.batch));
        let id = id.ok_or_else(unknown)?;
        let (_, Gathered { features, spans }) = self.at_work.remove(&id).ok_or_else(unknown)?;
        let shape = self.replies.shape(id).ok_or_else(unknown)?;
        if let Some((worker, mut span)) = spans {
            drop(worker);
            if !reply.error.is_empty() {
                span.fail(status::clip(&reply.error));
            }
        }
        let Some(rows) = rows.filter(|_| reply.error.is_empty()) else {
            self.replies.reply(id, Err(Failure::Failed(status::clip(&reply.error))));
            return Ok(());
        };
        let shares = shares(&rows, &shape, &features);
        let nonsense = shares.as_ref().err().map(|why| Status::invalid_argument(format!("reply: {why}")));
        self.replies.reply(id, shares.map_err(Failure::Failed));
        nonsense.map_or(Ok(()), Err)
    }
}

/// The rows of each request.
fn shares(rows: &RecordBatch, shape: &Shape, features: &Arc<LookupMetadata>) -> Result<Vec<Scored>, String> {
    let total: u64 = shape.sizes.iter().sum();
    let found = rows.num_rows() as u64;
    if found != total && found != shape.padded {
        return Err(format!("the batch has {total} rows, the reply {found}"));
    }
    let schema = rows.schema();
    let mut start = 0;
    let share = |size: &u64| {
        let size = usize::try_from(*size).unwrap_or(usize::MAX);
        // Encoded at once: a slice would keep the whole reply in memory for a caller that does not read.
        let rows = encoded(&rows.slice(start, size))?;
        start += size;
        Ok(Scored { schema: Arc::clone(&schema), rows, features: Arc::clone(features) })
    };
    shape.sizes.iter().map(share).collect()
}

/// A batch as a message.
fn encoded(rows: &RecordBatch) -> Result<FlightData, String> {
    let (mut tracker, options) = (DictionaryTracker::new(false), IpcWriteOptions::default());
    let (_, batch) = IpcDataGenerator::default()
        .encode(rows, &mut tracker, &options, &mut IpcWriteContext::default())
        .map_err(|error| error.to_string())?;
    Ok(batch.into())
}
