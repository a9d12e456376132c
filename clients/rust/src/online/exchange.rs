//! One DoExchange stream with any number of requests in flight.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use arrow_flight::FlightData;
use arrow_schema::SchemaRef;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc, oneshot},
    time::Instant,
};
use tokio_util::task::AbortOnDropHandle;

use super::answer::{AnswerMetadata, RawAnswer};
use crate::{
    Batch, Error,
    route::{OpenedExchange, Target},
    wire::{EncodedRows, Message, Received, Response, SentSchema, framed, framed_within},
};

/// End of the error of a request whose message is too long.
const ADVICE: &str = "; send fewer rows at a time";

/// An open DoExchange stream. Dropping it ends the stream.
pub(super) struct Exchange<M> {
    /// Target of the connection; `None` without a choice of servers.
    pub(super) target: Option<Target>,
    /// Schema of all answers; `None` if answers are not in order.
    pub(super) schema: Option<SchemaRef>,
    shared: Arc<Shared<M>>,
    _receiver: AbortOnDropHandle<()>,
}

struct Shared<M> {
    url: String,
    limits: Limits,
    received: Received,
    /// Maximum size of a message that the server receives, in bytes.
    max_message_bytes: Option<u64>,
    state: Mutex<State<M>>,
}

/// Limits of the time for which an exchange receives nothing.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// Time without a request after which the exchange ends.
    pub(super) idle: Duration,
    /// Time after which an answer is overdue. Without an answer to an overdue request, the exchange ends.
    pub(super) answer: Duration,
    /// True if another server may answer. Later requests then leave an exchange whose server is silent.
    pub(super) may_leave: bool,
}

struct State<M> {
    /// `None` after the end of the exchange.
    outgoing: Option<mpsc::Sender<Bytes>>,
    sent: SentSchema,
    /// True if later requests must open another exchange.
    is_left: bool,
    /// Number of the next request.
    next: u64,
    /// Requests without an answer by number, including those whose caller was dropped.
    pending: BTreeMap<u64, Pending<M>>,
    /// Time since when there are requests without an answer.
    waiting_since: Instant,
    /// Reason for the end of the exchange; `None` after the idle timeout.
    failure: Option<Error>,
}

/// A request without an answer.
struct Pending<M> {
    answer: oneshot::Sender<Result<RawAnswer<M>, Unanswered>>,
    /// Time from which the answer is overdue. `None` if only the caller limits the time.
    due: Option<Instant>,
    _permit: OwnedSemaphorePermit,
}

/// The end of an exchange before the answer to a request.
pub(super) enum Unanswered {
    /// The exchange failed, or the server rejected the request.
    Failed(Error),
    /// The server rejected an earlier request and has not processed this one.
    NotProcessed,
}

impl Limits {
    /// Returns the time from which the answer to a request that is sent or cancelled now is overdue.
    fn answer_due(&self) -> Option<Instant> {
        Instant::now().checked_add(self.answer)
    }
}

impl<M: AnswerMetadata> Exchange<M> {
    /// Starts to receive answers. `schema` is the schema of all answers if they are in order.
    pub(super) fn start(opened: OpenedExchange, schema: Option<SchemaRef>, limits: Limits) -> Self {
        let OpenedExchange { outgoing, response, target, max_message_bytes } = opened;
        let state = State {
            outgoing: Some(outgoing),
            sent: SentSchema::default(),
            is_left: false,
            next: 0,
            pending: BTreeMap::new(),
            waiting_since: Instant::now(),
            failure: None,
        };
        let (url, received) = (response.url().to_owned(), response.received().clone());
        let shared = Arc::new(Shared { url, limits, received, max_message_bytes, state: Mutex::new(state) });
        let receiver = Receiver { response, schema: schema.clone(), shared: Arc::clone(&shared) };
        let receiver = AbortOnDropHandle::new(tokio::spawn(receiver.run()));
        Self { target, schema, shared, _receiver: receiver }
    }

    /// Returns true if the exchange accepts requests.
    pub(super) fn is_open(&self) -> bool {
        // The connection may drop the request body before the end of the response is received.
        let state = self.shared.state.lock();
        !state.is_left && state.outgoing.as_ref().is_some_and(|outgoing| !outgoing.is_closed())
    }

    /// Returns the error that ended the exchange, or because of which it was left.
    pub(super) fn failure(&self) -> Option<Error> {
        self.shared.state.lock().failure.clone()
    }

    /// Sends a request. `metadata` returns the metadata for its number. `permit` is released when the server has answered. If the
    /// returned value is dropped, and the server has sent nothing for `silence`, it is stuck; `None` if that is not known.
    ///
    /// Dropping the returned value cancels the request, if its kind can be cancelled.
    ///
    /// # Errors
    /// [`Error::Lost`] if the exchange has ended; the request was not sent. [`Error::Request`] if the schema differs from earlier
    /// requests. [`Error::Status`] with `RESOURCE_EXHAUSTED` if the server does not receive messages of this size.
    pub(super) fn send(
        &self,
        rows: &EncodedRows,
        metadata: impl FnOnce(u64) -> Vec<u8>,
        permit: OwnedSemaphorePermit,
        silence: Option<Duration>,
    ) -> Result<PendingAnswer<M>, Error> {
        let mut state = self.shared.state.lock();
        let State { outgoing, sent, next, pending, waiting_since, .. } = &mut *state;
        let ended = || Error::lost(&self.shared.url, "the exchange has ended");
        let outgoing = outgoing.as_ref().ok_or_else(ended)?;
        let message = framed_within(&rows.message(metadata(*next)), self.shared.max_message_bytes, ADVICE)?;
        // `try_send` finds room, because the channel has capacity for every permit.
        if let Some(schema) = sent.message_before(&rows.schema)? {
            outgoing.try_send(schema).map_err(|_| ended())?;
        }
        outgoing.try_send(message).map_err(|_| ended())?;
        let (sender, answer) = oneshot::channel();
        let number = *next;
        if pending.is_empty() {
            *waiting_since = Instant::now();
        }
        // Answers in order cannot wait for a worker.
        let due = if M::IN_ORDER { self.shared.limits.answer_due() } else { None };
        pending.insert(number, Pending { answer: sender, due, _permit: permit });
        *next += 1;
        let (shared, sent_at) = (Arc::clone(&self.shared), Instant::now());
        Ok(PendingAnswer { number, shared, answer, sent_at, silence })
    }
}

/// The future answer to one request.
pub(super) struct PendingAnswer<M: AnswerMetadata> {
    number: u64,
    shared: Arc<Shared<M>>,
    answer: oneshot::Receiver<Result<RawAnswer<M>, Unanswered>>,
    sent_at: Instant,
    /// Time without data after which the server is stuck; `None` if that is not known.
    silence: Option<Duration>,
}

impl<M: AnswerMetadata> PendingAnswer<M> {
    /// Waits for the answer. If the server sends nothing for `limit`, the request fails, and later ones leave the exchange.
    pub(super) async fn wait(mut self, limit: Option<Duration>) -> Result<RawAnswer<M>, Unanswered> {
        let closed = |_| Err(Unanswered::Failed(Error::lost(&self.shared.url, "the exchange was closed")));
        let Some(limit) = limit else { return (&mut self.answer).await.unwrap_or_else(closed) };
        let mut since = self.sent_at;
        loop {
            if let Ok(answer) = tokio::time::timeout_at(since + limit, &mut self.answer).await {
                return answer.unwrap_or_else(closed);
            }
            // While data arrives, the server is busy with earlier requests.
            since = since.max(self.shared.received.at());
            if since.elapsed() >= limit {
                let error = Error::silent(&self.shared.url, limit);
                self.shared.leave(&mut self.shared.state.lock(), &error);
                return Err(Unanswered::Failed(error));
            }
        }
    }
}

impl<M: AnswerMetadata> Drop for PendingAnswer<M> {
    /// Cancels the request if it has no answer yet. Leaves the exchange if the server is stuck.
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        if let Some(limit) = self.silence
            && state.pending.contains_key(&self.number)
        {
            // A worker may need long for an earlier request, and the server for none.
            let waiting_since = if M::IN_ORDER { state.waiting_since } else { self.sent_at };
            let silence = waiting_since.max(self.shared.received.at()).elapsed();
            if silence >= limit {
                self.shared.leave(&mut state, &Error::silent(&self.shared.url, silence));
            }
        }
        let State { pending, outgoing, .. } = &mut *state;
        if let Some(pending) = pending.get_mut(&self.number)
            && let Some(outgoing) = outgoing
            && let Some(metadata) = M::cancellation(self.number)
            && let Ok(message) =
                framed(&FlightData { app_metadata: metadata.into(), ..FlightData::default() })
        {
            pending.due = pending.due.or_else(|| self.shared.limits.answer_due());
            // Fails if the exchange has ended; the request is then over, too.
            drop(outgoing.try_send(message));
        }
    }
}

impl<M: AnswerMetadata> Shared<M> {
    /// Ends the exchange and fails all pending requests with `failure`. `is_of_first` is true if the first one can be its cause.
    fn end(&self, failure: &Error, is_of_first: bool) {
        let mut state = self.state.lock();
        if state.outgoing.take().is_none() {
            return;
        }
        let pending = std::mem::take(&mut state.pending);
        state.failure = Some(failure.clone());
        drop(state);
        for (index, (_, pending)) in pending.into_iter().enumerate() {
            // The status belongs to the first request. The server has not processed the others, so they can be retried.
            let is_cause = index == 0 && is_of_first;
            let unanswered = match M::IN_ORDER && !is_cause && !failure.is_transient() {
                true => Unanswered::NotProcessed,
                false => Unanswered::Failed(failure.clone()),
            };
            // Fails if the caller was dropped.
            drop(pending.answer.send(Err(unanswered)));
        }
    }

    /// Makes later requests open another exchange because of `error`, if there is another server. Requests in flight keep this one.
    fn leave(&self, state: &mut State<M>, error: &Error) {
        if self.limits.may_leave && state.outgoing.is_some() {
            state.is_left = true;
            state.failure.get_or_insert_with(|| error.clone());
        }
    }

    /// Ends the exchange unless requests are pending. Returns true if it has ended.
    fn end_if_idle(&self) -> bool {
        let mut state = self.state.lock();
        let idle = state.pending.is_empty();
        if idle {
            state.outgoing = None;
        }
        idle
    }

    /// Returns true if an answer is overdue, and nothing was received for as long.
    fn is_stuck(&self, silence: Duration) -> bool {
        let now = Instant::now();
        let is_overdue = |pending: &Pending<M>| pending.due.is_some_and(|due| due <= now);
        // While data arrives, the server is busy with earlier requests.
        silence >= self.limits.answer && self.state.lock().pending.values().any(is_overdue)
    }

    /// Removes the pending request that `metadata` answers.
    fn take(&self, metadata: &M) -> Result<Pending<M>, Error> {
        let pending = &mut self.state.lock().pending;
        let taken = match M::IN_ORDER {
            true => pending.pop_first().map(|(_, pending)| pending),
            false => pending.remove(&metadata.request()),
        };
        taken.ok_or_else(|| Error::protocol("received an answer without a pending request"))
    }
}

/// Receives answers and delivers them to their callers.
struct Receiver<M: AnswerMetadata> {
    response: Response,
    /// Schema of the next answers with rows.
    schema: Option<SchemaRef>,
    shared: Arc<Shared<M>>,
}

impl<M: AnswerMetadata> Receiver<M> {
    async fn run(mut self) {
        let Limits { idle, answer, .. } = self.shared.limits;
        let (failure, is_of_first) = loop {
            // Requests can be sent or cancelled while this waits.
            let Ok(message) = tokio::time::timeout(idle.min(answer), self.response.next()).await else {
                let silence = self.response.received().at().elapsed();
                if silence >= idle && self.shared.end_if_idle() {
                    return;
                }
                if self.shared.is_stuck(silence) {
                    break (Error::silent(&self.shared.url, answer), true);
                }
                continue;
            };
            match message {
                // The request of an answer that cannot be decoded has this error already.
                Ok(Some(message)) => {
                    if let Err(error) = self.deliver(message) {
                        break (error, false);
                    }
                }
                Ok(None) => break (Error::lost(&self.shared.url, "the server has ended the exchange"), true),
                Err(error) => break (error, true),
            }
        };
        self.shared.end(&failure, is_of_first);
    }

    fn deliver(&mut self, message: Message) -> Result<(), Error> {
        if !message.header.is_empty()
            && let Some(schema) = message.schema()?
        {
            if M::IN_ORDER {
                return Err(Error::protocol("received a second schema"));
            }
            self.schema = Some(schema);
            return Ok(());
        }
        let metadata = M::decode(message.app_metadata.as_slice());
        let metadata = metadata.map_err(Error::malformed("metadata of an answer"))?;
        let pending = self.shared.take(&metadata)?;
        let rows = match (message.header.is_empty(), &self.schema) {
            (true, _) => Ok(None),
            (false, Some(schema)) => Batch::new(message, SchemaRef::clone(schema)).map(Some),
            (false, None) => Err(Error::protocol("received an answer before its schema")),
        };
        let failure = rows.as_ref().err().cloned();
        let answer = rows.map(|rows| RawAnswer { rows, metadata }).map_err(Unanswered::Failed);
        // Fails if the caller was dropped.
        drop(pending.answer.send(answer));
        failure.map_or(Ok(()), Err)
    }
}

impl<M: AnswerMetadata> Drop for Receiver<M> {
    /// Fails the pending requests, also if the task was aborted or panicked.
    fn drop(&mut self) {
        self.shared.end(&Error::lost(&self.shared.url, "receiving has ended"), true);
    }
}
