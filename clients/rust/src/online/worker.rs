//! A worker of a batch queue.

use std::time::Duration;

use arrow_schema::SchemaRef;
use forebay_proto::v1::{BatchRequest, Command};
use prost::Message as _;
use tokio::{sync::Semaphore, time::Instant};

use super::{inference_batch::InferenceBatch, replies::Replies};
use crate::{
    Batch, Batches, Config, Error,
    batches::{Item, Source},
    memory::Slabs,
    route::{Attempts, OpenedExchange, Route, Target},
    wire::{Message, Response},
};

/// Default number of credits.
const DEFAULT_CREDITS: u64 = 2;

/// A worker of a batch queue. It prefetches one batch per credit. A worker of a [`Client`](crate::Client) reconnects to any server
/// after a lost connection or a restart; the server assigns its unfinished batches to another worker.
pub struct Worker {
    route: Route,
    command: Command,
    credits: usize,
    slabs: Slabs,
    running: Option<Running>,
    /// Subject of the notices of the worker.
    subject: String,
    /// Attempts since the last received batch.
    attempts: Attempts,
    schema: SchemaRef,
    ended: bool,
}

struct Running {
    features: Batches<Features>,
    replies: Replies,
    target: Option<Target>,
    since: Instant,
    /// Number of received batches.
    received: u64,
}

impl Worker {
    /// Opens an exchange with `queue`. `credits` is the number of batches in flight; 0 selects 2.
    pub(crate) async fn open(route: Route, queue: &str, credits: u64) -> Result<Self, Error> {
        let worker = forebay_proto::v1::Worker { queue: queue.to_owned(), credits };
        let credits = if credits == 0 { DEFAULT_CREDITS } else { credits };
        let slabs = Slabs::new(route.config().idle_slab_bytes);
        let subject = format!("batches of queue '{queue}'");
        let attempts = route.attempts(&subject, route.config().retry_deadline);
        let mut worker = Self {
            route,
            command: Command { worker: Some(worker), ..Command::default() },
            credits: usize::try_from(credits).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS / 2),
            slabs,
            running: None,
            subject,
            attempts,
            schema: SchemaRef::new(arrow_schema::Schema::empty()),
            ended: false,
        };
        worker.connect().await?;
        Ok(worker)
    }

    /// Returns the schema of the features at the start of the current exchange. Batches of later snapshots can differ; see
    /// [`Batch::schema`].
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Waits for the next batch. Returns `None` after the server has ended the exchange without an error, and after an error.
    /// Cancel-safe.
    ///
    /// # Errors
    /// - [`Error::Status`] if the server rejects the worker.
    /// - [`Error::RetryDeadlineExceeded`] if no server was reached in time.
    /// - [`Error::Lost`] if the exchange of a [`Connection`](crate::Connection) was lost.
    pub async fn next(&mut self) -> Result<Option<InferenceBatch>, Error> {
        while !self.ended {
            if self.running.is_none()
                && let Err(error) = self.connect().await
            {
                self.ended = true;
                return Err(error);
            }
            let Some(Running { features, replies, since, received, .. }) = self.running.as_mut() else {
                break;
            };
            match features.next().await {
                Some(Ok(Features { batch, metadata })) => {
                    *received += 1;
                    self.attempts.restart(self.route.config().retry_deadline);
                    self.attempts.served(*since, *received);
                    return Ok(Some(InferenceBatch::new(batch, metadata, replies.clone())));
                }
                Some(Err(error)) => self.recover(error).await?,
                None => self.ended = true,
            }
        }
        Ok(None)
    }

    /// Closes the worker. Waits up to [`Config::answer_grace`] until the server has received the replies; a dropped worker may
    /// lose the last ones. The server assigns prefetched batches to another worker.
    pub async fn close(mut self) {
        let Some(Running { mut features, replies, .. }) = self.running.take() else { return };
        replies.close();
        let end = async { while let Some(Ok(_)) = features.next().await {} };
        // After the grace time, the remaining replies are dropped.
        drop(tokio::time::timeout(self.route.config().answer_grace, end).await);
    }

    /// Opens an exchange, until the retry deadline.
    async fn connect(&mut self) -> Result<(), Error> {
        let deadline = self.route.config().retry_deadline;
        let running = self.route.run(&self.subject, deadline, |limit| self.attempt(limit)).await?;
        self.schema = SchemaRef::clone(running.features.schema());
        self.running = Some(running);
        Ok(())
    }

    async fn attempt(&self, limit: Option<Duration>) -> Result<Running, Error> {
        // Capacity for one reply per credit, each with a schema.
        let capacity = 2 * self.credits + 1;
        let opened = self.route.open(&self.command, capacity, &self.slabs, limit).await?;
        let OpenedExchange { outgoing, mut response, target, max_message_bytes } = opened;
        let schema = response.read_schema().await;
        let schema = schema.inspect_err(|error| self.route.failed(target, error))?;
        // The next batch may be long in coming.
        response.limit_silence(None);
        let replies = Replies::new(response.url(), outgoing, max_message_bytes);
        let prefetch = Config { prefetch_batches: self.credits as u64, ..(**self.route.config()).clone() };
        let source = FeatureStream { response, schema: SchemaRef::clone(&schema) };
        let features = Batches::receive(source, schema, &prefetch);
        Ok(Running { features, replies, target, since: Instant::now(), received: 0 })
    }

    /// Drops a failed exchange and waits before the next attempt.
    ///
    /// # Errors
    /// `error` if it is final; [`Error::RetryDeadlineExceeded`] if repeated attempts failed for too long.
    async fn recover(&mut self, error: Error) -> Result<(), Error> {
        let Some(Running { target, since, received, .. }) = self.running.take() else { return Err(error) };
        self.route.failed(target, &error);
        let config = self.route.config();
        if !self.route.retries() || !(error.is_transient() || config.can_renew_token(&error)) {
            self.ended = true;
            return Err(error);
        }
        tracing::warn!(%error, "worker exchange failed; reconnecting");
        if self.attempts.served(since, received) {
            self.attempts.restart(config.retry_deadline);
        }
        let paused = self.attempts.pause(error, self.route.targets()).await;
        self.ended = paused.is_err();
        paused
    }
}

/// A prefetched batch.
struct Features {
    batch: Batch,
    metadata: BatchRequest,
}

impl Item for Features {
    fn rows_and_bytes(&self) -> (u64, u64) {
        self.batch.rows_and_bytes()
    }
}

/// The batches of one exchange.
struct FeatureStream {
    response: Response,
    schema: SchemaRef,
}

impl FeatureStream {
    fn features(&self, message: Message) -> Result<Features, Error> {
        let metadata = BatchRequest::decode(message.app_metadata.as_slice());
        let metadata = metadata.map_err(Error::malformed("metadata of a batch"))?;
        let batch = Batch::new(message, SchemaRef::clone(&self.schema))?;
        if metadata.valid_rows > batch.rows() {
            let (valid, rows) = (metadata.valid_rows, batch.rows());
            return Err(Error::BatchMismatch(format!("a batch of {rows} rows has {valid} valid rows")));
        }
        Ok(Features { batch, metadata })
    }
}

impl Source for FeatureStream {
    type Item = Features;

    async fn next(&mut self) -> Result<Option<Features>, Error> {
        while let Some(message) = self.response.next().await? {
            match message.schema()? {
                // A later snapshot can have other columns.
                Some(schema) => self.schema = schema,
                None => return self.features(message).map(Some),
            }
        }
        Ok(None)
    }
}
