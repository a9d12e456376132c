//! Batches from clients: keys of callers and replies of workers.
//!
//! A message has a header, which describes the columns of a schema or the buffers of a batch, and a body with the buffers. What is decoded
//! has at most as many bytes as the message, except for views, which have a limit of their own. This is checked before anything is decoded,
//! on the threads of lookups for large messages.
//!
//! - `header`: verification of headers.
//! - `columns`: the columns of a schema that are decoded.
//! - `body`: checks of the buffers of a batch, and the one copy of them.
//! - `hostile`: messages for tests.

mod body;
mod columns;
mod header;
pub(crate) mod hostile;

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_flight::FlightData;
use arrow_ipc::MessageHeader;
use forebay_cache::catch_expected_panic;

use crate::{
    Error,
    auth::Access,
    callers::{Account, Charge, Resource},
    registry::online::OnlineDatasets,
};

use body::Checked;
use columns::Columns;
pub(crate) use columns::Wanted;

/// Memory of the columns of a schema for each byte of its header.
const COLUMN_BYTES: u64 = 8;
/// Memory of the columns of a schema that is not charged, in bytes. Most schemas are smaller.
const SMALL_SCHEMA_BYTES: u64 = 16 << 10;

const DICTIONARIES: &str = "dictionary-encoded batches are not supported; send the values";

/// Reader of the messages of one stream. Cheap to clone.
#[derive(Clone)]
pub(crate) struct BatchReader {
    settings: Arc<Settings>,
    schema: Option<Arc<Schema>>,
    /// True if a dictionary of the schema was received.
    has_dictionary: bool,
}

struct Settings {
    /// Name of the content in error messages.
    what: &'static str,
    wanted: Wanted,
    max_rows: usize,
    account: Account,
    /// True if a batch that the caller may not hold is rejected.
    is_limited: bool,
}

/// The columns of the last schema.
struct Schema {
    columns: Columns,
    _charge: Option<Charge>,
}

/// Content of a message.
pub(crate) enum Received {
    /// Nothing for the receiver: a schema, or a message without a header.
    Nothing,
    /// A batch, or the reason why it is rejected.
    Batch(Result<Rows, Error>),
}

/// A decoded batch.
pub(crate) struct Rows {
    pub(crate) rows: RecordBatch,
    /// Charge for what the batch takes in addition to its message. The message is charged while it is received.
    _charge: Option<Charge>,
}

/// A message after it was decoded.
enum Decoded {
    Nothing,
    Schema(Arc<Schema>),
    Dictionary,
    Batch(Result<Rows, Error>),
}

impl BatchReader {
    /// A reader of the columns `wanted` of requests, in batches of at most `max_rows` rows. A batch that takes more memory than its
    /// message is charged to `account`, and rejected if the caller holds too much.
    pub(crate) fn of_requests(wanted: Vec<String>, max_rows: usize, account: Account) -> Self {
        Self::new("keys", Wanted::Named(wanted), max_rows, account, true)
    }

    /// A reader of all columns of replies, for which other requests wait. They are charged without a limit.
    pub(crate) fn of_replies(max_rows: usize, account: Account) -> Self {
        Self::new("reply", Wanted::All, max_rows, account, false)
    }

    pub(crate) fn new(
        what: &'static str,
        wanted: Wanted,
        max_rows: usize,
        account: Account,
        is_limited: bool,
    ) -> Self {
        let settings = Arc::new(Settings { what, wanted, max_rows, account, is_limited });
        Self { settings, schema: None, has_dictionary: false }
    }

    /// Reads a message, on a thread of lookups if it is large.
    ///
    /// # Errors
    /// Invalid if the message is neither a schema nor a batch, or the schema is invalid; busy if the caller holds too much.
    pub(crate) async fn read(
        &mut self,
        online: &OnlineDatasets,
        access: &Access,
        message: FlightData,
    ) -> Result<Received, Error> {
        // The values of views may be larger than the message.
        let has_views = self.schema.as_ref().is_some_and(|schema| schema.columns.has_views);
        let bytes = message.data_header.len() + message.data_body.len();
        let reader = self.clone();
        let decode = move || reader.decode(&message);
        let decoded = online.work(access, if has_views { usize::MAX } else { bytes }, decode).await??;
        Ok(self.received(decoded))
    }

    /// Reads a message on this thread.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(crate) fn read_here(&mut self, message: &FlightData) -> Result<Received, Error> {
        let decoded = self.decode(message)?;
        Ok(self.received(decoded))
    }

    fn received(&mut self, decoded: Decoded) -> Received {
        match decoded {
            Decoded::Nothing => Received::Nothing,
            Decoded::Schema(schema) => {
                (self.schema, self.has_dictionary) = (Some(schema), false);
                Received::Nothing
            }
            Decoded::Dictionary => {
                self.has_dictionary = true;
                Received::Nothing
            }
            Decoded::Batch(batch) => Received::Batch(batch),
        }
    }

    fn decode(&self, message: &FlightData) -> Result<Decoded, Error> {
        if message.data_header.is_empty() {
            return Ok(Decoded::Nothing);
        }
        // A panic of the decoder counts as a malformed batch.
        catch_expected_panic(|| self.message(message))
            .unwrap_or_else(|_| Err(self.invalid("malformed batch")))
    }

    fn invalid(&self, detail: impl AsRef<str>) -> Error {
        Error::invalid(format!("{}: {}", self.settings.what, detail.as_ref()))
    }

    fn message(&self, data: &FlightData) -> Result<Decoded, Error> {
        let message = header::verified(&data.data_header).map_err(|detail| self.invalid(detail))?;
        match message.header_type() {
            MessageHeader::Schema => {
                let schema = message.header_as_schema().ok_or_else(|| self.invalid("a schema is missing"))?;
                let columns = Columns::read(schema, message.version(), &self.settings.wanted);
                let columns = columns.map_err(|detail| self.invalid(detail))?;
                let bytes = match self.settings.wanted {
                    Wanted::All => COLUMN_BYTES * data.data_header.len() as u64,
                    Wanted::Named(_) => 0,
                };
                let charge = (bytes > SMALL_SCHEMA_BYTES).then(|| self.charge(Resource::UnsentBytes, bytes));
                Ok(Decoded::Schema(Arc::new(Schema { columns, _charge: charge.transpose()? })))
            }
            MessageHeader::RecordBatch => {
                let batch = catch_expected_panic(|| self.batch(message, data));
                Ok(Decoded::Batch(batch.unwrap_or_else(|_| Err(self.invalid("malformed batch")))))
            }
            MessageHeader::DictionaryBatch => {
                if self.schema.as_ref().is_some_and(|schema| !schema.columns.has_dictionaries) {
                    return Ok(Decoded::Nothing);
                }
                // The batch that follows names the request that fails.
                if !self.settings.is_limited {
                    return Ok(Decoded::Dictionary);
                }
                Err(self.invalid(DICTIONARIES))
            }
            other => Err(self.invalid(format!("a message of type {other:?}, expected a schema or a batch"))),
        }
    }

    fn batch(&self, message: arrow_ipc::Message<'_>, data: &FlightData) -> Result<Rows, Error> {
        let batch = message.header_as_record_batch().ok_or_else(|| self.invalid("a batch is missing"))?;
        let schema = self.schema.as_ref().ok_or_else(|| self.invalid("a batch came before the schema"))?;
        if self.has_dictionary {
            return Err(self.invalid(DICTIONARIES));
        }
        if let Some(missing) = &schema.columns.missing {
            return Err(self.invalid(missing));
        }
        let checked = Checked::new(&schema.columns, batch, &data.data_body, self.settings.max_rows);
        let checked = checked.map_err(|detail| self.invalid(detail))?;
        let message_bytes = (data.data_header.len() + data.data_body.len()) as u64;
        let more_bytes = checked.bytes.saturating_sub(message_bytes);
        let resource = match self.settings.is_limited {
            true => Resource::IncomingBytes,
            false => Resource::ReplyBytes,
        };
        let charge = (more_bytes > 0).then(|| self.charge(resource, more_bytes));
        let _charge = charge.transpose()?;
        let rows = checked.decode().map_err(|detail| self.invalid(detail))?;
        Ok(Rows { rows, _charge })
    }

    fn charge(&self, resource: Resource, bytes: u64) -> Result<Charge, Error> {
        let Settings { account, is_limited, .. } = &*self.settings;
        if *is_limited { account.take(resource, bytes) } else { Ok(account.charge(resource, bytes)) }
    }
}

#[cfg(test)]
mod tests;
