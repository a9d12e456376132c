//! Batches that anybody may send, of keys or of replies: nothing is decoded before it is known to be what it says. And our own.

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_flight::FlightData;
use arrow_ipc::{MessageHeader, convert::fb_to_schema, reader::read_record_batch, root_as_message};
use arrow_schema::SchemaRef;
use bytes::Bytes;
use forebay_loader::Body;
use tonic::Status;

use crate::status;

/// The batch whose message has this header and body. Its arrays share the body.
///
/// # Errors
/// `INTERNAL` when it is none of ours.
pub(crate) fn read_own(schema: &SchemaRef, header: &[u8], body: &Bytes) -> Result<RecordBatch, Status> {
    let internal = |error: String| Status::internal(format!("the batch of an answer: {error}"));
    let message = root_as_message(header).map_err(|error| internal(error.to_string()))?;
    let batch = message.header_as_record_batch().ok_or_else(|| internal("it is none".to_owned()))?;
    let (body, none) = (Buffer::from(body.clone()), HashMap::new());
    read_record_batch(&body, batch, Arc::clone(schema), &none, None, &message.version())
        .map_err(|error| internal(error.to_string()))
}

/// The bytes of a body, without a copy if they are in one piece.
pub(crate) fn in_one_piece(body: Body) -> Bytes {
    match <[Bytes; 1]>::try_from(body.into_pieces()) {
        Ok([body]) => body,
        Err(pieces) => pieces.concat().into(),
    }
}

/// Reads the messages of one stream.
pub(super) struct BatchReader {
    /// What they are, in errors.
    what: &'static str,
    schema: Option<SchemaRef>,
}

impl BatchReader {
    pub(super) fn new(what: &'static str) -> Self {
        Self { what, schema: None }
    }

    /// Whether a message claims to hold a batch.
    pub(super) fn is_batch(message: &FlightData) -> bool {
        let is_batch = |data: &[u8]| {
            root_as_message(data).is_ok_and(|head| head.header_type() == MessageHeader::RecordBatch)
        };
        catch_unwind(AssertUnwindSafe(|| is_batch(&message.data_header))).unwrap_or(false)
    }

    /// The batch in a message, if there is one in it. `max_rows` bounds it.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for what is no such batch: damaged, compressed, of dictionaries, too long.
    pub(super) fn read(&mut self, data: &FlightData, max_rows: usize) -> Result<Option<RecordBatch>, Status> {
        if data.data_header.is_empty() {
            return Ok(None);
        }
        // What the decoder gives up on is one more thing that is no batch.
        catch_unwind(AssertUnwindSafe(|| self.message(data, max_rows)))
            .unwrap_or_else(|_| Err("the decoder gave up".to_owned()))
            .map_err(|detail| Status::invalid_argument(status::clip(&format!("{}: {detail}", self.what))))
    }

    fn message(&mut self, data: &FlightData, max_rows: usize) -> Result<Option<RecordBatch>, String> {
        let message = root_as_message(&data.data_header).map_err(|error| error.to_string())?;
        match message.header_type() {
            MessageHeader::Schema => {
                let schema = message.header_as_schema().ok_or("a schema is missing")?;
                self.schema = Some(Arc::new(fb_to_schema(schema)));
                Ok(None)
            }
            MessageHeader::RecordBatch => {
                let batch = message.header_as_record_batch().ok_or("a batch is missing")?;
                let schema = self.schema.as_ref().ok_or("a batch came before the schema")?;
                if batch.compression().is_some() {
                    return Err("they are compressed; send them as they are".to_owned());
                }
                if usize::try_from(batch.length()).map_or(true, |rows| rows > max_rows) {
                    return Err(format!("{} at once, expected at most {max_rows}", batch.length()));
                }
                for buffer in batch.buffers().into_iter().flatten() {
                    let end = u64::try_from(buffer.offset()).ok().zip(u64::try_from(buffer.length()).ok());
                    let end = end.and_then(|(offset, length)| offset.checked_add(length));
                    if end.is_none_or(|end| end > data.data_body.len() as u64) {
                        return Err("a buffer lies outside of the message".to_owned());
                    }
                }
                let body = Buffer::from(data.data_body.clone());
                let none = HashMap::new();
                read_record_batch(&body, batch, Arc::clone(schema), &none, None, &message.version())
                    .map(Some)
                    .map_err(|error| error.to_string())
            }
            MessageHeader::DictionaryBatch => Err("they are of dictionaries; send the values".to_owned()),
            other => Err(format!("a message of type {other:?}, expected a schema or a batch")),
        }
    }
}
