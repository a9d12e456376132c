//! One batch for a worker.

use arrow_array::RecordBatch;
use bytes::Bytes;
use forebay_proto::v1::{BatchReply, BatchRequest};
use prost::Message;

use super::replies::Replies;
use crate::{Batch, Error, wire::EncodedRows};

/// A batch that a worker computes. If it is dropped without a reply, it counts as failed, and the server tries its requests again.
pub struct InferenceBatch {
    /// Features. The first [`BatchRequest::valid_rows`] rows are requested; further rows are padding.
    pub batch: Batch,
    /// Number of valid rows, remaining time, and snapshots of the features.
    pub metadata: BatchRequest,
    /// `None` after the reply.
    replies: Option<Replies>,
}

impl InferenceBatch {
    /// Creates a batch whose reply is sent by `replies`.
    pub(super) fn new(batch: Batch, metadata: BatchRequest, replies: Replies) -> Self {
        Self { batch, metadata, replies: Some(replies) }
    }

    /// Sends `rows`: one for each valid row, or one for each row of the batch. All replies must have columns of the same names and
    /// types. Does not wait.
    ///
    /// # Errors
    /// - [`Error::Request`] if `rows` does not fit the batch. Its callers receive the error, too.
    /// - [`Error::Lost`] if the exchange has ended. The server assigns the batch to another worker, and
    ///   [`Worker::next`](crate::Worker::next) continues.
    pub fn reply(mut self, rows: &RecordBatch) -> Result<(), Error> {
        let Some(replies) = self.replies.take() else { return Ok(()) };
        let sent =
            self.encode(rows).and_then(|rows| replies.send_rows(&rows, self.reply_metadata(String::new())));
        if let Err(error @ Error::Request(_)) = &sent {
            self.reject(&replies, error.to_string());
        }
        sent
    }

    /// Sends an error with `reason` to the callers of the batch.
    pub fn fail(mut self, reason: impl Into<String>) {
        if let Some(replies) = self.replies.take() {
            self.reject(&replies, reason.into());
        }
    }

    fn encode(&self, rows: &RecordBatch) -> Result<EncodedRows, Error> {
        let (found, valid, all) = (rows.num_rows() as u64, self.metadata.valid_rows, self.batch.rows());
        if found != valid && found != all {
            let padded = if all == valid { String::new() } else { format!(", or {all} with padding") };
            return Err(Error::Request(format!("the reply has {found} rows, expected {valid}{padded}")));
        }
        EncodedRows::new(rows)
    }

    fn reject(&self, replies: &Replies, reason: String) {
        // An empty error would mark the message as a successful reply.
        let reason = if reason.is_empty() { "the worker gave no reason".to_owned() } else { reason };
        // Fails if the exchange has ended. The server then assigns the batch to another worker.
        drop(replies.send_metadata(self.reply_metadata(reason)));
    }

    fn reply_metadata(&self, error: String) -> Bytes {
        BatchReply { batch: self.metadata.batch, error }.encode_to_vec().into()
    }
}

impl Drop for InferenceBatch {
    fn drop(&mut self) {
        if let Some(replies) = self.replies.take() {
            self.reject(&replies, "the worker dropped the batch without a reply".to_owned());
        }
    }
}
