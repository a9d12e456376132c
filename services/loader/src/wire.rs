//! A batch in its final form: the body and metadata of an Arrow IPC record-batch message.

use arrow_ipc::{
    FieldNode, MessageBuilder, MessageHeader, MetadataVersion, RecordBatchBuilder, root_as_message,
};
use bytes::Bytes;
use flatbuffers::FlatBufferBuilder;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::Error;

/// Alignment of the body and of every buffer in it, in bytes.
pub(crate) const ALIGNMENT: usize = 64;

/// One assembled batch. `header` is the flatbuffer `Message` of Arrow IPC (a Flight `data_header`),
/// `body` a Flight `data_body`, padded to 64 bytes.
///
/// Its bytes are a pure function of the view and the rows: padding, unused bits and values under nulls
/// are zero, a validity buffer is there only if the batch has a null, offsets start at 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WireBatch {
    /// Number of rows, without those that pad it.
    pub rows: u64,
    /// Where each group begins, and last where all end, if rows are grouped.
    pub group_offsets: Vec<u32>,
    /// Message metadata.
    pub header: Bytes,
    /// Message body.
    pub body: Body,
    /// XXH3-64 (seed 0) of the body, if it was asked for.
    pub hash: Option<u64>,
}

impl WireBatch {
    /// Batches of as many rows each as one, whose columns are theirs in turn.
    ///
    /// # Errors
    /// [`Error::Internal`] when they are not of as many rows, or their headers are none of ours.
    pub fn beside(mut batches: Vec<Self>) -> Result<Self, Error> {
        let internal =
            |what: &str| Error::Internal(format!("batches that are put beside each other: {what}"));
        if let ([_], Some(only)) = (batches.as_slice(), batches.first().cloned()) {
            return Ok(only);
        }
        let (mut layout, mut length) = (Layout::default(), None);
        for batch in &batches {
            let message = root_as_message(&batch.header).map_err(|error| internal(&error.to_string()))?;
            let header = message.header_as_record_batch().ok_or_else(|| internal("one has no header"))?;
            if *length.get_or_insert(header.length()) != header.length() {
                return Err(internal("one has more rows"));
            }
            let start = layout.end as i64;
            layout.nodes.extend(header.nodes().into_iter().flatten().copied());
            let buffers = header.buffers().into_iter().flatten();
            layout.buffers.extend(
                buffers.map(|buffer| arrow_ipc::Buffer::new(start + buffer.offset(), buffer.length())),
            );
            layout.end += batch.body.len().next_multiple_of(ALIGNMENT);
            if !batch.body.len().is_multiple_of(ALIGNMENT) {
                return Err(internal("one is not padded"));
            }
        }
        let length = length
            .and_then(|length| usize::try_from(length).ok())
            .ok_or_else(|| internal("there is none"))?;
        let header = layout.header(length);
        let body = Body::new(batches.iter_mut().flat_map(|batch| std::mem::take(&mut batch.body.pieces)));
        let rows = batches.iter().map(|batch| batch.rows).max().unwrap_or(0);
        Ok(Self { rows, group_offsets: Vec::new(), header, body, hash: None })
    }
}

/// Bytes that are sent one behind the other: an allocation of their own, aligned to 64, or rows of frames as they lie
/// there. Bodies are equal if their bytes are, however they are cut.
#[derive(Debug, Clone)]
pub struct Body {
    pieces: Vec<Bytes>,
    len: usize,
}

impl Body {
    /// What `pieces` are one behind the other.
    pub fn new(pieces: impl IntoIterator<Item = Bytes>) -> Self {
        let pieces: Vec<Bytes> = pieces.into_iter().filter(|piece| !piece.is_empty()).collect();
        Self { len: pieces.iter().map(Bytes::len).sum(), pieces }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The pieces, none of them empty.
    pub fn into_pieces(self) -> Vec<Bytes> {
        self.pieces
    }

    /// The bytes in one place.
    pub fn to_vec(&self) -> Vec<u8> {
        self.pieces.concat()
    }

    /// XXH3-64 (seed 0) of the bytes.
    pub(crate) fn hash(&self) -> u64 {
        if let [only] = self.pieces.as_slice() {
            return xxh3_64(only);
        }
        let mut hash = Xxh3::new();
        self.pieces.iter().for_each(|piece| hash.update(piece));
        hash.digest()
    }
}

impl PartialEq for Body {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.pieces.iter().flatten().eq(other.pieces.iter().flatten())
    }
}

impl Eq for Body {}

/// Where the buffers of a body lie.
#[derive(Default)]
pub(crate) struct Layout {
    nodes: Vec<FieldNode>,
    buffers: Vec<arrow_ipc::Buffer>,
    end: usize,
}

impl Layout {
    pub(crate) fn node(&mut self, rows: usize, nulls: usize) {
        self.nodes.push(FieldNode::new(rows as i64, nulls as i64));
    }

    /// Places a buffer of `len` bytes and returns where it starts.
    pub(crate) fn buffer(&mut self, len: usize) -> usize {
        let start = self.end;
        self.buffers.push(arrow_ipc::Buffer::new(start as i64, len as i64));
        self.end = (start + len).next_multiple_of(ALIGNMENT);
        start
    }

    /// Bytes of the body so far, padded to the alignment.
    pub(crate) fn len(&self) -> usize {
        self.end
    }

    /// Clears what lies between the buffers, for the memory may hold an older batch.
    pub(crate) fn clear_padding(&self, body: &mut [u8]) {
        for buffer in &self.buffers {
            let end = (buffer.offset() + buffer.length()) as usize;
            body[end..end.next_multiple_of(ALIGNMENT)].fill(0);
        }
    }

    /// The flatbuffer `Message` of a record batch of `rows` rows.
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
