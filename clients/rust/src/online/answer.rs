//! Answers of the server to requests of an exchange.

use crate::{Batch, Error};

/// The metadata of an answer.
pub(super) trait AnswerMetadata: prost::Message + Default + 'static {
    /// True if answers have the order of their requests. The server then sends the schema of all answers when the exchange is
    /// opened, and an error status belongs to the first request without an answer.
    const IN_ORDER: bool;

    /// Returns the number of the answered request. Not used if answers are in order.
    fn request(&self) -> u64;

    /// Returns the metadata of a message that cancels request number `number`; `None` if requests cannot be cancelled.
    fn cancellation(number: u64) -> Option<Vec<u8>>;
}

/// An answer of the server.
pub(super) struct RawAnswer<M> {
    /// Rows of the answer; `None` if the server sent only metadata.
    pub(super) rows: Option<Batch>,
    pub(super) metadata: M,
}

impl<M> RawAnswer<M> {
    /// Returns the rows and the metadata.
    ///
    /// # Errors
    /// [`Error::Protocol`] without rows; [`Error::BatchMismatch`] unless there is one row for each of `keys` keys.
    pub(super) fn into_rows(self, keys: usize) -> Result<(Batch, M), Error> {
        let batch = self.rows.ok_or_else(|| Error::protocol("received an answer without rows"))?;
        if batch.rows() != keys as u64 {
            let rows = batch.rows();
            return Err(Error::BatchMismatch(format!("received {rows} rows for {keys} keys")));
        }
        Ok((batch, self.metadata))
    }
}
