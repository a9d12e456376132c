//! Decoding of batches from clients (keys and replies), which are validated before they are decoded.

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_flight::FlightData;
use arrow_ipc::{
    Endianness, MessageHeader, convert::fb_to_schema, reader::read_record_batch, root_as_message,
};
use arrow_schema::SchemaRef;

use crate::Error;

/// Decodes the messages of one stream.
pub(crate) struct BatchReader {
    /// Name of the content in error messages.
    what: &'static str,
    schema: Option<SchemaRef>,
}

impl BatchReader {
    pub(crate) fn new(what: &'static str) -> Self {
        Self { what, schema: None }
    }

    /// True if the header of a message is that of a batch.
    pub(super) fn is_batch(message: &FlightData) -> bool {
        let is_batch = |data: &[u8]| {
            root_as_message(data).is_ok_and(|head| head.header_type() == MessageHeader::RecordBatch)
        };
        catch_unwind(AssertUnwindSafe(|| is_batch(&message.data_header))).unwrap_or(false)
    }

    /// Decodes the batch in a message, if it has one.
    ///
    /// # Errors
    /// Invalid if the batch is malformed, compressed, dictionary-encoded or big-endian, or has more than `max_rows` rows.
    pub(crate) fn read(&mut self, data: &FlightData, max_rows: usize) -> Result<Option<RecordBatch>, Error> {
        if data.data_header.is_empty() {
            return Ok(None);
        }
        // A panic of the decoder counts as a malformed batch.
        catch_unwind(AssertUnwindSafe(|| self.message(data, max_rows)))
            .unwrap_or_else(|_| Err("malformed batch".to_owned()))
            .map_err(|detail| Error::invalid(format!("{}: {detail}", self.what)))
    }

    fn message(&mut self, data: &FlightData, max_rows: usize) -> Result<Option<RecordBatch>, String> {
        let message = root_as_message(&data.data_header).map_err(|error| error.to_string())?;
        match message.header_type() {
            MessageHeader::Schema => {
                let schema = message.header_as_schema().ok_or("a schema is missing")?;
                if schema.endianness() != Endianness::Little {
                    let detail = "big-endian batches are not supported; send them in little-endian order";
                    return Err(detail.to_owned());
                }
                self.schema = Some(Arc::new(fb_to_schema(schema)));
                Ok(None)
            }
            MessageHeader::RecordBatch => {
                let batch = message.header_as_record_batch().ok_or("a batch is missing")?;
                let schema = self.schema.as_ref().ok_or("a batch came before the schema")?;
                if batch.compression().is_some() {
                    return Err("compressed batches are not supported; send them uncompressed".to_owned());
                }
                if usize::try_from(batch.length()).map_or(true, |rows| rows > max_rows) {
                    return Err(format!("{} at once, expected at most {max_rows}", batch.length()));
                }
                for buffer in batch.buffers().into_iter().flatten() {
                    let end = u64::try_from(buffer.offset()).ok().zip(u64::try_from(buffer.length()).ok());
                    let end = end.and_then(|(offset, length)| offset.checked_add(length));
                    if end.is_none_or(|end| end > data.data_body.len() as u64) {
                        return Err("a buffer is outside of the message".to_owned());
                    }
                }
                let body = Buffer::from(data.data_body.clone());
                let none = HashMap::new();
                read_record_batch(&body, batch, Arc::clone(schema), &none, None, &message.version())
                    .map(Some)
                    .map_err(|error| error.to_string())
            }
            MessageHeader::DictionaryBatch => {
                Err("dictionary-encoded batches are not supported; send the values".to_owned())
            }
            other => Err(format!("a message of type {other:?}, expected a schema or a batch")),
        }
    }
}
