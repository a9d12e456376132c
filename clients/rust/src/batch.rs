//! One received batch.

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_ipc::{reader::read_record_batch, root_as_message};
use arrow_schema::SchemaRef;
use bytes::Bytes;
use forebay_proto::{Encoding, v1::BatchMetadata};

use crate::{Error, parser::Message};

/// One batch. Its body lies in memory that is aligned to 64 bytes and is used again once neither the batch
/// nor anything made from it is held any more.
#[derive(Debug, Clone)]
pub struct Batch {
    /// Which batch it is. All zero from a server that is not Forebay.
    pub metadata: BatchMetadata,
    schema: SchemaRef,
    header: Bytes,
    body: Bytes,
    rows: u64,
}

impl Batch {
    /// The batch in `message`.
    pub(crate) fn new(message: Message, schema: SchemaRef) -> Result<Self, Error> {
        let metadata = match message.app_metadata.as_slice() {
            [] => BatchMetadata::default(),
            bytes => Encoding::of(bytes).decode("BatchMetadata", bytes).unwrap_or_default(),
        };
        let rows = record_batch(&message.header)?.length();
        let rows = u64::try_from(rows).map_err(|_| Error::protocol("a batch of negative length"))?;
        let body = message.body.map_or_else(Bytes::new, Bytes::from_owner);
        Ok(Self { metadata, schema, header: message.header.into(), body, rows })
    }

    /// Rows of the batch.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// The body of its Arrow IPC message: all buffers, each beginning at a multiple of 64 bytes when Forebay
    /// sent them.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// The batch as Arrow, without a copy.
    ///
    /// # Errors
    /// When header and body are no batch of the stream's schema.
    pub fn record_batch(&self) -> Result<RecordBatch, Error> {
        let message = root_as_message(&self.header).map_err(|error| malformed(&error))?;
        let batch = record_batch(&self.header)?;
        let body = Buffer::from(self.body.clone());
        let schema = SchemaRef::clone(&self.schema);
        read_record_batch(&body, batch, schema, &Default::default(), None, &message.version())
            .map_err(|error| malformed(&error))
    }
}

fn record_batch(header: &[u8]) -> Result<arrow_ipc::RecordBatch<'_>, Error> {
    let message = root_as_message(header).map_err(|error| malformed(&error))?;
    message.header_as_record_batch().ok_or_else(|| {
        Error::protocol(format!("a message of type {:?}, expected a batch", message.header_type()))
    })
}

fn malformed(error: &dyn std::fmt::Display) -> Error {
    Error::protocol(format!("malformed batch: {error}"))
}
