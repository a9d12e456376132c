//! The worker's side of a batch queue.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use arrow_array::RecordBatch;
use arrow_flight::FlightData;
use arrow_schema::SchemaRef;
use bytes::Bytes;
use forebay_proto::v1::{BatchReply, BatchRequest, Command, Serve};
use prost::Message as _;
use tokio::{
    sync::{Semaphore, mpsc},
    time::Instant,
};

use crate::{
    Batch, Batches, Config, Device, Error,
    batches::{Item, Source},
    lane::Attempts,
    messages::{Messages, framed},
    parser::Message,
    route::{Opened, Route},
    sending::{Sent, message},
    slabs::Slabs,
    stream::{first_schema, schema_of},
};

/// Batches at a time, where nothing else is asked for.
const DEFAULT_CREDITS: u64 = 2;
/// An exchange that lasted so long is no failed attempt to have one.
const LASTING: Duration = Duration::from_secs(10);

/// Computes the batches of a queue. They are received ahead, as many as there are credits. Of a [`Client`](crate::Client) it
/// goes on over lost connections, restarts and drains with whichever server answers; what it had in hand then is given to
/// another worker.
pub struct Worker {
    route: Route,
    command: Command,
    credits: usize,
    slabs: Slabs,
    running: Option<Running>,
    /// Of the exchanges that failed since a batch came.
    attempts: Option<Attempts>,
    schema: SchemaRef,
    ended: bool,
}

struct Running {
    features: Batches<Features>,
    replies: Replies,
    server: usize,
    since: Instant,
}

/// One batch to compute. Dropped without a reply, it is answered with an error, so that nobody waits for it.
pub struct Work {
    /// The features: in the rows that are asked for, and in others behind them that pad the batch.
    pub batch: Batch,
    /// How many rows are asked for, in which time, and of which snapshots they are.
    pub about: BatchRequest,
    /// Gone once there is a reply.
    replies: Option<Replies>,
}

impl Worker {
    pub(crate) async fn open(route: Route, queue: &str, credits: u64) -> Result<Self, Error> {
        let serve = Serve { queue: queue.to_owned(), credits };
        let credits = if credits == 0 { DEFAULT_CREDITS } else { credits };
        let slabs = Slabs::new(route.config().idle_slab_bytes, Device::host());
        let mut worker = Self {
            route,
            command: Command { serve: Some(serve), ..Command::default() },
            credits: usize::try_from(credits).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS / 2),
            slabs,
            running: None,
            attempts: None,
            schema: SchemaRef::new(arrow_schema::Schema::empty()),
            ended: false,
        };
        worker.begin().await?;
        Ok(worker)
    }

    /// The schema of the features, as the last exchange began with it; each batch has its own.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The next batch, as soon as one is asked for; `None` once the server has ended the queue's exchange in good order.
    /// Cancel-safe. After an error it is over.
    ///
    /// # Errors
    /// The server's own, by their status; [`Error::GaveUp`] when no server was reached until the deadline. Of a
    /// [`Connection`](crate::Connection) also [`Error::Lost`].
    pub async fn next(&mut self) -> Result<Option<Work>, Error> {
        while !self.ended {
            if self.running.is_none()
                && let Err(error) = self.begin().await
            {
                self.ended = true;
                return Err(error);
            }
            let Some(Running { features, replies, .. }) = self.running.as_mut() else { break };
            match features.next().await {
                Some(Ok(Features { batch, about })) => {
                    let replies = Some(replies.clone());
                    self.attempts = None;
                    return Ok(Some(Work { batch, about, replies }));
                }
                Some(Err(error)) => self.go_on(error).await?,
                None => self.ended = true,
            }
        }
        Ok(None)
    }

    /// Ends it, once its replies have been taken, for which it waits [`Config::answer_grace`]. Dropping it may lose the last of
    /// them. Batches that were not handed over are given to another worker.
    pub async fn close(mut self) {
        let Some(Running { mut features, replies, .. }) = self.running.take() else { return };
        replies.close();
        let end = async { while let Some(Ok(_)) = features.next().await {} };
        // Whoever does not want them has had the time to take them.
        drop(tokio::time::timeout(self.route.config().answer_grace, end).await);
    }

    /// Opens an exchange.
    async fn begin(&mut self) -> Result<(), Error> {
        let deadline = self.route.config().deadline;
        let running = self.route.run(deadline, || self.attempt()).await?;
        self.schema = SchemaRef::clone(running.features.schema());
        self.running = Some(running);
        Ok(())
    }

    async fn attempt(&self) -> Result<Running, Error> {
        // A reply for each batch, and the schema before the first.
        let opened = self.route.open(&self.command, self.credits + 1, &self.slabs).await?;
        let Opened { outgoing, mut messages, server } = opened;
        let schema = first_schema(&mut messages).await;
        let schema = schema.inspect_err(|error| self.route.failed(server, error))?;
        let replies = Replies::new(messages.url(), outgoing);
        let ahead = Config { prefetch_batches: self.credits as u64, ..(**self.route.config()).clone() };
        let source = Receiving { messages, schema: SchemaRef::clone(&schema) };
        let features = Batches::receive(source, schema, &ahead);
        Ok(Running { features, replies, server, since: Instant::now() })
    }

    /// Leaves an exchange that has failed, unless that is final.
    async fn go_on(&mut self, error: Error) -> Result<(), Error> {
        let Some(Running { server, since, .. }) = self.running.take() else { return Err(error) };
        self.route.failed(server, &error);
        let config = self.route.config();
        if !self.route.goes_on() || !(error.is_transient() || config.renews(&error)) {
            self.ended = true;
            return Err(error);
        }
        tracing::warn!(%error, "going on elsewhere");
        if since.elapsed() > LASTING {
            self.attempts = None;
        }
        let mut attempts = self.attempts.take().unwrap_or_else(|| self.route.attempts(config.deadline));
        let pause = attempts.pause(error);
        if Instant::now() >= attempts.until() {
            self.ended = true;
            return Err(attempts.gave_up());
        }
        self.attempts = Some(attempts);
        tokio::time::sleep(pause).await;
        Ok(())
    }
}

impl Work {
    /// Sends `rows`, which has a row for each one that is asked for, or for all of the batch. All replies have columns of the
    /// same names and types. It does not wait.
    ///
    /// # Errors
    /// [`Error::Request`] for rows that are no reply to this batch; its callers get that as an error. [`Error::Lost`] when the
    /// exchange is over: the batch is given to another worker, and [`Worker::next`] goes on.
    pub fn reply(mut self, rows: &RecordBatch) -> Result<(), Error> {
        let Some(replies) = self.replies.take() else { return Ok(()) };
        let sent = self.checked(rows).and_then(|message| {
            let message = FlightData { app_metadata: self.metadata(String::new()), ..message };
            replies.send(&message, Some(rows.schema_ref()))
        });
        if let Err(error @ Error::Request(_)) = &sent {
            self.refuse(&replies, error.to_string());
        }
        sent
    }

    /// Tells the callers that there is no answer, and why.
    pub fn fail(mut self, why: impl Into<String>) {
        if let Some(replies) = self.replies.take() {
            self.refuse(&replies, why.into());
        }
    }

    fn checked(&self, rows: &RecordBatch) -> Result<FlightData, Error> {
        let (found, asked, all) = (rows.num_rows() as u64, self.about.rows, self.batch.rows());
        if found != asked && found != all {
            let padded =
                if all == asked { String::new() } else { format!(", or {all} with those that pad it") };
            return Err(Error::Request(format!("the reply has {found} rows, expected {asked}{padded}")));
        }
        message(rows)
    }

    fn refuse(&self, replies: &Replies, why: String) {
        // Without a reason it would be a reply.
        let why = if why.is_empty() { "the worker gave no reason".to_owned() } else { why };
        let message = FlightData { app_metadata: self.metadata(why), ..FlightData::default() };
        // If the exchange is over, another worker has the batch.
        drop(replies.send(&message, None));
    }

    fn metadata(&self, error: String) -> Bytes {
        BatchReply { batch: self.about.batch, error }.encode_to_vec().into()
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if let Some(replies) = self.replies.take() {
            self.refuse(&replies, "the worker dropped the batch without a reply".to_owned());
        }
    }
}

/// Where the replies of one exchange go. Cheap to clone.
#[derive(Clone)]
struct Replies {
    url: Arc<str>,
    state: Arc<Mutex<ReplyState>>,
}

struct ReplyState {
    /// Gone once the worker is closed.
    outgoing: Option<mpsc::Sender<Bytes>>,
    sent: Sent,
}

impl Replies {
    fn new(url: &str, outgoing: mpsc::Sender<Bytes>) -> Self {
        let state = ReplyState { outgoing: Some(outgoing), sent: Sent::default() };
        Self { url: url.into(), state: Arc::new(Mutex::new(state)) }
    }

    fn lock(&self) -> MutexGuard<'_, ReplyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a reply, and before the first one with rows their schema. There is room for a reply to each batch that a server
    /// may give; one that gives more has its replies lost.
    fn send(&self, message: &FlightData, schema: Option<&SchemaRef>) -> Result<(), Error> {
        let message = framed(message)?;
        let mut state = self.lock();
        let over = || Error::lost(&self.url, "the exchange is over; the batch is another worker's now");
        let ReplyState { outgoing, sent } = &mut *state;
        let outgoing = outgoing.as_ref().ok_or_else(over)?;
        if let Some(schema) = schema
            && let Some(schema) = sent.before(schema)?
        {
            outgoing.try_send(schema).map_err(|_| over())?;
        }
        outgoing.try_send(message).map_err(|_| over())
    }

    /// No more replies.
    fn close(&self) {
        self.lock().outgoing = None;
    }
}

/// A batch that was received, and not handed over yet.
struct Features {
    batch: Batch,
    about: BatchRequest,
}

impl Item for Features {
    fn rows(&self) -> u64 {
        self.batch.rows()
    }

    fn len_bytes(&self) -> u64 {
        self.batch.body().len() as u64
    }
}

/// The batches of one exchange.
struct Receiving {
    messages: Messages,
    schema: SchemaRef,
}

impl Receiving {
    fn features(&self, message: Message) -> Result<Features, Error> {
        let about = BatchRequest::decode(message.app_metadata.as_slice())
            .map_err(|error| Error::protocol(format!("malformed metadata of a batch: {error}")))?;
        let batch = Batch::of_rows(message, SchemaRef::clone(&self.schema))?;
        if about.rows > batch.rows() {
            let (asked, rows) = (about.rows, batch.rows());
            return Err(Error::Foreign(format!("{asked} rows are asked for in a batch of {rows}")));
        }
        Ok(Features { batch, about })
    }
}

impl Source for Receiving {
    type Item = Features;

    async fn next(&mut self) -> Result<Option<Features>, Error> {
        while let Some(message) = self.messages.next().await? {
            match schema_of(&message)? {
                // Of another snapshot, with other columns.
                Some(schema) => self.schema = schema,
                None => return self.features(message).map(Some),
            }
        }
        Ok(None)
    }
}
