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
    parser::Message,
    tensor::{expand, values},
};

/// One batch. Its body lies in memory that is aligned to 64 bytes and is used again once neither the batch
/// nor anything made from it is held any more.
#[derive(Debug, Clone)]
pub struct Batch {
    /// Which batch of a training it is. All zero if it is of none, or from a server that is not Forebay.
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
        Ok(Self { metadata, ..Self::of_rows(message, schema)? })
    }

    /// The batch in `message`, which is none of a training.
    pub(crate) fn of_rows(message: Message, schema: SchemaRef) -> Result<Self, Error> {
        let rows = record_batch(&message.header)?.length();
        let rows = u64::try_from(rows).map_err(|_| Error::protocol("a batch of negative length"))?;
        let body = message.body.map_or_else(Bytes::new, Bytes::from_owner);
        Ok(Self { metadata: BatchMetadata::default(), schema, header: message.header.into(), body, rows })
    }

    /// Rows of the batch.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Its columns and tensors.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
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

    /// The values of a column or tensor, without a copy. Of a ragged tensor these are the items of all rows, of one that is
    /// de-duplicated its distinct rows.
    ///
    /// # Errors
    /// [`Error::Request`] when there is none of this name; those of [`record_batch`](Self::record_batch).
    pub fn column(&self, name: &str) -> Result<ArrayRef, Error> {
        let batch = self.record_batch()?;
        let (index, field) = self.schema.column_with_name(name).ok_or_else(|| {
            let names: Vec<_> = self.schema.fields().iter().map(|field| field.name().as_str()).collect();
            Error::Request(format!("no column '{name}'; there are {}", names.join(", ")))
        })?;
        Ok(Arc::clone(values(field, batch.column(index))))
    }

    /// A tensor that is de-duplicated, with a row for each row of the batch.
    ///
    /// # Errors
    /// As [`column`](Self::column); [`Error::Protocol`] when its numbers are not those of its rows.
    pub fn expand(&self, name: &str) -> Result<ArrayRef, Error> {
        let (distinct, index) = (self.column(name)?, self.column(&format!("{name}_index"))?);
        expand(&distinct, &index).map_err(|why| Error::protocol(format!("tensor '{name}': {why}")))
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
