//! One received batch.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_buffer::Buffer;
use arrow_ipc::{reader::read_record_batch, root_as_message};
use arrow_schema::SchemaRef;
use bytes::Bytes;
use forebay_proto::{Encoding, v1::BatchMetadata};

use crate::{
    Error,
    tensor::{expand, values},
    wire::Message,
};

/// One received batch. Cheap to clone. Its body is aligned to 64 bytes. The memory is reused after the batch, its clones and all
/// arrays created from it are dropped.
#[derive(Debug, Clone)]
pub struct Batch {
    /// Position of the batch in its training. All zero for rows of lookups and queues, and for other Flight servers.
    pub metadata: BatchMetadata,
    schema: SchemaRef,
    header: Bytes,
    body: Bytes,
    rows: u64,
}

impl Batch {
    /// Creates the batch of a training from `message`.
    pub(crate) fn with_metadata(message: Message, schema: SchemaRef) -> Result<Self, Error> {
        let metadata = match message.app_metadata.as_slice() {
            [] => BatchMetadata::default(),
            bytes => Encoding::of(bytes).decode("BatchMetadata", bytes).unwrap_or_default(),
        };
        Ok(Self { metadata, ..Self::new(message, schema)? })
    }

    /// Creates a batch from `message`, without metadata.
    pub(crate) fn new(message: Message, schema: SchemaRef) -> Result<Self, Error> {
        let rows = record_batch(&message.header)?.length();
        let rows = u64::try_from(rows).map_err(|_| Error::protocol("a batch has a negative length"))?;
        let body = message.body.map_or_else(Bytes::new, Bytes::from_owner);
        Ok(Self { metadata: BatchMetadata::default(), schema, header: message.header.into(), body, rows })
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns the schema of the columns and tensors.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Returns the body of the Arrow IPC message, which contains all buffers. Forebay servers align each buffer to 64 bytes.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// Returns the batch as an Arrow `RecordBatch`, without a copy.
    ///
    /// # Errors
    /// [`Error::Protocol`] if header and body do not match the schema of the stream.
    pub fn record_batch(&self) -> Result<RecordBatch, Error> {
        let message = root_as_message(&self.header).map_err(Error::malformed("batch"))?;
        let batch = record_batch(&self.header)?;
        let body = Buffer::from(self.body.clone());
        let schema = SchemaRef::clone(&self.schema);
        read_record_batch(&body, batch, schema, &Default::default(), None, &message.version())
            .map_err(Error::malformed("batch"))
    }

    /// Returns the values of a column or tensor, without a copy. For a ragged tensor, these are the concatenated items of all
    /// rows; for a deduplicated tensor, its distinct rows.
    ///
    /// # Errors
    /// [`Error::Request`] if the batch has no column of this name; the errors of [`record_batch`](Self::record_batch).
    pub fn column(&self, name: &str) -> Result<ArrayRef, Error> {
        let batch = self.record_batch()?;
        let names = self.schema.fields().iter().map(|field| field.name().as_str());
        let found = self.schema.column_with_name(name);
        let (index, field) = found.ok_or_else(|| Error::no_column(name, names))?;
        Ok(Arc::clone(values(field, batch.column(index))))
    }

    /// Returns a deduplicated tensor with one row for each row of the batch. Copies the values.
    ///
    /// # Errors
    /// The errors of [`column`](Self::column); [`Error::Protocol`] if the index refers to a row that does not exist.
    pub fn expand(&self, name: &str) -> Result<ArrayRef, Error> {
        let (distinct, index) = (self.column(name)?, self.column(&format!("{name}_index"))?);
        expand(&distinct, &index).map_err(|reason| Error::protocol(format!("tensor '{name}': {reason}")))
    }
}

fn record_batch(header: &[u8]) -> Result<arrow_ipc::RecordBatch<'_>, Error> {
    let message = root_as_message(header).map_err(Error::malformed("batch"))?;
    message.header_as_record_batch().ok_or_else(|| {
        Error::protocol(format!("received a message of type {:?}, expected a batch", message.header_type()))
    })
}
