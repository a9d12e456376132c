//! DoGet with its own gRPC framing, which sends the body of a batch without copying it.
//!
//! A gRPC message is a zero byte, its length as a big-endian `u32`, and the message. Of `FlightData`, this module
//! sends `data_header` (field 2), `app_metadata` (3) and `data_body` (1000, last by the standard's advice).

use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context as TaskContext, Poll},
    time::Instant,
};

use arrow_flight::{FlightData, SchemaAsIpc, Ticket};
use arrow_ipc::writer::IpcWriteOptions;
use arrow_schema::Schema;
use bytes::{BufMut, Bytes, BytesMut};
use forebay_loader::{BatchCharge, Batches, FinishedBatch, Job, WireBatch};
use forebay_proto::{
    Encoding,
    v1::{self, BatchMetadata},
};
use futures::{Stream, StreamExt, stream};
use http_body::Frame;
use http_body_util::{BodyExt, Limited, StreamBody};
use prost::{Message, encoding::encode_varint};
use tokio_util::task::AbortOnDropHandle;
use tonic::{Code, Status, body::Body};

use super::{
    Context, call_layer,
    commands::{Wanted, decode_ticket},
    incoming::status_of,
    lookups::LookedUp,
};
use crate::{
    Error,
    auth::Access,
    callers::{Charge, Resource},
    connections::MayPause,
    members, reads,
    registry::datasets::Datasets,
    sessions::Running,
    traces::{self, Trace},
};

/// Bodies below this size are copied into the frame of the header, because many small frames cost more than a copy.
const COALESCE_BYTES: usize = 4096;

/// Route of DoGet.
#[derive(Clone)]
pub(crate) struct FramedDoGet {
    context: Arc<Context>,
}

impl FramedDoGet {
    pub(crate) fn new(context: Context) -> Self {
        Self { context: Arc::new(context) }
    }
}

impl tower::Service<http::Request<axum::body::Body>> for FramedDoGet {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<axum::body::Body>) -> Self::Future {
        let context = Arc::clone(&self.context);
        Box::pin(async move { Ok(answer(&context, request).await.unwrap_or_else(Status::into_http)) })
    }
}

async fn answer(
    context: &Context,
    mut request: http::Request<axum::body::Body>,
) -> Result<http::Response<Body>, Status> {
    let access = call_layer::access(request.extensions())?;
    // Until the stream is charged, or the answer to a lookup is sent.
    let call = call_layer::charge(request.extensions_mut());
    let (trainer, trace) = (trainer(request.headers()), call_layer::trace(request.extensions()));
    let candidate = members::candidate(request.headers())?;
    let ticket = read_ticket(request, context.services.limits.max_request_bytes).await?;
    let (wanted, encoding) = decode_ticket(&ticket)?;
    let train = match wanted {
        Wanted::Lookup(lookup) => {
            return look_up(context, &access, lookup, encoding, trace, call).await;
        }
        Wanted::Train(train) => train,
    };
    let services = &context.services;
    services.members.admit(&train, candidate)?;
    let (job, rank, lane) = context.stream(&access, train).await?;
    let charge = services.callers.take(&access.caller(), Resource::Streams, 1)?;
    drop(call);
    let stream = (job.batches(lane), Arc::downgrade(&job));
    let running = services.sessions.enter(job.ticket(rank, lane), stream, trainer, charge);
    context.services.jobs.note(job.train());
    services.members.note_stream(job.train(), u64::from(rank));
    let schema = schema_message(job.view().schema())?;
    let batches = context.loader(&access).watched_batches(Arc::clone(&job), rank, lane, running.lane.clone());
    running.session.observe(batches.waits().clone());
    let learning = learn_label(context, &job, &running);
    let sender = Sender {
        frames: VecDeque::from([schema]),
        batches,
        encoding,
        running,
        drain: context.services.drain.clone(),
        access,
        datasets: context.services.datasets.clone(),
        lanes: job.train().lanes.unwrap_or(1),
        job,
        _learning: learning,
        traced: trace.map(traces::Batches::of),
        ended: false,
    };
    let (pace, patience) = (sender.batches.pace(), services.limits.receive_timeout);
    let mut response = response(stream::unfold(sender, |mut sender| async {
        let frame = sender.next().await?;
        Some((frame, sender))
    }))?;
    response.extensions_mut().insert(MayPause::until(move || pace.overdue_at(patience)));
    Ok(response)
}

/// Answers a lookup with one batch.
async fn look_up(
    context: &Context,
    access: &Access,
    wanted: v1::Lookup,
    encoding: Encoding,
    trace: Option<Trace>,
    call: Option<Charge>,
) -> Result<http::Response<Body>, Status> {
    let LookedUp { schema, batch, about, charge } = context.look_up(access, wanted, trace.as_ref()).await?;
    let (first, body) = frames(&encoding.encode(&about), batch)?;
    let data = [schema_message(&schema)?, first].into_iter().chain(body).map(Frame::data);
    let last = Frame::trailers(trailers(&Status::new(Code::Ok, "")));
    let mut response = response(stream::iter(data.chain([last])).map(move |frame| {
        // The call lasts until all frames are taken.
        let _ = &call;
        frame
    }))?;
    response.extensions_mut().insert(charge.shared());
    Ok(response)
}

fn response(
    frames: impl Stream<Item = Frame<Bytes>> + Send + 'static,
) -> Result<http::Response<Body>, Status> {
    let body = StreamBody::new(frames.map(Ok::<_, Status>));
    let response = http::Response::builder().header(http::header::CONTENT_TYPE, "application/grpc");
    response.body(Body::new(body)).map_err(|error| Error::internal(error.to_string()).into())
}

/// Trailers with a status.
fn trailers(status: &Status) -> http::HeaderMap {
    let mut trailers = http::HeaderMap::new();
    if status.add_header(&mut trailers).is_err() {
        trailers.insert("grpc-status", http::HeaderValue::from(Code::Internal as i32));
    }
    trailers
}

/// Stages of a batch, for its trace.
fn stages(made: &FinishedBatch) -> Vec<traces::Stage> {
    let stage =
        |name, start: Instant, end: Instant| traces::Stage { name, start: start.into(), end: end.into() };
    let seen = made.seen.iter().map(|(seen, start, end)| stage(seen.name(), *start, *end));
    [stage("window", made.begun, made.begun + made.window_wait)]
        .into_iter()
        .chain(seen)
        .chain([stage("gather", made.gathered.0, made.gathered.1)])
        .collect()
}

/// Computes statistics of the job's label, if it names one, concurrently with its first batches.
fn learn_label(context: &Context, job: &Arc<Job>, running: &Running) -> Option<AbortOnDropHandle<()>> {
    if job.train().label_column.is_empty() {
        return None;
    }
    let (loader, job, session) =
        (context.services.loader.clone(), Arc::clone(job), Arc::clone(&running.session));
    Some(AbortOnDropHandle::new(tokio::spawn(async move {
        match loader.label(&job).await {
            Ok(known) => known.into_iter().for_each(|known| session.set_label_statistics(known)),
            Err(error) => tracing::warn!(%error, "computing label statistics failed"),
        }
    })))
}

/// Trainer id from the request's headers; 0 if absent.
fn trainer(headers: &http::HeaderMap) -> u64 {
    let id = headers.get("forebay-trainer").and_then(|id| id.to_str().ok());
    id.and_then(|id| u64::from_str_radix(id, 16).ok()).unwrap_or(0)
}

async fn read_ticket(request: http::Request<axum::body::Body>, max_bytes: usize) -> Result<Bytes, Status> {
    // 16 bytes for the message prefix, and the tag and length of its only field.
    let body = Limited::new(request.into_body(), max_bytes + 16).collect().await;
    let body = body.map_err(|error| -> Status {
        if error.is::<http_body_util::LengthLimitError>() {
            Error::limit(format!("the ticket is longer than {max_bytes} bytes")).into()
        } else {
            let cancelled = || Error::cancelled(format!("the ticket was not received: {error}")).into();
            status_of(&*error).unwrap_or_else(cancelled)
        }
    })?;
    let body = body.to_bytes();
    let Some((&[compressed, a, b, c, d], message)) = body.split_first_chunk::<5>() else {
        return Err(Error::invalid("the request is empty, expected a ticket").into());
    };
    if compressed != 0 {
        return Err(Status::unimplemented(
            "compressed requests are not supported; send the ticket uncompressed",
        ));
    }
    if u32::from_be_bytes([a, b, c, d]) as usize != message.len() {
        return Err(Error::invalid("the request does not hold exactly one message").into());
    }
    let ticket =
        Ticket::decode(message).map_err(|error| Error::invalid(format!("malformed ticket: {error}")))?;
    Ok(ticket.ticket)
}

fn schema_message(schema: &Schema) -> Result<Bytes, Status> {
    let options = IpcWriteOptions::default();
    let data: FlightData = SchemaAsIpc::new(schema, &options).into();
    let mut message = BytesMut::with_capacity(data.encoded_len() + 5);
    put_prefix(&mut message, data.encoded_len())?;
    data.encode(&mut message).map_err(|error| Error::internal(error.to_string()))?;
    Ok(message.freeze())
}

/// Converts batches to the DATA frames of the response.
struct Sender {
    /// Frames to be sent before the next batch.
    frames: VecDeque<Bytes>,
    batches: Batches,
    encoding: Encoding,
    running: Running,
    drain: crate::drain::Drain,
    access: Access,
    datasets: Datasets,
    job: Arc<Job>,
    /// Number of lanes: the next step of this stream is this many later.
    lanes: u64,
    _learning: Option<AbortOnDropHandle<()>>,
    traced: Option<traces::Batches>,
    ended: bool,
}

impl Sender {
    /// Returns the next frame; the last frame has the status.
    async fn next(&mut self) -> Option<Frame<Bytes>> {
        if self.ended {
            return None;
        }
        if let Some(frame) = self.frames.pop_front() {
            return Some(Frame::data(frame));
        }
        let status = match self.next_batch().await {
            Ok(Some(first)) => return Some(Frame::data(first)),
            Ok(None) => Status::new(Code::Ok, ""),
            Err(status) => {
                self.running.session.failed(status.message().to_owned());
                status
            }
        };
        self.ended = true;
        Some(Frame::trailers(trailers(&status)))
    }

    /// Names of the datasets; `dataset` of the request comes first.
    fn read(&self) -> impl Iterator<Item = &str> {
        reads::of_train(self.job.train())
    }

    /// Takes the next batch and returns its first frame; `None` after the last batch.
    async fn next_batch(&mut self) -> Result<Option<Bytes>, Status> {
        if let Some(traced) = &mut self.traced {
            traced.asked();
        }
        let has_more = self.batches.remaining() > 0;
        if has_more {
            self.running.lane.batch_requested();
        }
        let next = tokio::select! {
            biased;
            () = self.drain.interrupted(), if has_more => {
                let message = "the server is stopping; continue with the next step on another server";
                return Err(Error::unavailable(message).into());
            }
            next = self.batches.next_finished() => next,
        };
        let Some(next) = next else { return Ok(None) };
        // A token may be revoked while the stream runs.
        self.read().try_for_each(|dataset| self.access.check(dataset))?;
        let made = next.map_err(|error| self.datasets.read_error(self.read(), error))?;
        let FinishedBatch { metadata, batch, charge, .. } = &made;
        self.running.batch_sent(&made, (metadata.epoch, metadata.step + self.lanes));
        if let Some(traced) = &mut self.traced {
            traced.came(metadata, batch.body.len() as u64, stages(&made));
        }
        let (mut first, mut body) = frames(&self.encoding.encode::<BatchMetadata>(metadata), batch.clone())?;
        // Frames are sent in order.
        let last = body.last_mut().unwrap_or(&mut first);
        *last = Charged::wrap(std::mem::take(last), charge.clone());
        self.frames.extend(body);
        Ok(Some(first))
    }
}

/// Bytes of a batch that is charged until the transport drops them.
struct Charged {
    bytes: Bytes,
    _charge: BatchCharge,
}

impl Charged {
    fn wrap(bytes: Bytes, charge: BatchCharge) -> Bytes {
        Bytes::from_owner(Self { bytes, _charge: charge })
    }
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Frames of one batch: the first frame has the header, and also the body if that is small.
fn frames(metadata: &[u8], batch: WireBatch) -> Result<(Bytes, Vec<Bytes>), Status> {
    let body_len = batch.body.len();
    let mut fields = BytesMut::with_capacity(batch.header.len() + metadata.len() + 32);
    put_field(&mut fields, 2, &batch.header);
    put_field(&mut fields, 3, metadata);
    put_tag(&mut fields, 1000, body_len);
    let length = fields.len() + body_len;
    let mut first = BytesMut::with_capacity(5 + fields.len() + COALESCE_BYTES);
    put_prefix(&mut first, length)?;
    first.put_slice(&fields);
    if body_len >= COALESCE_BYTES {
        return Ok((first.freeze(), batch.body.into_pieces()));
    }
    batch.body.into_pieces().iter().for_each(|piece| first.put_slice(piece));
    Ok((first.freeze(), Vec::new()))
}

fn put_prefix(out: &mut BytesMut, length: usize) -> Result<(), Status> {
    let length = u32::try_from(length)
        .map_err(|_| Error::limit(format!("a message of {length} bytes, gRPC allows 4 GiB")))?;
    out.put_u8(0);
    out.put_u32(length);
    Ok(())
}

fn put_field(out: &mut BytesMut, number: u64, bytes: &[u8]) {
    put_tag(out, number, bytes.len());
    out.put_slice(bytes);
}

fn put_tag(out: &mut BytesMut, number: u64, length: usize) {
    const LENGTH_DELIMITED: u64 = 2;
    encode_varint(number << 3 | LENGTH_DELIMITED, out);
    encode_varint(length as u64, out);
}

#[cfg(test)]
mod tests;
