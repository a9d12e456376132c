//! Batch in its final form: the body and metadata of an Arrow IPC record-batch message.

use std::{collections::HashMap, sync::Arc};

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_ipc::{
    FieldNode, MessageBuilder, MessageHeader, MetadataVersion, RecordBatchBuilder,
    reader::read_record_batch,
    root_as_message,
    writer::{DictionaryTracker, IpcDataGenerator, IpcWriteContext, IpcWriteOptions},
};
use arrow_schema::SchemaRef;
use bytes::Bytes;
use flatbuffers::FlatBufferBuilder;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::{Error, TurnClock};

/// Alignment of the body and of each of its buffers, in bytes.
pub(crate) const ALIGNMENT: usize = 64;
/// Number of bytes that are hashed at a time. They take some 0.5 ms. With fewer, hashing in parts takes longer than at once.
const HASHED_BYTES: usize = 4 << 20;

/// Assembled batch. `header` is the flatbuffer `Message` of Arrow IPC (a Flight `data_header`). `body` is a Flight
/// `data_body`, padded to 64 bytes.
///
/// The bytes are a pure function of the view and the rows. Padding, unused bits and values under nulls are zero. A
/// validity buffer exists only if the batch has a null. Offsets start at 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WireBatch {
    /// Number of rows, without padding rows.
    pub rows: u64,
    /// Start of each group and end of the last group; empty if rows are not grouped.
    pub group_offsets: Vec<u32>,
    /// Message metadata.
    pub header: Bytes,
    /// Message body.
    pub body: Body,
    /// XXH3-64 (seed 0) of the body, if requested.
    pub hash: Option<u64>,
}

impl WireBatch {
    /// Encodes a batch, with a validity buffer for each of its columns.
    ///
    /// # Errors
    /// Returns [`Error::Internal`] if the batch does not fit into one message.
    pub fn encode(batch: &RecordBatch) -> Result<Self, Error> {
        let (mut tracker, options) = (DictionaryTracker::new(false), IpcWriteOptions::default());
        let (_, encoded) = IpcDataGenerator::default()
            .encode(batch, &mut tracker, &options, &mut IpcWriteContext::default())
            .map_err(|error| Error::Internal(format!("encoding a batch: {error}")))?;
        let (header, body) = (encoded.ipc_message.into(), Body::new([encoded.arrow_data.into()]));
        let rows = batch.num_rows() as u64;
        Ok(Self { rows, group_offsets: Vec::new(), header, body, hash: None })
    }

    /// Decodes the header and body of a batch of this crate. The arrays share the memory of `body`.
    ///
    /// # Errors
    /// Returns [`Error::Internal`] if the bytes are not a valid batch of `schema`.
    pub fn decode(schema: &SchemaRef, header: &[u8], body: &Bytes) -> Result<RecordBatch, Error> {
        let internal = |error: String| Error::Internal(format!("decoding a batch: {error}"));
        let message = root_as_message(header).map_err(|error| internal(error.to_string()))?;
        let batch = message.header_as_record_batch().ok_or_else(|| internal("no record batch".to_owned()))?;
        let (body, no_dictionaries) = (Buffer::from(body.clone()), HashMap::new());
        read_record_batch(&body, batch, Arc::clone(schema), &no_dictionaries, None, &message.version())
            .map_err(|error| internal(error.to_string()))
    }

    /// Concatenates the columns of batches with equal numbers of rows into one batch.
    ///
    /// # Errors
    /// Returns [`Error::Internal`] if `batches` is empty, if the row counts differ, if a header is invalid, or if a
    /// body is not padded.
    pub fn join_columns(mut batches: Vec<Self>) -> Result<Self, Error> {
        let internal = |what: &str| Error::Internal(format!("batches to be joined: {what}"));
        if let ([_], Some(only)) = (batches.as_slice(), batches.first().cloned()) {
            return Ok(only);
        }
        let (mut layout, mut length) = (Layout::default(), None);
        for batch in &batches {
            let message = root_as_message(&batch.header).map_err(|error| internal(&error.to_string()))?;
            let header = message.header_as_record_batch().ok_or_else(|| internal("a batch has no header"))?;
            if *length.get_or_insert(header.length()) != header.length() {
                return Err(internal("the row counts differ"));
            }
            let start = layout.end as i64;
            layout.nodes.extend(header.nodes().into_iter().flatten().copied());
            let buffers = header.buffers().into_iter().flatten();
            layout.buffers.extend(
                buffers.map(|buffer| arrow_ipc::Buffer::new(start + buffer.offset(), buffer.length())),
            );
            layout.end += batch.body.len().next_multiple_of(ALIGNMENT);
            if !batch.body.len().is_multiple_of(ALIGNMENT) {
                return Err(internal("a body is not padded"));
            }
        }
        let length =
            length.and_then(|length| usize::try_from(length).ok()).ok_or_else(|| internal("no batch"))?;
        let header = layout.header(length);
        let body = Body::new(batches.iter_mut().flat_map(|batch| std::mem::take(&mut batch.body.pieces)));
        let rows = batches.iter().map(|batch| batch.rows).max().unwrap_or(0);
        Ok(Self { rows, group_offsets: Vec::new(), header, body, hash: None })
    }
}

/// Message body as a sequence of byte ranges: an owned allocation aligned to 64 bytes, or rows referenced in frames
/// without a copy. Two bodies are equal if their bytes are equal, however they are split.
#[derive(Debug, Clone)]
pub struct Body {
    pieces: Vec<Bytes>,
    len: usize,
}

impl Body {
    /// Creates a body from consecutive `pieces`. Empty pieces are dropped.
    pub fn new(pieces: impl IntoIterator<Item = Bytes>) -> Self {
        let pieces: Vec<Bytes> = pieces.into_iter().filter(|piece| !piece.is_empty()).collect();
        Self { len: pieces.iter().map(Bytes::len).sum(), pieces }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the body has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the pieces, none of which is empty.
    pub fn into_pieces(self) -> Vec<Bytes> {
        self.pieces
    }

    /// Returns the bytes as one buffer, without a copy if the body is a single piece.
    pub fn into_bytes(self) -> Bytes {
        match <[Bytes; 1]>::try_from(self.pieces) {
            Ok([body]) => body,
            Err(pieces) => pieces.concat().into(),
        }
    }

    /// Copies the bytes into one vector.
    pub fn to_vec(&self) -> Vec<u8> {
        self.pieces.concat()
    }

    /// XXH3-64 (seed 0) of the bytes, computed in turns.
    pub(crate) async fn hash_in_turns(&self, turn: &mut TurnClock) -> u64 {
        if let [only] = self.pieces.as_slice()
            && only.len() <= HASHED_BYTES
        {
            return xxh3_64(only);
        }
        let mut hash = Xxh3::new();
        for part in self.pieces.iter().flat_map(|piece| piece.chunks(HASHED_BYTES)) {
            hash.update(part);
            turn.step().await;
        }
        hash.digest()
    }
}

impl PartialEq for Body {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.pieces.iter().flatten().eq(other.pieces.iter().flatten())
    }
}

impl Eq for Body {}

/// Positions of the buffers of a body.
#[derive(Default)]
pub(crate) struct Layout {
    nodes: Vec<FieldNode>,
    buffers: Vec<arrow_ipc::Buffer>,
    end: usize,
}

impl Layout {
    /// Adds a node and returns its number.
    pub(crate) fn node(&mut self, rows: usize, nulls: usize) -> usize {
        self.nodes.push(FieldNode::new(rows as i64, nulls as i64));
        self.nodes.len() - 1
    }

    /// Sets the number of nulls of a node.
    pub(crate) fn set_nulls(&mut self, node: usize, nulls: usize) {
        let rows = self.nodes[node].length();
        self.nodes[node] = FieldNode::new(rows, nulls as i64);
    }

    /// Adds a buffer of `len` bytes and returns its start.
    pub(crate) fn buffer(&mut self, len: usize) -> usize {
        let start = self.end;
        self.buffers.push(arrow_ipc::Buffer::new(start as i64, len as i64));
        self.end = (start + len).next_multiple_of(ALIGNMENT);
        start
    }

    /// Number of bytes of the body so far, padded to the alignment.
    pub(crate) fn len(&self) -> usize {
        self.end
    }

    /// Zeroes the padding between buffers, because the memory may hold data of an earlier batch.
    pub(crate) fn clear_padding(&self, body: &mut [u8]) {
        for buffer in &self.buffers {
            let end = (buffer.offset() + buffer.length()) as usize;
            body[end..end.next_multiple_of(ALIGNMENT)].fill(0);
        }
    }

    /// Builds the flatbuffer `Message` of a record batch with `rows` rows.
    pub(crate) fn header(&self, rows: usize) -> Bytes {
        let mut builder =
            FlatBufferBuilder::with_capacity(256 + 16 * self.nodes.len() + 16 * self.buffers.len());
        let nodes = builder.create_vector(&self.nodes);
        let buffers = builder.create_vector(&self.buffers);
        let mut batch = RecordBatchBuilder::new(&mut builder);
        batch.add_length(rows as i64);
        batch.add_nodes(nodes);
        batch.add_buffers(buffers);
        let batch = batch.finish();
        let mut message = MessageBuilder::new(&mut builder);
        message.add_version(MetadataVersion::V5);
        message.add_header_type(MessageHeader::RecordBatch);
        message.add_bodyLength(self.end as i64);
        message.add_header(batch.as_union_value());
        let message = message.finish();
        builder.finish(message, None);
        Bytes::copy_from_slice(builder.finished_data())
    }
}
