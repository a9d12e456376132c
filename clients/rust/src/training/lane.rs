//! One lane of a rank, over several connections and servers.

use std::sync::Arc;

use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_64;

use super::{
    job::Job,
    ticket_stream::{TicketStream, ticket},
};
use crate::{
    Batch, Error,
    batches::Source,
    memory::Slabs,
    route::{Attempts, FIRST_NOTICE, Origin, StreamSender},
};

/// The batches of one lane, in order and each exactly once. After a failure, the stream resumes on any server.
pub(super) struct Lane {
    job: Job,
    slabs: Slabs,
    /// Number of the next batch of this lane among the batches of its rank.
    next: u64,
    stream: Option<OpenStream>,
    attempts: Attempts,
    /// Number of the last batch that was received with other content than expected, and requested again.
    mismatched: Option<u64>,
    /// Server of the last attempt.
    origin: Option<Origin>,
}

struct OpenStream {
    stream: TicketStream,
    origin: Origin,
    opened: Instant,
    /// Number of delivered batches.
    delivered: u64,
}

impl Lane {
    /// Creates lane number `lane` of `job`.
    pub(super) fn new(job: Job, slabs: Slabs, lane: u64) -> Self {
        let subject = format!("batches of '{}'", job.plan.resolved.dataset);
        let attempts = Attempts::of(&job.servers, subject, job.servers.config().retry_deadline);
        Self { job, slabs, next: lane, stream: None, attempts, mismatched: None, origin: None }
    }

    fn is_over(&self) -> bool {
        self.next >= self.job.plan.batches()
    }

    /// Receives the next batch with one attempt; `None` after the last one.
    async fn attempt(&mut self) -> Result<Option<Batch>, Error> {
        let over = self.is_over();
        if self.stream.is_none() {
            if over {
                return Ok(None);
            }
            self.stream = Some(self.open().await?);
        }
        let stream = self.stream.as_mut().expect("the stream was opened above");
        let OpenStream { stream, origin, opened, delivered } = stream;
        let batch = stream.next().await;
        let received = batch.and_then(|batch| self.job.verified(self.next, batch));
        let batch = received.inspect_err(|error| self.job.left(origin, error))?;
        if batch.is_some() {
            self.next = self.next.saturating_add(self.job.plan.lanes());
            *delivered += 1;
            self.attempts.served(*opened, *delivered);
        }
        Ok(batch)
    }

    async fn open(&mut self) -> Result<OpenStream, Error> {
        let ticket = ticket(&self.job.plan.remaining_request(self.next));
        let placement = &self.job.placement;
        self.origin = None;
        let (transport, origin) = placement.connect().await?;
        self.origin = Some(origin.clone());
        let limit = self.attempts.limit(self.job.servers.config().attempt_timeout, placement.targets());
        let sender = StreamSender { trainer: self.job.trainer, candidate: origin.number() };
        let open = || TicketStream::open(&transport, ticket.clone(), sender, self.slabs.clone(), limit);
        let mut opened = open().await;
        if let Err(error) = &opened
            && self
                .job
                .servers
                .supply(&transport, error)
                .await
                .inspect_err(|error| self.job.left(&origin, error))?
        {
            opened = open().await;
        }
        let stream = opened.inspect_err(|error| self.job.left(&origin, error))?;
        if stream.schema != self.job.plan.schema {
            placement.failed(&origin);
            return Err(Error::BatchMismatch(format!(
                "{} sends a schema that differs from the schema of the plan",
                transport.url()
            )));
        }
        placement.opened(&origin);
        Ok(OpenStream { stream, origin, opened: Instant::now(), delivered: 0 })
    }

    /// Closes the stream if it should continue at another server, so that the next batch is requested there.
    fn move_to_preferred(&mut self) {
        let is_over = self.is_over();
        if !is_over {
            self.job.placement.reached(self.job.plan.cursor(self.next).epoch);
        }
        let Some(stream) = &self.stream else { return };
        if self.job.placement.has_moved_from(&stream.origin) && !is_over {
            self.stream = None;
        }
    }

    /// Returns true if the server of the last attempt refers the client to the next candidate with `error`. This is not a failure.
    fn is_redirected_by(&self, error: &Error) -> bool {
        error.is_redirect() && self.origin.as_ref().is_some_and(Origin::may_redirect)
    }

    /// Returns true if the batch may be received by another attempt.
    fn can_retry(&mut self, error: &Error, was_running: bool, renewed: &mut bool) -> bool {
        if matches!(error, Error::Status(_) | Error::BatchMismatch(_) | Error::Protocol(_))
            && self.origin.as_ref().is_some_and(Origin::is_location)
            && (*renewed || !self.job.servers.config().can_renew_token(error))
        {
            // A location is a hint. The servers of the client decide whether the request is wrong.
            return !self.is_over();
        }
        if matches!(error, Error::BatchMismatch(_) | Error::Protocol(_)) {
            // Corrupted in transit, or by the server. A second time, it is an error.
            return !self.is_over() && self.mismatched.replace(self.next) != Some(self.next);
        }
        if was_running && !*renewed && self.job.servers.config().can_renew_token(error) {
            // The token of the stream has expired. A new stream reads the token file again.
            *renewed = true;
            return true;
        }
        self.attempts.can_retry(error, self.job.placement.targets())
    }
}

impl Job {
    /// Records that a stream from `origin` ended with `error`.
    fn left(&self, origin: &Origin, error: &Error) {
        match error.is_redirect() && origin.may_redirect() {
            true => self.placement.redirected(origin),
            false => self.placement.failed(origin),
        }
    }

    /// Returns `batch` if it is batch number `number` and intact, or the end of the stream if there is no such batch.
    ///
    /// # Errors
    /// [`Error::BatchMismatch`] with the difference.
    fn verified(&self, number: u64, batch: Option<Batch>) -> Result<Option<Batch>, Error> {
        let batches = self.plan.batches();
        let Some(batch) = batch else {
            return match number >= batches {
                true => Ok(None),
                false => {
                    Err(Error::BatchMismatch(format!("the stream ended before batch {number} of {batches}")))
                }
            };
        };
        if number >= batches {
            return Err(Error::BatchMismatch(format!("received a batch after the last one of {batches}")));
        }
        let verify = self.servers.config().verify_hash && self.plan.resolved.content_hash.unwrap_or(true);
        let hash = verify.then(|| xxh3_64(batch.body()));
        self.plan.verify(number, &batch.metadata, batch.rows(), hash)?;
        Ok(Some(batch))
    }
}

impl Source for Lane {
    type Item = Batch;

    async fn next(&mut self) -> Result<Option<Batch>, Error> {
        self.attempts.restart(self.job.servers.config().retry_deadline);
        self.move_to_preferred();
        let mut renewed = false;
        if let Some(difference) = self.job.plan_change() {
            return Err(difference);
        }
        loop {
            let was_running = self.stream.is_some();
            let done = match self.attempts.noticed() {
                None => tokio::time::timeout_at(self.attempts.deadline, self.attempt()).await.ok(),
                Some((progress, mut notices)) => {
                    // A trainer may have batches left, and shows what the server reports about windows.
                    let (meter, has_failed) = (Arc::clone(&self.job.meter), progress.has_failed());
                    let is_known = move || {
                        let is_short = meter.waiting_for(std::time::Instant::now()) < FIRST_NOTICE;
                        !has_failed && (is_short || meter.loading().get().is_some())
                    };
                    let done = notices.unless(is_known, &progress, self.attempt()).await;
                    self.attempts.reminded(notices);
                    done
                }
            };
            let Some(done) = done else {
                self.stream = None;
                return Err(self.attempts.deadline_exceeded());
            };
            let error = match done {
                Err(error) if self.is_redirected_by(&error) => {
                    tracing::debug!(%error, batch = self.next, "the server refers to the next location");
                    self.stream = None;
                    continue;
                }
                Err(error) if self.can_retry(&error, was_running, &mut renewed) => error,
                done => return done.map_err(|error| self.attempts.of_all(error)),
            };
            self.stream = None;
            tracing::warn!(%error, batch = self.next, "stream failed; reconnecting");
            self.job.meter.failed(error.to_string());
            let targets = self.job.placement.targets();
            self.attempts.pause(error, targets).await?;
        }
    }
}
