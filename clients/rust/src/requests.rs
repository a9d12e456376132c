//! Requests over one exchange: many are on their way at a time, and each gets its own answer.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use arrow_array::RecordBatch;
use arrow_flight::FlightData;
use arrow_schema::SchemaRef;
use bytes::Bytes;
use forebay_proto::v1::Command;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    Batch, Device, Error,
    messages::{Messages, framed},
    parser::Message,
    route::{Opened, Route},
    sending::{Sent, message},
    slabs::Slabs,
    stream::{first_schema, schema_of},
};

/// What an answer says of itself, beside its rows.
pub(crate) trait About: prost::Message + Default + 'static {
    /// Whether answers come in the order of their requests. Then the first one comes behind the schema of all, which is
    /// there once the exchange is open; and a status that ends it is meant for the request that is answered then.
    const IN_ORDER: bool;

    /// The number of the request, where answers come in any order.
    fn request(&self) -> u64;

    /// The metadata of a message that takes request `number` back, where there is one.
    fn withdrawal(number: u64) -> Option<Vec<u8>>;
}

/// One answer.
pub(crate) struct Answered<A> {
    /// Its rows, if it has some.
    pub(crate) rows: Option<Batch>,
    pub(crate) about: A,
}

/// Rows to ask with, as they are sent.
pub(crate) struct Asked {
    schema: SchemaRef,
    message: FlightData,
}

impl Asked {
    /// # Errors
    /// [`Error::Request`] for what can't be sent.
    pub(crate) fn new(rows: &RecordBatch) -> Result<Self, Error> {
        Ok(Self { schema: rows.schema(), message: message(rows)? })
    }
}

/// The exchange that runs, or the next one once that is over.
pub(crate) struct Requests<A> {
    door: Arc<Door>,
    places: Arc<Semaphore>,
    current: Arc<Mutex<Current<A>>>,
}

/// How an exchange is opened.
struct Door {
    route: Route,
    command: Command,
    slabs: Slabs,
    /// How many requests may be on their way.
    capacity: usize,
}

enum Current<A> {
    /// Nothing was asked yet, or the last attempt failed.
    Nothing,
    /// An attempt that goes on whoever waits for it, so that one whose openers have little time comes to an end.
    Opening(watch::Receiver<Option<Opening<A>>>),
    Open(Arc<Pipeline<A>>),
}

type Opening<A> = Result<Arc<Pipeline<A>>, Error>;

impl<A: About> Requests<A> {
    /// Nothing is opened yet.
    pub(crate) fn new(route: Route, command: Command) -> Self {
        let config = route.config();
        let slabs = Slabs::new(config.idle_slab_bytes, Device::host());
        let capacity = usize::try_from(config.max_requests).unwrap_or(usize::MAX);
        let capacity = capacity.clamp(1, Semaphore::MAX_PERMITS / 3 - 1);
        let door = Arc::new(Door { route, command, slabs, capacity });
        let current = Arc::new(Mutex::new(Current::Nothing));
        Self { door, places: Arc::new(Semaphore::new(capacity)), current }
    }

    pub(crate) fn route(&self) -> &Route {
        &self.door.route
    }

    /// The exchange to ask by, opened if there is none that goes on: one attempt.
    pub(crate) async fn pipeline(&self) -> Result<Arc<Pipeline<A>>, Error> {
        let mut opening = match &mut *lock(&self.current) {
            Current::Open(pipeline) if pipeline.goes_on() => return Ok(Arc::clone(pipeline)),
            Current::Opening(opening) if opening.has_changed().is_ok() => opening.clone(),
            over => {
                if let Current::Open(pipeline) = over
                    && let Some(error) = pipeline.failure()
                {
                    tracing::debug!(%error, "an exchange is over; another one is opened");
                    self.door.route.failed(pipeline.server, &error);
                }
                let opening = self.begin();
                *over = Current::Opening(opening.clone());
                opening
            }
        };
        let opened = opening.wait_for(Option::is_some).await;
        match opened.as_deref() {
            Ok(Some(Ok(pipeline))) => Ok(Arc::clone(pipeline)),
            Ok(Some(Err(error))) => Err(error.again()),
            Ok(None) | Err(_) => Err(Error::protocol("opening an exchange has ended without a result")),
        }
    }

    /// Opens an exchange in a task of its own, which ends early if nobody can want it any more.
    fn begin(&self) -> watch::Receiver<Option<Opening<A>>> {
        let (door, current) = (Arc::clone(&self.door), Arc::downgrade(&self.current));
        let (sender, receiver) = watch::channel(None);
        tokio::spawn(async move {
            let opened = tokio::select! {
                opened = door.open() => opened.map(Arc::new),
                () = sender.closed() => return,
            };
            let Some(current) = current.upgrade() else { return };
            *lock(&current) = match &opened {
                Ok(pipeline) => Current::Open(Arc::clone(pipeline)),
                Err(_) => Current::Nothing,
            };
            sender.send_replace(Some(opened));
        });
        receiver
    }

    /// A place for a request, once there is one.
    pub(crate) async fn place(&self) -> OwnedSemaphorePermit {
        let place = Arc::clone(&self.places).acquire_owned().await;
        place.expect("the semaphore is never closed")
    }
}

impl Door {
    /// One attempt, within the time that a request may take.
    async fn open<A: About>(&self) -> Result<Pipeline<A>, Error> {
        let attempts = self.route.attempts(self.route.config().deadline);
        let opened = tokio::time::timeout_at(attempts.until(), self.attempt()).await;
        opened.unwrap_or_else(|_| Err(attempts.gave_up()))
    }

    async fn attempt<A: About>(&self) -> Result<Pipeline<A>, Error> {
        // The schema before the first; a message a request and one that takes it back, which may still be there when the place is
        // another one's.
        let mut opened = self.route.open(&self.command, 3 * self.capacity + 1, &self.slabs).await?;
        let schema = match A::IN_ORDER {
            true => {
                let schema = first_schema(&mut opened.messages).await;
                Some(schema.inspect_err(|error| self.route.failed(opened.server, error))?)
            }
            false => None,
        };
        Ok(Pipeline::start(opened, schema, self.route.config().idle_exchange))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One exchange. Dropping it ends it.
pub(crate) struct Pipeline<A> {
    server: usize,
    schema: Option<SchemaRef>,
    shared: Arc<Shared<A>>,
    _receiver: AbortOnDropHandle<()>,
}

struct Shared<A> {
    url: String,
    state: Mutex<State<A>>,
}

struct State<A> {
    /// Gone once the exchange is over.
    outgoing: Option<mpsc::Sender<Bytes>>,
    sent: Sent,
    /// The number of the next request.
    next: u64,
    /// Requests that have no answer yet, by their numbers. Also those that nobody waits for any more.
    waiting: BTreeMap<u64, Waiting<A>>,
    /// Why the exchange is over, unless it was idle.
    failure: Option<Error>,
}

struct Waiting<A> {
    answer: oneshot::Sender<Result<Answered<A>, Error>>,
    _place: OwnedSemaphorePermit,
}

impl<A: About> Pipeline<A> {
    fn start(opened: Opened, schema: Option<SchemaRef>, idle: Duration) -> Self {
        let Opened { outgoing, messages, server } = opened;
        let state = State {
            outgoing: Some(outgoing),
            sent: Sent::default(),
            next: 0,
            waiting: BTreeMap::new(),
            failure: None,
        };
        let shared = Arc::new(Shared { url: messages.url().to_owned(), state: Mutex::new(state) });
        let receiver = Receiver { messages, schema: schema.clone(), shared: Arc::clone(&shared), idle };
        let receiver = AbortOnDropHandle::new(tokio::spawn(receiver.run()));
        Self { server, schema, shared, _receiver: receiver }
    }

    /// The schema of all answers, where they come in order.
    pub(crate) fn schema(&self) -> Option<&SchemaRef> {
        self.schema.as_ref()
    }

    fn goes_on(&self) -> bool {
        // The connection may have dropped the body before its end was received.
        self.shared.lock().outgoing.as_ref().is_some_and(|outgoing| !outgoing.is_closed())
    }

    fn failure(&self) -> Option<Error> {
        self.shared.lock().failure.as_ref().map(Error::again)
    }

    /// Sends a request, whose metadata are made of its number. The answer comes by what is returned, which takes the request back
    /// when it is dropped before, where that can be; `place` is free again once the server has answered.
    ///
    /// # Errors
    /// [`Error::Lost`] when the exchange is over: nothing was sent. [`Error::Request`] when the rows have other columns than
    /// those before.
    pub(crate) fn send(
        &self,
        asked: &Asked,
        metadata: impl FnOnce(u64) -> Vec<u8>,
        place: OwnedSemaphorePermit,
    ) -> Result<Reply<A>, Error> {
        let mut state = self.shared.lock();
        let State { outgoing, sent, next, waiting, .. } = &mut *state;
        let over = || Error::lost(&self.shared.url, "the exchange is over");
        let outgoing = outgoing.as_ref().ok_or_else(over)?;
        let message = FlightData { app_metadata: metadata(*next).into(), ..asked.message.clone() };
        let message = framed(&message)?;
        // There is a place for every request in the channel, too.
        if let Some(schema) = sent.before(&asked.schema)? {
            outgoing.try_send(schema).map_err(|_| over())?;
        }
        outgoing.try_send(message).map_err(|_| over())?;
        let (answer, reply) = oneshot::channel();
        let number = *next;
        waiting.insert(number, Waiting { answer, _place: place });
        *next += 1;
        Ok(Reply { number, shared: Arc::clone(&self.shared), answer: reply })
    }
}

/// The answer to one request, when it comes.
pub(crate) struct Reply<A: About> {
    number: u64,
    shared: Arc<Shared<A>>,
    answer: oneshot::Receiver<Result<Answered<A>, Error>>,
}

impl<A: About> Reply<A> {
    pub(crate) async fn wait(mut self) -> Result<Answered<A>, Error> {
        let answer = (&mut self.answer).await;
        answer.unwrap_or_else(|_| Err(Error::lost(&self.shared.url, "the exchange was closed")))
    }
}

impl<A: About> Drop for Reply<A> {
    fn drop(&mut self) {
        let state = self.shared.lock();
        if state.waiting.contains_key(&self.number)
            && let Some(outgoing) = &state.outgoing
            && let Some(metadata) = A::withdrawal(self.number)
            && let Ok(message) =
                framed(&FlightData { app_metadata: metadata.into(), ..FlightData::default() })
        {
            // Of an exchange that is over there is nothing to take back.
            drop(outgoing.try_send(message));
        }
    }
}

impl<A> Shared<A> {
    fn lock(&self) -> MutexGuard<'_, State<A>> {
        lock(&self.state)
    }
}

impl<A: About> Shared<A> {
    /// Ends the exchange, and with it the requests that wait.
    fn end(&self, failure: Option<Error>) {
        let mut state = self.lock();
        if state.outgoing.take().is_none() {
            return;
        }
        let waiting = std::mem::take(&mut state.waiting);
        state.failure = failure.as_ref().map(Error::again);
        drop(state);
        let Some(failure) = failure else { return };
        for (place, (_, waiting)) in waiting.into_iter().enumerate() {
            // Those behind the one whose fault it is were not looked at.
            let error = match A::IN_ORDER && place > 0 && !failure.is_transient() {
                true => Error::lost(&self.url, format!("an earlier request ended the exchange: {failure}")),
                false => failure.again(),
            };
            // Nobody waits for it any more, maybe.
            drop(waiting.answer.send(Err(error)));
        }
    }

    /// Ends it if no request waits; whether it did.
    fn end_if_idle(&self) -> bool {
        let mut state = self.lock();
        let idle = state.waiting.is_empty();
        if idle {
            state.outgoing = None;
        }
        idle
    }

    /// The request that an answer with this metadata is for.
    fn take(&self, about: &A) -> Result<Waiting<A>, Error> {
        let waiting = &mut self.lock().waiting;
        let taken = match A::IN_ORDER {
            true => waiting.pop_first().map(|(_, waiting)| waiting),
            false => waiting.remove(&about.request()),
        };
        taken.ok_or_else(|| Error::protocol("an answer came that no request waits for"))
    }
}

/// Hands answers over to who waits for them.
struct Receiver<A: About> {
    messages: Messages,
    /// The one that the rows of the next answers have.
    schema: Option<SchemaRef>,
    shared: Arc<Shared<A>>,
    idle: Duration,
}

impl<A: About> Receiver<A> {
    async fn run(mut self) {
        let failure = loop {
            let Ok(message) = tokio::time::timeout(self.idle, self.messages.next()).await else {
                if self.shared.end_if_idle() {
                    return;
                }
                continue;
            };
            let taken = match message {
                Ok(Some(message)) => self.take(message),
                Ok(None) => Err(Error::lost(&self.shared.url, "the server has ended the exchange")),
                Err(error) => Err(error),
            };
            if let Err(error) = taken {
                break error;
            }
        };
        self.shared.end(Some(failure));
    }

    fn take(&mut self, message: Message) -> Result<(), Error> {
        if !message.header.is_empty()
            && let Some(schema) = schema_of(&message)?
        {
            if A::IN_ORDER {
                return Err(Error::protocol("a second schema came among the answers"));
            }
            self.schema = Some(schema);
            return Ok(());
        }
        let about = A::decode(message.app_metadata.as_slice())
            .map_err(|error| Error::protocol(format!("malformed metadata of an answer: {error}")))?;
        let waiting = self.shared.take(&about)?;
        let rows = match (message.header.is_empty(), &self.schema) {
            (true, _) => Ok(None),
            (false, Some(schema)) => Batch::of_rows(message, SchemaRef::clone(schema)).map(Some),
            (false, None) => Err(Error::protocol("an answer came before its schema")),
        };
        let failure = rows.as_ref().err().map(Error::again);
        // Nobody waits for it any more, maybe.
        drop(waiting.answer.send(rows.map(|rows| Answered { rows, about })));
        failure.map_or(Ok(()), Err)
    }
}

impl<A: About> Drop for Receiver<A> {
    /// However this task ends, nobody waits for ever.
    fn drop(&mut self) {
        self.shared.end(Some(Error::lost(&self.shared.url, "receiving has ended")));
    }
}
