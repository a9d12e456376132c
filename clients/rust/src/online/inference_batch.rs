//! One batch for a worker.

use arrow_array::RecordBatch;
use bytes::Bytes;
use forebay_proto::v1::{BatchReply, BatchRequest};
use prost::Message;

use super::replies::Replies;
use crate::{Batch, Error};

/// Maximum size of the reason of a failed batch, in bytes. The middle of a longer one is left out.
const MAX_REASON_BYTES: usize = 16 << 10;

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
    /// types. Integers and floats of 64 bits and columns without a value are converted to the types of earlier replies if these hold
    /// all values exactly. Does not wait.
    ///
    /// # Errors
    /// - [`Error::Request`] if `rows` does not fit the batch. Its callers receive the error, too.
    /// - [`Error::Status`] with `RESOURCE_EXHAUSTED` if the reply is larger than the server accepts. It is not sent. The batch has
    ///   failed, and the server divides it into smaller ones; a request that is alone in its batch fails with this error. The worker can
    ///   continue.
    /// - [`Error::Lost`] if the exchange has ended. The server assigns the batch to another worker, and
    ///   [`Worker::next`](crate::Worker::next) continues.
    pub fn reply(mut self, rows: &RecordBatch) -> Result<(), Error> {
        let Some(replies) = self.replies.take() else { return Ok(()) };
        let sent = self
            .check(rows)
            .and_then(|()| replies.send_rows(rows, self.reply_metadata(String::new(), false)));
        match &sent {
            Err(error @ Error::Request(_)) => self.reject(&replies, error.to_string(), false),
            Err(error @ Error::Status(_)) => {
                let (count, limit) = (rows.num_rows(), error.to_string());
                self.reject(&replies, format!("the reply of {count} rows is too large: {limit}"), true);
            }
            _ => {}
        }
        sent
    }

    /// Sends an error with `reason` to the callers of the batch. The middle of a reason of more than 16 KiB is left out.
    pub fn fail(mut self, reason: impl Into<String>) {
        if let Some(replies) = self.replies.take() {
            self.reject(&replies, reason.into(), false);
        }
    }

    fn check(&self, rows: &RecordBatch) -> Result<(), Error> {
        let (found, valid, all) = (rows.num_rows() as u64, self.metadata.valid_rows, self.batch.rows());
        if found != valid && found != all {
            let padded = if all == valid { String::new() } else { format!(", or {all} with padding") };
            return Err(Error::Request(format!("the reply has {found} rows, expected {valid}{padded}")));
        }
        Ok(())
    }

    fn reject(&self, replies: &Replies, reason: String, too_large: bool) {
        // An empty error would mark the message as a successful reply.
        let reason = if reason.is_empty() { "the worker gave no reason".to_owned() } else { reason };
        // Fails if the exchange has ended. The server then assigns the batch to another worker.
        drop(replies.send_metadata(self.reply_metadata(clipped(reason), too_large)));
    }

    fn reply_metadata(&self, error: String, too_large: bool) -> Bytes {
        BatchReply { batch: self.metadata.batch, error, too_large }.encode_to_vec().into()
    }
}

/// Returns a text of at most [`MAX_REASON_BYTES`] bytes: a longer one without its middle.
fn clipped(text: String) -> String {
    if text.len() <= MAX_REASON_BYTES {
        return text;
    }
    let half = MAX_REASON_BYTES / 2 - 8;
    let start = text.floor_char_boundary(half);
    let end = text.ceil_char_boundary(text.len() - half);
    format!("{} [...] {}", &text[..start], &text[end..])
}

impl Drop for InferenceBatch {
    fn drop(&mut self) {
        if let Some(replies) = self.replies.take() {
            self.reject(&replies, "the worker dropped the batch without a reply".to_owned(), false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_reason_keeps_its_beginning_and_its_end() {
        assert_eq!(clipped("short".into()), "short");
        let long = clipped(format!("first {} last", "\u{e9}".repeat(200_000)));
        assert!(long.len() <= MAX_REASON_BYTES && long.starts_with("first ") && long.ends_with(" last"));
    }
}
