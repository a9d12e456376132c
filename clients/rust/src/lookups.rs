//! Rows by their keys.

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use forebay_proto::v1::{Command, Lookup, LookupMetadata};

use crate::{
    Batch, Error,
    requests::{About, Answered, Asked, Requests},
    route::Route,
};

/// Lookups of one kind: the same columns of the same dataset. Any number of them may be on their way at a time, by one
/// exchange with a server, of which they are answered in order; it is closed when this is dropped, or has been idle for
/// [`Config::idle_exchange`](crate::Config), and opened again when needed.
pub struct Lookups {
    requests: Requests<LookupMetadata>,
    schema: SchemaRef,
}

/// The rows of some keys.
#[derive(Debug, Clone)]
pub struct Found {
    /// A row for each key, in their order. Its last column, `found` (uint8), says of which keys there is one; the others are
    /// null, or zero in tensors. It lies in memory like that of batches of training.
    pub batch: Batch,
    /// The snapshot that the rows are of, its age, and how many were found.
    pub about: LookupMetadata,
}

impl About for LookupMetadata {
    const IN_ORDER: bool = true;

    fn request(&self) -> u64 {
        0
    }

    /// Answers come in order, so each has to come.
    fn withdrawal(_: u64) -> Option<Vec<u8>> {
        None
    }
}

impl Lookups {
    pub(crate) async fn open(route: Route, wanted: &Lookup) -> Result<Self, Error> {
        let command = Command { lookup: Some(wanted.clone()), ..Command::default() };
        let requests = Requests::new(route, command);
        let pipeline =
            requests.route().run(requests.route().config().deadline, || requests.pipeline()).await?;
        let schema = pipeline.schema().cloned();
        let schema = schema.ok_or_else(|| Error::protocol("the answers have no schema"))?;
        Ok(Self { requests, schema })
    }

    /// The schema of every answer.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The rows of `keys`, which has a column for each of the key's, by its name; those of all batches have the same types.
    /// It waits while [`Config::max_requests`](crate::Config) are on their way. Of a [`Client`](crate::Client) it asks
    /// again, and other servers, until the deadline. Cancel-safe, and dropping it disturbs no other.
    ///
    /// # Errors
    /// [`Error::Request`] for keys that can't be sent; the server's own, by their status, which end this exchange (those
    /// behind it are asked again by another one); [`Error::Foreign`] when the columns have changed with a snapshot, or are
    /// others on another server: look up anew; [`Error::GaveUp`] when the deadline is over. Of a
    /// [`Connection`](crate::Connection), what is lost with the exchange is [`Error::Lost`].
    pub async fn get(&self, keys: &RecordBatch) -> Result<Found, Error> {
        let asked = Asked::new(keys)?;
        let route = self.requests.route();
        let run = || route.run(route.config().deadline, || self.attempt(&asked));
        let found = match run().await {
            // The token that the exchange began with is no longer good; its file may hold another one.
            Err(error) if route.config().renews(&error) => run().await?,
            found => found?,
        };
        if found.batch.rows() != keys.num_rows() as u64 {
            let (rows, keys) = (found.batch.rows(), keys.num_rows());
            return Err(Error::Foreign(format!("{rows} rows came for {keys} keys")));
        }
        Ok(found)
    }

    async fn attempt(&self, asked: &Asked) -> Result<Found, Error> {
        let place = self.requests.place().await;
        let pipeline = self.requests.pipeline().await?;
        if pipeline.schema() != Some(&self.schema) {
            return Err(Error::Foreign(
                "the columns have changed since the first lookup; look up anew".into(),
            ));
        }
        let Answered { rows, about } = pipeline.send(asked, |_| Vec::new(), place)?.wait().await?;
        let batch = rows.ok_or_else(|| Error::protocol("an answer came without rows"))?;
        Ok(Found { batch, about })
    }
}
