//! Replies of a worker.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_flight::FlightData;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::reply_types::{self, Fitted};
use crate::{
    Error,
    wire::{EncodedRows, SentSchema, framed, framed_within},
};

/// Sends the replies of one exchange. Cheap to clone.
#[derive(Clone)]
pub(super) struct Replies {
    url: Arc<str>,
    /// Maximum size of a reply that the server receives, in bytes; `None` if it does not say.
    max_bytes: Option<u64>,
    state: Arc<Mutex<State>>,
}

struct State {
    /// `None` after the worker is closed.
    outgoing: Option<mpsc::Sender<Bytes>>,
    sent: SentSchema,
}

impl Replies {
    /// Creates the replies to the server at `url`.
    pub(super) fn new(url: &str, outgoing: mpsc::Sender<Bytes>, max_bytes: Option<u64>) -> Self {
        let state = State { outgoing: Some(outgoing), sent: SentSchema::default() };
        Self { url: url.into(), max_bytes, state: Arc::new(Mutex::new(state)) }
    }

    /// Sends rows with `metadata`, after their schema if they are the first ones, in the types of the earlier replies if those hold all
    /// values. Does not wait: the channel has capacity for one reply per credit. Replies to a server that sends more batches than
    /// credits are lost.
    ///
    /// # Errors
    /// [`Error::Request`] if the rows cannot be sent in the types of the earlier replies; [`Error::Status`] with `RESOURCE_EXHAUSTED`
    /// if the server does not receive replies of this size; [`Error::Lost`] if the exchange has ended.
    pub(super) fn send_rows(&self, rows: &RecordBatch, metadata: Bytes) -> Result<(), Error> {
        let earlier = self.state.lock().sent.get().cloned();
        let (rows, is_refined) = match earlier {
            Some(schema) => match reply_types::fitted(rows, &schema) {
                Fitted::Same(rows) => (rows, false),
                Fitted::Refined(rows) => (rows, true),
            },
            None => (rows.clone(), false),
        };
        let encoded = EncodedRows::new(&rows)?;
        let message = framed_within(&encoded.message(metadata), self.max_bytes, "")?;
        let mut state = self.state.lock();
        if is_refined {
            state.sent.reset();
        }
        let schema = state.sent.message_before(&encoded.schema)?;
        let outgoing = state.outgoing.as_ref().ok_or_else(|| self.ended())?;
        if let Some(schema) = schema {
            outgoing.try_send(schema).map_err(|_| self.ended())?;
        }
        outgoing.try_send(message).map_err(|_| self.ended())
    }

    /// Sends `metadata` without rows.
    pub(super) fn send_metadata(&self, metadata: Bytes) -> Result<(), Error> {
        let message = framed(&FlightData { app_metadata: metadata, ..FlightData::default() })?;
        let state = self.state.lock();
        let outgoing = state.outgoing.as_ref().ok_or_else(|| self.ended())?;
        outgoing.try_send(message).map_err(|_| self.ended())
    }

    fn ended(&self) -> Error {
        Error::lost(&self.url, "the exchange has ended; the server assigns the batch to another worker")
    }

    /// Ends the stream of replies.
    pub(super) fn close(&self) {
        self.state.lock().outgoing = None;
    }
}
