//! One lane of a rank, over several connections and servers.

use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use super::{
    meter::Meter,
    plan::Plan,
    ticket_stream::{TicketStream, ticket},
};
use crate::{
    Batch, Error,
    batches::Source,
    memory::Slabs,
    route::{Attempts, Servers},
};

/// The batches of one lane, in order and each exactly once. After a failure, the stream resumes on any server.
pub(super) struct Lane {
    servers: Servers,
    plan: Arc<Plan>,
    slabs: Slabs,
    meter: Arc<Meter>,
    trainer: u64,
    /// Number of the next batch of this lane among the batches of its rank.
    next: u64,
    /// The open stream, and the index of its server.
    stream: Option<(TicketStream, usize)>,
}

impl Lane {
    /// Creates lane number `lane` of `plan`. `trainer` is the ID of the trainer.
    pub(super) fn new(
        servers: Servers,
        plan: Arc<Plan>,
        slabs: Slabs,
        meter: Arc<Meter>,
        trainer: u64,
        lane: u64,
    ) -> Self {
        Self { servers, plan, slabs, meter, trainer, next: lane, stream: None }
    }

    /// Receives the next batch with one attempt; `None` after the last one.
    async fn attempt(&mut self) -> Result<Option<Batch>, Error> {
        let over = self.next >= self.plan.batches();
        if self.stream.is_none() {
            if over {
                return Ok(None);
            }
            self.stream = Some(self.open().await?);
        }
        let (stream, server) = self.stream.as_mut().expect("the stream was opened above");
        let batch = stream.next().await;
        if batch.is_err() {
            self.servers.skip(*server);
        }
        match (batch?, over) {
            (None, true) => Ok(None),
            (None, false) => Err(Error::BatchMismatch(format!(
                "the stream ended before batch {} of {}",
                self.next,
                self.plan.batches()
            ))),
            (Some(_), true) => Err(Error::BatchMismatch(format!(
                "received a batch after the last one of {}",
                self.plan.batches()
            ))),
            (Some(batch), false) => {
                let verify =
                    self.servers.config().verify_hash && self.plan.resolved.content_hash.unwrap_or(true);
                let hash = verify.then(|| xxh3_64(batch.body()));
                self.plan.verify(self.next, &batch.metadata, batch.rows(), hash)?;
                self.next = self.next.saturating_add(self.plan.lanes());
                Ok(Some(batch))
            }
        }
    }

    async fn open(&mut self) -> Result<(TicketStream, usize), Error> {
        let ticket = ticket(&self.plan.remaining_request(self.next));
        let (transport, server) = self.servers.connect().await?;
        let opened = TicketStream::open(&transport, ticket, self.trainer, self.slabs.clone()).await;
        let stream = opened.inspect_err(|_| self.servers.skip(server))?;
        if stream.schema() != &self.plan.schema {
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
        let mut attempts = Attempts::new(self.servers.len(), self.servers.config().retry_deadline);
        let mut renewed = false;
        loop {
            let was_running = self.stream.is_some();
            let done = tokio::time::timeout_at(attempts.deadline(), self.attempt()).await;
            let Ok(done) = done else {
                self.stream = None;
                return Err(attempts.deadline_exceeded());
            };
            let error = match done {
                Err(error) if error.is_transient() => error,
                // The token of the stream has expired. A new stream reads the token file again.
                Err(error) if was_running && !renewed && self.servers.config().can_renew_token(&error) => {
                    renewed = true;
                    error
                }
                done => return done,
            };
            self.stream = None;
            tracing::warn!(%error, batch = self.next, "stream failed; reconnecting");
            self.meter.failed(error.to_string());
            tokio::time::sleep(attempts.delay_after(error)).await;
        }
    }
}
