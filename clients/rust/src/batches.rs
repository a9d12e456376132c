//! The stream of one rank and lane.

use std::sync::Arc;

use arrow_schema::{Schema, SchemaRef};
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::task::AbortOnDropHandle;
use tonic::{Code, Status, body::Body};

use crate::{
    Batch, Config, Error,
    parser::{Message, Parser},
    slabs::Slabs,
};

/// The batches of one stream, received ahead of their consumer. Dropping it ends the stream.
pub struct Batches {
    schema: SchemaRef,
    received: mpsc::UnboundedReceiver<Result<Received, Error>>,
    ended: bool,
    _receiver: AbortOnDropHandle<()>,
}

/// A batch, and its share of the bytes that may wait.
struct Received {
    batch: Batch,
    _share: OwnedSemaphorePermit,
}

impl Batches {
    /// Reads the schema and goes on receiving in a task of its own.
    pub(crate) async fn open(body: Body, config: &Config) -> Result<Self, Error> {
        let mut messages =
            Messages { body, parser: Parser::new(config, Slabs::new(config.idle_slab_bytes)), data: None };
        let Some(first) = messages.next().await? else {
            return Err(Error::protocol("the stream ended before its schema"));
        };
        let schema = schema_of(&first)?;
        let (sender, received) = mpsc::unbounded_channel();
        let receiver = receive(messages, SchemaRef::clone(&schema), sender, config.prefetch_bytes);
        let receiver = AbortOnDropHandle::new(tokio::spawn(receiver));
        Ok(Self { schema, received, ended: false, _receiver: receiver })
    }

    /// The schema of every batch.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The next batch; `None` after the last one. Cancel-safe. After an error the stream is over.
    pub async fn next(&mut self) -> Option<Result<Batch, Error>> {
        if self.ended {
            return None;
        }
        let next = self.received.recv().await.map(|received| received.map(|received| received.batch));
        self.ended = !matches!(next, Some(Ok(_)));
        next
    }
}

async fn receive(
    mut messages: Messages,
    schema: SchemaRef,
    sender: mpsc::UnboundedSender<Result<Received, Error>>,
    prefetch_bytes: u64,
) {
    let capacity = kibibytes(prefetch_bytes);
    let space = Arc::new(Semaphore::new(capacity as usize));
    loop {
        let batch = match messages.next().await {
            Ok(Some(message)) => Batch::new(message, SchemaRef::clone(&schema)),
            Ok(None) => return,
            Err(error) => Err(error),
        };
        let batch = match batch {
            Ok(batch) => batch,
            Err(error) => {
                drop(sender.send(Err(error)));
                return;
            }
        };
        let share = kibibytes(batch.body().len() as u64).min(capacity);
        // Closed only if this task is gone.
        let Ok(share) = Arc::clone(&space).acquire_many_owned(share).await else { return };
        if sender.send(Ok(Received { batch, _share: share })).is_err() {
            return;
        }
    }
}

/// The messages of a response.
struct Messages {
    body: Body,
    parser: Parser,
    /// What is left of a frame that held the end of a message.
    data: Option<bytes::Bytes>,
}

impl Messages {
    /// The next message; `None` at the end of a stream that succeeded.
    async fn next(&mut self) -> Result<Option<Message>, Error> {
        loop {
            if let Some(mut data) = self.data.take() {
                let message = self.parser.push(&mut data)?;
                if !data.is_empty() {
                    self.data = Some(data);
                }
                if message.is_some() {
                    return Ok(message);
                }
                continue;
            }
            let Some(frame) = self.body.frame().await else {
                return Err(Error::Status(Status::unavailable("the stream ended without a status")));
            };
            match frame?.into_data() {
                Ok(data) => self.data = Some(data).filter(|data| !data.is_empty()),
                Err(frame) => {
                    let trailers = frame.into_trailers().unwrap_or_default();
                    let status = Status::from_header_map(&trailers)
                        .unwrap_or_else(|| Status::unavailable("the stream ended without a status"));
                    return match status.code() {
                        Code::Ok if self.parser.at_boundary() => Ok(None),
                        Code::Ok => Err(Error::protocol("the stream ended within a message")),
                        _ => Err(status.into()),
                    };
                }
            }
        }
    }
}

fn schema_of(message: &Message) -> Result<SchemaRef, Error> {
    let malformed = |error: &dyn std::fmt::Display| Error::protocol(format!("malformed schema: {error}"));
    let root = arrow_ipc::root_as_message(&message.header).map_err(|error| malformed(&error))?;
    let schema = root.header_as_schema();
    let schema = schema.ok_or_else(|| Error::protocol("the stream does not begin with its schema"))?;
    let schema: Schema = arrow_ipc::convert::fb_to_schema(schema);
    Ok(Arc::new(schema))
}

fn kibibytes(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX >> 3).max(1)
}
