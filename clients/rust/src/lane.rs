//! One lane of a job, across lost connections, restarts and servers.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    Batch, Error, Plan, batches::Source, client::Servers, connection::command, meter::Meter, slabs::Slabs,
    stream::Stream,
};

/// The batches of one lane, in order and each of them once, whichever server sends them.
pub(crate) struct Lane {
    servers: Servers,
    plan: Arc<Plan>,
    slabs: Slabs,
    meter: Arc<Meter>,
    trainer: u64,
    /// The number of this lane's next batch among those of its rank.
    next: u64,
    /// The stream that brings it, and which server that is.
    stream: Option<(Stream, usize)>,
}

impl Lane {
    /// Lane `lane` of `plan`.
    pub(crate) fn new(
        servers: Servers,
        plan: Arc<Plan>,
        slabs: Slabs,
        meter: Arc<Meter>,
        trainer: u64,
        lane: u64,
    ) -> Self {
        Self { servers, plan, slabs, meter, trainer, next: lane, stream: None }
    }

    /// One attempt at the next batch; `None` after the last one.
    async fn attempt(&mut self) -> Result<Option<Batch>, Error> {
        let over = self.next >= self.plan.batches();
        if self.stream.is_none() {
            if over {
                return Ok(None);
            }
            self.stream = Some(self.open().await?);
        }
        let (stream, server) = self.stream.as_mut().expect("it was just opened");
        let batch = stream.next().await;
        if batch.is_err() {
            self.servers.leave(*server);
        }
        match (batch?, over) {
            (None, true) => Ok(None),
            (None, false) => Err(Error::Foreign(format!(
                "the stream ended before batch {} of {}",
                self.next,
                self.plan.batches()
            ))),
            (Some(_), true) => {
                Err(Error::Foreign(format!("a batch came after the last of {}", self.plan.batches())))
            }
            (Some(batch), false) => {
                let verify = self.servers.config().verify_hash && self.plan.resolved.hash.unwrap_or(true);
                let hash = verify.then(|| xxh3_64(batch.body()));
                self.plan.check(self.next, &batch.metadata, batch.rows(), hash)?;
                self.next = self.next.saturating_add(self.plan.lanes());
                Ok(Some(batch))
            }
        }
    }

    async fn open(&mut self) -> Result<(Stream, usize), Error> {
        let ticket = command(&self.plan.rest(self.next)).into();
        let (connection, server) = self.servers.connection().await?;
        let opened = connection.stream(ticket, self.trainer, self.slabs.clone()).await;
        let stream = opened.inspect_err(|_| self.servers.leave(server))?;
        if stream.schema() != &self.plan.schema {
            return Err(Error::Foreign(format!(
                "{} sends another schema than the plan was made with",
                connection.url()
            )));
        }
        Ok((stream, server))
    }
}

impl Source for Lane {
    type Item = Batch;

    async fn next(&mut self) -> Result<Option<Batch>, Error> {
        let mut attempts = Attempts::new(self.servers.len(), self.servers.config().deadline);
        let mut renewed = false;
        loop {
            let was_running = self.stream.is_some();
            let done = tokio::time::timeout_at(attempts.until(), self.attempt()).await;
            let Ok(done) = done else {
                self.stream = None;
                return Err(attempts.gave_up());
            };
            let error = match done {
                Err(error) if error.is_transient() => error,
                // The token that this stream began with is no longer good; its file may hold another one.
                Err(error) if was_running && !renewed && self.servers.config().renews(&error) => {
                    renewed = true;
                    error
                }
                done => return done,
            };
            self.stream = None;
            tracing::warn!(%error, batch = self.next, "going on elsewhere");
            self.meter.failed(error.to_string());
            tokio::time::sleep(attempts.pause(error)).await;
        }
    }
}

/// How often, and until when, a call is tried.
pub(crate) struct Attempts {
    servers: usize,
    began: Instant,
    until: Instant,
    made: u32,
    last: Option<Error>,
}

/// The shortest pause once every server has been tried.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// ... and the longest.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

impl Attempts {
    pub(crate) fn new(servers: usize, deadline: Duration) -> Self {
        let began = Instant::now();
        Self { servers, began, until: began + deadline, made: 0, last: None }
    }

    /// How long to wait before the next attempt, now that one has failed: not at all while another server is untried, then
    /// longer and longer, of random length, so that a thousand ranks don't come back at once.
    pub(crate) fn pause(&mut self, failed: Error) -> Duration {
        self.made += 1;
        self.last = Some(failed);
        let servers = u32::try_from(self.servers).unwrap_or(u32::MAX);
        if !self.made.is_multiple_of(servers) {
            return Duration::ZERO;
        }
        let rounds = self.made / servers;
        let longest = FIRST_PAUSE.saturating_mul(1 << rounds.min(10)).min(LONGEST_PAUSE);
        longest.mul_f64(0.5 + fastrand::f64() / 2.0).min(self.until.saturating_duration_since(Instant::now()))
    }

    /// Makes `attempt` until it succeeds, fails for good, or the deadline is over.
    pub(crate) async fn run<T, F: Future<Output = Result<T, Error>>>(
        mut self,
        attempt: impl Fn() -> F,
    ) -> Result<T, Error> {
        loop {
            let error = match tokio::time::timeout_at(self.until, attempt()).await {
                Ok(Err(error)) if error.is_transient() => error,
                Ok(done) => return done,
                Err(_) => return Err(self.gave_up()),
            };
            tokio::time::sleep(self.pause(error)).await;
        }
    }

    /// When to stop.
    pub(crate) fn until(&self) -> Instant {
        self.until
    }

    /// The final error, once the deadline is over: with what went wrong last, which is silence if nothing did.
    pub(crate) fn gave_up(self) -> Error {
        let last = self.last.unwrap_or_else(|| Error::protocol("the server said nothing"));
        Error::GaveUp { waited: self.began.elapsed(), attempts: self.made.max(1), last: Box::new(last) }
    }
}
