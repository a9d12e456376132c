//! One lane of a rank, over several connections and servers.

use xxhash_rust::xxh3::xxh3_64;

use super::{
    job::Job,
    ticket_stream::{TicketStream, ticket},
};
use crate::{Batch, Error, batches::Source, memory::Slabs, route::Attempts};

/// The batches of one lane, in order and each exactly once. After a failure, the stream resumes on any server.
pub(super) struct Lane {
    job: Job,
    slabs: Slabs,
    /// Number of the next batch of this lane among the batches of its rank.
    next: u64,
    /// The open stream, and the index of its server.
    stream: Option<(TicketStream, usize)>,
}

impl Lane {
    /// Creates lane number `lane` of `job`.
    pub(super) fn new(job: Job, slabs: Slabs, lane: u64) -> Self {
        Self { job, slabs, next: lane, stream: None }
    }

    /// Receives the next batch with one attempt; `None` after the last one.
    async fn attempt(&mut self) -> Result<Option<Batch>, Error> {
        let over = self.next >= self.job.plan.batches();
        if self.stream.is_none() {
            if over {
                return Ok(None);
            }
            self.stream = Some(self.open().await?);
        }
        let (stream, server) = self.stream.as_mut().expect("the stream was opened above");
        let batch = stream.next().await;
        if batch.is_err() {
            self.job.servers.skip(*server);
        }
        match (batch?, over) {
            (None, true) => Ok(None),
            (None, false) => Err(Error::BatchMismatch(format!(
                "the stream ended before batch {} of {}",
                self.next,
                self.job.plan.batches()
            ))),
            (Some(_), true) => Err(Error::BatchMismatch(format!(
                "received a batch after the last one of {}",
                self.job.plan.batches()
            ))),
            (Some(batch), false) => {
                let verify = self.job.servers.config().verify_hash
                    && self.job.plan.resolved.content_hash.unwrap_or(true);
                let hash = verify.then(|| xxh3_64(batch.body()));
                self.job.plan.verify(self.next, &batch.metadata, batch.rows(), hash)?;
                self.next = self.next.saturating_add(self.job.plan.lanes());
                Ok(Some(batch))
            }
        }
    }

    async fn open(&mut self) -> Result<(TicketStream, usize), Error> {
        let ticket = ticket(&self.job.plan.remaining_request(self.next));
        let (transport, server) = self.job.servers.connect().await?;
        let opened = TicketStream::open(&transport, ticket, self.job.trainer, self.slabs.clone()).await;
        let stream = opened.inspect_err(|_| self.job.servers.skip(server))?;
        if stream.schema != self.job.plan.schema {
            return Err(Error::BatchMismatch(format!(
                "{} sends a schema that differs from the schema of the plan",
                transport.url()
            )));
        }
        Ok((stream, server))
    }
}

impl Source for Lane {
    type Item = Batch;

    async fn next(&mut self) -> Result<Option<Batch>, Error> {
        let mut attempts = Attempts::new(self.job.servers.len(), self.job.servers.config().retry_deadline);
        let mut renewed = false;
        loop {
            let was_running = self.stream.is_some();
            let done = tokio::time::timeout_at(attempts.deadline, self.attempt()).await;
            let Ok(done) = done else {
                self.stream = None;
                return Err(attempts.deadline_exceeded());
            };
            let error = match done {
                Err(error) if error.is_transient() => error,
                // The token of the stream has expired. A new stream reads the token file again.
                Err(error)
                    if was_running && !renewed && self.job.servers.config().can_renew_token(&error) =>
                {
                    renewed = true;
                    error
                }
                done => return done,
            };
            self.stream = None;
            tracing::warn!(%error, batch = self.next, "stream failed; reconnecting");
            self.job.meter.failed(error.to_string());
            tokio::time::sleep(attempts.delay_after(error)).await;
        }
    }
}
