//! Replies of a worker.

use std::sync::Arc;

use arrow_flight::FlightData;
use arrow_schema::SchemaRef;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::{
    Error,
    wire::{EncodedRows, SentSchema, framed},
};

/// Sends the replies of one exchange. Cheap to clone.
#[derive(Clone)]
pub(super) struct Replies {
    url: Arc<str>,
    state: Arc<Mutex<State>>,
}

struct State {
    /// `None` after the worker is closed.
    outgoing: Option<mpsc::Sender<Bytes>>,
    sent: SentSchema,
}

impl Replies {
    /// Creates the replies to the server at `url`.
    pub(super) fn new(url: &str, outgoing: mpsc::Sender<Bytes>) -> Self {
        let state = State { outgoing: Some(outgoing), sent: SentSchema::default() };
        Self { url: url.into(), state: Arc::new(Mutex::new(state)) }
    }

    /// Sends rows with `metadata`, after their schema if they are the first ones. Does not wait: the channel has capacity for one
    /// reply per credit. Replies to a server that sends more batches than credits are lost.
    pub(super) fn send_rows(&self, rows: &EncodedRows, metadata: Bytes) -> Result<(), Error> {
        self.send(&rows.message(metadata), Some(&rows.schema))
    }

    /// Sends `metadata` without rows.
    pub(super) fn send_metadata(&self, metadata: Bytes) -> Result<(), Error> {
        self.send(&FlightData { app_metadata: metadata, ..FlightData::default() }, None)
    }

    fn send(&self, message: &FlightData, schema: Option<&SchemaRef>) -> Result<(), Error> {
        let message = framed(message)?;
        let mut state = self.state.lock();
        let ended = || {
            Error::lost(&self.url, "the exchange has ended; the server assigns the batch to another worker")
        };
        let State { outgoing, sent } = &mut *state;
        let outgoing = outgoing.as_ref().ok_or_else(ended)?;
        if let Some(schema) = schema
            && let Some(schema) = sent.message_before(schema)?
        {
            outgoing.try_send(schema).map_err(|_| ended())?;
        }
        outgoing.try_send(message).map_err(|_| ended())
    }

    /// Ends the stream of replies.
    pub(super) fn close(&self) {
        self.state.lock().outgoing = None;
    }
}
