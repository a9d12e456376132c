//! Requests of one kind, over successive exchanges.

use std::{sync::Arc, time::Duration};

use forebay_proto::v1::Command;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::{
    answer::AnswerMetadata,
    exchange::{Exchange, Limits},
};
use crate::{Error, memory::Slabs, route::Route};

/// Requests of one kind. They share one exchange, which is opened when needed.
pub(super) struct Requests<M> {
    opener: Arc<ExchangeOpener>,
    permits: Arc<Semaphore>,
    current: Arc<Mutex<Current<M>>>,
}

/// Opens exchanges for one command.
struct ExchangeOpener {
    route: Route,
    command: Command,
    subject: String,
    slabs: Slabs,
    /// Maximum number of requests in flight.
    capacity: usize,
}

enum Current<M> {
    /// No exchange was opened yet, or the last attempt failed.
    Closed,
    /// An attempt in a task of its own. It continues if the callers that started it are dropped, so that it completes even if
    /// every caller has a short timeout.
    Opening(watch::Receiver<Option<Opening<M>>>),
    Open(Arc<Exchange<M>>),
}

type Opening<M> = Result<Arc<Exchange<M>>, Error>;

impl<M: AnswerMetadata> Requests<M> {
    /// Creates requests for `command` without opening an exchange.
    pub(super) fn new(route: Route, command: Command) -> Self {
        let config = route.config();
        let slabs = Slabs::new(config.idle_slab_bytes);
        let capacity = usize::try_from(config.max_in_flight).unwrap_or(usize::MAX);
        let capacity = capacity.clamp(1, Semaphore::MAX_PERMITS / 3 - 1);
        let opener =
            Arc::new(ExchangeOpener { route, subject: subject_of(&command), command, slabs, capacity });
        let current = Arc::new(Mutex::new(Current::Closed));
        Self { opener, permits: Arc::new(Semaphore::new(capacity)), current }
    }

    /// Returns what a request waits for, in notices.
    pub(super) fn subject(&self) -> &str {
        &self.opener.subject
    }

    /// Returns the route to the server.
    pub(super) fn route(&self) -> &Route {
        &self.opener.route
    }

    /// Opens an exchange, with retries if the route has any, until the retry deadline.
    pub(super) async fn open(&self) -> Result<Arc<Exchange<M>>, Error> {
        let deadline = self.route().config().retry_deadline;
        self.route().run(self.subject(), deadline, |limit| self.exchange(limit)).await
    }

    /// Returns the open exchange. If necessary, opens one with a single attempt, which fails if the server sends nothing for `limit`;
    /// see [`Route::open`].
    pub(super) async fn exchange(&self, limit: Option<Duration>) -> Result<Arc<Exchange<M>>, Error> {
        let mut opening = match &mut *self.current.lock() {
            Current::Open(exchange) if exchange.is_open() && !self.returns_from(exchange) => {
                return Ok(Arc::clone(exchange));
            }
            Current::Opening(opening) if opening.has_changed().is_ok() => opening.clone(),
            ended => {
                if let Current::Open(exchange) = ended
                    && let Some(error) = exchange.failure()
                {
                    tracing::debug!(%error, "exchange failed; opening another one");
                    self.opener.route.failed(exchange.target, &error);
                }
                let opening = self.begin(limit);
                *ended = Current::Opening(opening.clone());
                opening
            }
        };
        let opened = opening.wait_for(Option::is_some).await;
        match opened.as_deref() {
            Ok(Some(Ok(exchange))) => Ok(Arc::clone(exchange)),
            Ok(Some(Err(error))) => Err(error.clone()),
            Ok(None) | Err(_) => Err(Error::protocol("opening an exchange ended without a result")),
        }
    }

    /// Makes the next requests open another exchange, at another server, if that may accept the request that `exchange` answered
    /// with `error`. Requests in flight keep the exchange.
    pub(super) fn leave_after(&self, exchange: &Arc<Exchange<M>>, error: &Error) {
        if self.route().targets() < 2 || !(error.is_transient() || error.depends_on_server()) {
            return;
        }
        let mut current = self.current.lock();
        if matches!(&*current, Current::Open(open) if Arc::ptr_eq(open, exchange)) {
            *current = Current::Closed;
            self.route().failed(exchange.target, error);
        }
    }

    /// Returns true if the next requests should use the preferred server, which is healthy again. Requests of queues stay where
    /// their workers are.
    fn returns_from(&self, exchange: &Exchange<M>) -> bool {
        M::IN_ORDER && self.route().has_returned_from(exchange.target)
    }

    /// Spawns a task that opens an exchange. The task ends early if all requests are dropped.
    fn begin(&self, limit: Option<Duration>) -> watch::Receiver<Option<Opening<M>>> {
        let (opener, current) = (Arc::clone(&self.opener), Arc::downgrade(&self.current));
        let (sender, receiver) = watch::channel(None);
        tokio::spawn(async move {
            let opened = tokio::select! {
                opened = opener.open(limit) => opened.map(Arc::new),
                () = sender.closed() => return,
            };
            let Some(current) = current.upgrade() else { return };
            *current.lock() = match &opened {
                Ok(exchange) => Current::Open(Arc::clone(exchange)),
                Err(_) => Current::Closed,
            };
            sender.send_replace(Some(opened));
        });
        receiver
    }

    /// Waits for the permit of a request.
    pub(super) async fn permit(&self) -> OwnedSemaphorePermit {
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        permit.expect("the semaphore is never closed")
    }
}

impl ExchangeOpener {
    /// Opens an exchange with one attempt.
    async fn open<M: AnswerMetadata>(&self, limit: Option<Duration>) -> Result<Exchange<M>, Error> {
        // Capacity for the schema, and for each permit a request, its cancellation, and the cancellation of the request before
        // it, which may be unsent when its permit is reused.
        let capacity = 3 * self.capacity + 1;
        let mut opened = self.route.open(&self.command, capacity, &self.slabs, limit).await?;
        let schema = match M::IN_ORDER {
            true => {
                let schema = opened.response.read_schema().await;
                Some(schema.inspect_err(|error| self.route.failed(opened.target, error))?)
            }
            false => None,
        };
        // From here on, the exchange knows which answers are due.
        opened.response.limit_silence(None);
        let config = self.route.config();
        let may_leave = self.route.targets() > 1;
        let limits = Limits { idle: config.idle_timeout, answer: config.attempt_timeout, may_leave };
        Ok(Exchange::start(opened, schema, limits))
    }
}

fn subject_of(command: &Command) -> String {
    let lookup = command.lookup.as_ref().map(|lookup| format!("rows of '{}'", lookup.dataset));
    let infer = || command.infer.as_ref().map(|infer| format!("an answer of queue '{}'", infer.queue));
    lookup.or_else(infer).unwrap_or_default()
}
