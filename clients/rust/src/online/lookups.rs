//! Rows by key.

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use forebay_proto::v1::{Command, Lookup, LookupMetadata};

use super::{answer::AnswerMetadata, requests::Requests};
use crate::{Batch, Error, route::Route, wire::EncodedRows};

/// Lookups of the same columns of one dataset. Any number of lookups can be in flight. They share one DoExchange stream, which is
/// closed after [`Config::idle_timeout`](crate::Config::idle_timeout) or on drop, and reopened when needed.
pub struct Lookups {
    requests: Requests<LookupMetadata>,
    schema: SchemaRef,
}

/// The answer to a lookup.
#[derive(Debug, Clone)]
pub struct Found {
    /// One row for each key, in the order of the keys. The last column, `found` (uint8), is 1 for existing keys. Rows of missing
    /// keys are null, or zero in tensors. The memory is aligned like that of training batches.
    pub batch: Batch,
    /// Snapshot of the rows, its age, and the number of existing keys.
    pub metadata: LookupMetadata,
}

impl AnswerMetadata for LookupMetadata {
    const IN_ORDER: bool = true;

    fn request(&self) -> u64 {
        0
    }

    /// Returns `None`: answers are in order, so that each request needs one.
    fn cancellation(_: u64) -> Option<Vec<u8>> {
        None
    }
}

impl Lookups {
    /// Opens the exchange for `lookup`.
    pub(crate) async fn open(route: Route, lookup: &Lookup) -> Result<Self, Error> {
        let command = Command { lookup: Some(lookup.clone()), ..Command::default() };
        let requests = Requests::new(route, command);
        let schema = requests.open().await?.schema.clone();
        let schema = schema.ok_or_else(|| Error::protocol("the answers have no schema"))?;
        Ok(Self { requests, schema })
    }

    /// Returns the schema of every answer.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Looks up the rows of `keys`, which needs one column for each key column, with its name. The types must be the same in all
    /// calls.
    ///
    /// Waits while [`Config::max_in_flight`](crate::Config::max_in_flight) lookups are in flight. Lookups of a
    /// [`Client`](crate::Client) are retried, also on other servers, until the retry deadline. Cancel-safe; dropping the future
    /// does not affect other lookups.
    ///
    /// # Errors
    /// - [`Error::Request`] if the keys cannot be encoded.
    /// - [`Error::Status`] if the server rejects the keys. Other lookups in flight are retried on a new exchange.
    /// - [`Error::BatchMismatch`] if the columns have changed with a new snapshot, or differ on another server. Open new lookups.
    /// - [`Error::RetryDeadlineExceeded`] if no server answered in time.
    /// - [`Error::Lost`] if the exchange of a [`Connection`](crate::Connection) was lost.
    pub async fn get(&self, keys: &RecordBatch) -> Result<Found, Error> {
        let encoded = EncodedRows::new(keys)?;
        let route = self.requests.route();
        let run = || route.run(route.config().retry_deadline, || self.attempt(&encoded, keys.num_rows()));
        match run().await {
            // The token of the exchange has expired. A new exchange reads the token file again.
            Err(error) if route.config().can_renew_token(&error) => run().await,
            found => found,
        }
    }

    async fn attempt(&self, encoded: &EncodedRows, keys: usize) -> Result<Found, Error> {
        let permit = self.requests.permit().await;
        let exchange = self.requests.exchange().await?;
        if exchange.schema.as_ref() != Some(&self.schema) {
            return Err(Error::BatchMismatch(
                "the columns have changed since the first lookup; open new lookups".into(),
            ));
        }
        let answer = exchange.send(encoded, |_| Vec::new(), permit)?.wait().await?;
        let (batch, metadata) = answer.into_rows(keys)?;
        Ok(Found { batch, metadata })
    }
}
