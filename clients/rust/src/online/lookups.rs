//! Rows by key.

use std::{sync::OnceLock, time::Duration};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use forebay_proto::{
    code_of,
    v1::{Command, Failure, KeysMetadata, Lookup, LookupMetadata},
};
use prost::Message;
use tonic::Status;

use super::{
    answer::{AnswerMetadata, RawAnswer},
    exchange::Unanswered,
    requests::Requests,
};
use crate::{Batch, Error, route::Route, wire::EncodedRows};

/// Metadata of every batch of keys: the server answers a rejected one with its error, and continues. Servers of earlier versions
/// ignore it, and end the exchange.
const KEYS: KeysMetadata = KeysMetadata { continue_on_error: true };

/// Number of times that a lookup is sent again at once because another lookup ended the exchange before it. After them, it counts
/// as failed and is retried with delays.
const MAX_RESENDS: u32 = 8;

/// Shortest silence after which a lookup is sent to another server.
const MIN_SILENCE: Duration = Duration::from_millis(100);
/// Silence of a server with unanswered lookups after which a dropped lookup makes later ones leave it.
const STUCK_SILENCE: Duration = Duration::from_secs(1);

/// Lookups of the same columns of one dataset. Any number of lookups can be in flight. They share one DoExchange stream, which is
/// closed after [`Config::idle_timeout`](crate::Config::idle_timeout) or on drop, and reopened when needed.
pub struct Lookups {
    requests: Requests<LookupMetadata>,
    /// Schema of the first exchange.
    schema: OnceLock<SchemaRef>,
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
    /// Creates lookups without opening an exchange.
    pub(crate) fn new(route: Route, lookup: &Lookup) -> Self {
        let command = Command { lookup: Some(lookup.clone()), ..Command::default() };
        Self { requests: Requests::new(route, command), schema: OnceLock::new() }
    }

    /// Creates lookups and opens their exchange.
    pub(crate) async fn open(route: Route, lookup: &Lookup) -> Result<Self, Error> {
        let lookups = Self::new(route, lookup);
        let exchange = lookups.requests.open().await?;
        lookups.verify_schema(exchange.schema.as_ref())?;
        Ok(lookups)
    }

    /// Returns the schema of every answer; `None` before the first exchange was opened.
    pub fn schema(&self) -> Option<&SchemaRef> {
        self.schema.get()
    }

    /// Verifies that the schema of an exchange is that of the first one.
    fn verify_schema(&self, schema: Option<&SchemaRef>) -> Result<(), Error> {
        let schema = schema.ok_or_else(|| Error::protocol("the answers have no schema"))?;
        if self.schema.get_or_init(|| SchemaRef::clone(schema)) != schema {
            return Err(Error::BatchMismatch(
                "the columns have changed since the first lookup; open new lookups".into(),
            ));
        }
        Ok(())
    }

    /// Looks up the rows of `keys`, which needs one column for each key column, with its name. The types must be the same in all
    /// calls.
    ///
    /// Waits while [`Config::max_in_flight`](crate::Config::max_in_flight) lookups are in flight. Lookups of a
    /// [`Client`](crate::Client) are retried, also on other servers, until the retry deadline. If there is another server, and this one
    /// sends nothing for [`Config::attempt_timeout`](crate::Config::attempt_timeout) or, in the first round over the servers, for half of
    /// the remaining time, the lookup and later ones are sent to the next server. Cancel-safe; dropping the future does not affect other
    /// lookups.
    ///
    /// # Errors
    /// - [`Error::Request`] if the keys cannot be encoded.
    /// - [`Error::Status`] if the server rejects the keys, or their message is larger than every server accepts; it is not sent then. Other lookups are not affected. A server of an earlier version ends the
    ///   exchange; the other lookups in flight are then sent again.
    /// - [`Error::BatchMismatch`] if the columns have changed with a new snapshot, or differ on another server. Open new lookups.
    /// - [`Error::RetryDeadlineExceeded`] if no server answered in time.
    /// - [`Error::Lost`] if the exchange of a [`Connection`](crate::Connection) was lost.
    pub async fn get(&self, keys: &RecordBatch) -> Result<Found, Error> {
        self.get_within(keys, Duration::MAX).await
    }

    /// As [`get`](Self::get), until `timeout` has passed or, if it is shorter, until the retry deadline.
    ///
    /// # Errors
    /// As [`get`](Self::get). [`Error::RetryDeadlineExceeded`] also for a [`Connection`](crate::Connection).
    pub async fn get_within(&self, keys: &RecordBatch, timeout: Duration) -> Result<Found, Error> {
        let encoded = EncodedRows::new(keys)?;
        let route = self.requests.route();
        let timeout = timeout.min(route.config().retry_deadline);
        let attempt = |limit| self.attempt(&encoded, keys.num_rows(), limit);
        let run = || route.run(self.requests.subject(), timeout, attempt);
        match run().await {
            // The token of the exchange has expired. A new exchange reads the token file again.
            Err(error) if route.config().can_renew_token(&error) => run().await,
            found => found,
        }
    }

    async fn attempt(
        &self,
        encoded: &EncodedRows,
        keys: usize,
        limit: Option<Duration>,
    ) -> Result<Found, Error> {
        for _ in 0..=MAX_RESENDS {
            match self.ask(encoded, limit).await? {
                Ok(answer) => {
                    let (batch, metadata) = answer.into_rows(keys)?;
                    return Ok(Found { batch, metadata });
                }
                Err(Unanswered::Failed(error)) => return Err(error),
                Err(Unanswered::NotProcessed) => {}
            }
        }
        Err(Error::lost("the server", format!("it rejected {MAX_RESENDS} lookups before this one")))
    }

    async fn ask(
        &self,
        encoded: &EncodedRows,
        limit: Option<Duration>,
    ) -> Result<Result<RawAnswer<LookupMetadata>, Unanswered>, Error> {
        let permit = self.requests.permit().await;
        let exchange = self.requests.exchange(limit).await?;
        self.verify_schema(exchange.schema.as_ref())?;
        match exchange.send(encoded, |_| KEYS.encode_to_vec(), permit, Some(STUCK_SILENCE)) {
            Ok(pending) => {
                let mut answer = pending.wait(limit.map(|limit| limit.max(MIN_SILENCE))).await;
                let failure = answer.as_mut().ok().and_then(|answer| answer.metadata.error.take());
                let Some(failure) = failure else { return Ok(answer) };
                let error = rejected(failure);
                self.requests.leave_after(&exchange, &error);
                Err(error)
            }
            // The exchange has ended in the meantime, for example because the server has rejected another lookup.
            Err(Error::Lost { .. }) => Ok(Err(Unanswered::NotProcessed)),
            Err(error) => {
                // Another server may accept the size.
                self.requests.leave_after(&exchange, &error);
                Err(error)
            }
        }
    }
}

/// Returns the error of a lookup that the server rejected alone.
fn rejected(failure: Failure) -> Error {
    let mut status = Status::new(code_of(&failure.code), failure.message);
    if let Some(seconds) = failure.retry_after_seconds {
        // Saturates.
        status.metadata_mut().insert("retry-after", (seconds.ceil() as u64).into());
    }
    Error::Status(status)
}
