//! One connection: what its requests tell about it, and when it is closed.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{config::Config, places::Place};
use crate::{
    Error,
    address::Peer,
    callers::{Account, Caller, Charge, MessageCharges, Resource},
};

/// Maximum lifetime of a connection that only probes may use.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// State of a connection. It is an extension of each request of the connection.
pub(crate) struct Connection {
    place: Place,
    config: Config,
    opened: Instant,
    peer: Peer,
    requests: Mutex<Requests>,
    is_authenticated: Mutex<bool>,
}

struct Requests {
    /// Number of requests whose responses have not ended.
    running: usize,
    /// Total number of requests.
    total: u64,
    /// Time when the last response ended.
    last_ended: Instant,
    /// Deadlines by which the client must have received an answer, or accept another part of one, by number.
    deadlines: BTreeMap<u64, Instant>,
    /// Responses whose clients may pause, by the number of the deadline.
    paused: BTreeMap<u64, MayPause>,
    /// Total number of deadlines.
    total_deadlines: u64,
}

/// Marks a response whose client may pause for any time, because the response has a memory limit of its own. It is an extension of
/// the response.
#[derive(Clone)]
pub(crate) struct MayPause(Arc<dyn Fn() -> Option<Instant> + Send + Sync>);

impl MayPause {
    /// Lets the client pause without a time limit.
    pub(crate) fn always() -> Self {
        Self(Arc::new(|| None))
    }

    /// A client that may pause until the time that `deadline` returns, if it returns one.
    pub(crate) fn until(deadline: impl Fn() -> Option<Instant> + Send + Sync + 'static) -> Self {
        Self(Arc::new(deadline))
    }
}

/// Next step of the server with a connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Checks the connection again at this time.
    Check(Instant),
    /// Ends the connection after its running requests.
    Finish,
    /// Closes the connection at once.
    Close,
}

impl Connection {
    pub(super) fn new(place: Place, peer: Peer, config: Config) -> Self {
        let opened = Instant::now();
        let requests = Requests {
            running: 0,
            total: 0,
            last_ended: opened,
            deadlines: BTreeMap::new(),
            paused: BTreeMap::new(),
            total_deadlines: 0,
        };
        let (requests, is_authenticated) = (Mutex::new(requests), Mutex::new(false));
        Self { place, config, opened, peer, requests, is_authenticated }
    }

    /// Notes that a request of `caller` was authenticated.
    ///
    /// # Errors
    /// Busy if it is the first one of the connection, and the caller has too many connections.
    pub(crate) fn authenticated(&self, caller: &Caller) -> Result<(), Error> {
        let mut is_authenticated = self.is_authenticated.lock();
        if !*is_authenticated && !self.place.authenticated(caller) {
            let max = self.config.max;
            return Err(Error::busy(format!(
                "{caller} has seven eighths of the {max} connections (limits.max_connections); close some of them"
            )));
        }
        *is_authenticated = true;
        Ok(())
    }

    /// Client of the connection.
    pub(crate) fn peer(&self) -> Peer {
        self.peer
    }

    /// Waits until the place of this connection is given to another one.
    pub(super) async fn replaced(&self) {
        self.place.replaced.cancelled().await;
    }

    /// True if only probes are answered.
    pub(super) fn is_for_probes(&self) -> bool {
        self.place.is_reserved
    }

    /// Notes the start of a request, which runs until the guard is dropped.
    pub(super) fn begin(self: &Arc<Self>) -> Running {
        let mut requests = self.requests.lock();
        requests.running += 1;
        requests.total += 1;
        Running { connection: Arc::clone(self) }
    }

    pub(super) fn next(&self, now: Instant) -> Next {
        let (idle_since, total) = (self.idle_since(), self.requests.lock().total);
        let first = (total == 0).then(|| self.opened + self.config.first_request_timeout);
        let probe = self.is_for_probes().then(|| self.opened + PROBE_TIMEOUT);
        let close_at = [self.deadline(), first, probe].into_iter().flatten().min();
        let idle_at = idle_since.unwrap_or(now) + self.config.idle_timeout;
        let finish_at =
            [Some(idle_at), self.config.max_age.map(|age| self.opened + age)].into_iter().flatten().min();
        if close_at.is_some_and(|at| at <= now) {
            return Next::Close;
        }
        if finish_at.is_some_and(|at| at <= now) {
            return Next::Finish;
        }
        // Answers that begin in the meantime are noticed at most this late.
        let again = now + self.config.receive_timeout;
        Next::Check([close_at, finish_at].into_iter().flatten().fold(again, Instant::min))
    }

    /// Earliest time by which the client must have received an answer, or accept more of one.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let requests = self.requests.lock();
        let paused = requests.paused.values().filter_map(|paused| (paused.0)());
        requests.deadlines.values().copied().chain(paused).min()
    }

    /// Returns a deadline that is not set.
    fn new_deadline(self: &Arc<Self>) -> Deadline {
        let mut requests = self.requests.lock();
        let number = requests.total_deadlines;
        requests.total_deadlines += 1;
        Deadline { connection: Arc::clone(self), number }
    }

    /// Notes an answer that holds `charge` until the transport no longer needs its bytes. The client must receive it within
    /// `receive_timeout` plus one second per MiB.
    pub(super) fn hold(self: &Arc<Self>, charge: Charge) -> Unsent {
        let deadline = self.new_deadline();
        deadline.set(Some(Instant::now() + unsent_limit(self.config.receive_timeout, &charge)));
        Unsent { _deadline: deadline, _charge: charge }
    }

    /// Time when the last response ended, or when the connection was opened. `None` while a request is running or the client has not
    /// received a charged answer.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let requests = self.requests.lock();
        (requests.running == 0 && requests.deadlines.is_empty()).then_some(requests.last_ended)
    }
}

/// Time within which a client must receive a charged answer: `receive_timeout` plus one second per MiB.
pub(crate) fn unsent_limit(receive_timeout: Duration, charge: &Charge) -> Duration {
    size_limit(receive_timeout, charge.amount())
}

/// Time limit for the transfer of `bytes` bytes: `timeout` plus one second per MiB.
pub(crate) fn size_limit(timeout: Duration, bytes: u64) -> Duration {
    timeout.saturating_add(Duration::from_secs(bytes >> 20))
}

/// Size of the data of a frame.
fn frame_bytes(frame: &Frame<Bytes>) -> u64 {
    frame.data_ref().map_or(0, |data| data.len() as u64)
}

/// A running request of a [`Connection`].
pub(super) struct Running {
    connection: Arc<Connection>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut requests = self.connection.requests.lock();
        requests.running -= 1;
        requests.last_ended = Instant::now();
    }
}

/// A deadline of a [`Connection`], until it is dropped.
struct Deadline {
    connection: Arc<Connection>,
    number: u64,
}

impl Deadline {
    /// Sets the time, or removes it.
    fn set(&self, at: Option<Instant>) {
        let deadlines = &mut self.connection.requests.lock().deadlines;
        match at {
            Some(at) => drop(deadlines.insert(self.number, at)),
            None => drop(deadlines.remove(&self.number)),
        }
    }

    /// Replaces the time by one that the response determines.
    fn pause(&self, paused: MayPause) {
        self.connection.requests.lock().paused.insert(self.number, paused);
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        let mut requests = self.connection.requests.lock();
        requests.deadlines.remove(&self.number);
        // What it refers to is dropped outside of the lock.
        let paused = requests.paused.remove(&self.number);
        drop(requests);
        drop(paused);
    }
}

/// A charged answer that the client has not received.
pub(super) struct Unsent {
    _deadline: Deadline,
    _charge: Charge,
}

/// Bytes of charged answers. The transport keeps them until it has sent them.
struct Charged<C> {
    bytes: Bytes,
    _unsent: C,
}

impl<C> AsRef<[u8]> for Charged<C> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A response body that keeps its request [`Running`] until it ends or is dropped, its charge until its bytes are sent, and the
/// charge of each of its messages until the bytes of the message are sent.
///
/// Frames without such a charge are charged when the transport takes them. The client must accept a frame within `receive_timeout`
/// plus one second per MiB of the frame before it. Neither rule applies to a response with [`MayPause`].
pub(super) struct Answer {
    body: axum::body::Body,
    unsent: Option<Arc<Unsent>>,
    messages: Option<MessageCharges>,
    account: Option<Account>,
    /// Time by which the transport must ask for the next frame. It is set while the flow control of the client blocks
    /// the transport.
    next_frame: Arc<Deadline>,
    may_pause: bool,
    running: Running,
}

impl Answer {
    /// The body of `response`, whose extensions may hold a [`Charge`] or [`MessageCharges`], an [`Account`] and [`MayPause`].
    pub(super) fn of(response: axum::response::Response, running: Running) -> http::Response<Self> {
        let (mut parts, body) = response.into_parts();
        let charge = Charge::from_extension(&mut parts.extensions);
        let unsent = charge.map(|charge| Arc::new(running.connection.hold(charge)));
        let (messages, account) = (parts.extensions.remove(), parts.extensions.remove());
        let (next_frame, paused) = (Arc::new(running.connection.new_deadline()), parts.extensions.remove());
        let may_pause = paused.is_some();
        match paused {
            Some(paused) => next_frame.pause(paused),
            None => next_frame.set(Some(Instant::now() + running.connection.config.receive_timeout)),
        }
        let answer = Self { body, unsent, messages, account, next_frame, may_pause, running };
        http::Response::from_parts(parts, answer)
    }

    /// Charges the bytes of a frame.
    fn charged(&self, bytes: Bytes) -> Bytes {
        // The transport asks for the end of a body before it has sent the last bytes. The client may pause no longer because of this.
        let paused = self.may_pause.then(|| Arc::clone(&self.next_frame));
        if let Some(unsent) = &self.unsent {
            return Bytes::from_owner(Charged { bytes, _unsent: (Arc::clone(unsent), paused) });
        }
        let mut charges = self.messages.as_ref().map(MessageCharges::take).unwrap_or_default();
        if charges.is_empty()
            && !self.may_pause
            && let Some(account) = &self.account
        {
            charges.push(account.charge(Resource::UnsentBytes, bytes.len() as u64));
        }
        if charges.is_empty() && paused.is_none() {
            return bytes;
        }
        let unsent = charges.into_iter().map(|charge| self.running.connection.hold(charge));
        Bytes::from_owner(Charged { bytes, _unsent: (unsent.collect::<Vec<_>>(), paused) })
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if !self.may_pause {
            // While the body makes its next frame, the client need not do anything.
            let limit = match &polled {
                Poll::Pending => None,
                Poll::Ready(Some(Ok(frame))) => {
                    Some(size_limit(self.running.connection.config.receive_timeout, frame_bytes(frame)))
                }
                Poll::Ready(_) => Some(self.running.connection.config.receive_timeout),
            };
            self.next_frame.set(limit.map(|limit| Instant::now() + limit));
        }
        let frame = ready!(polled);
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(|bytes| self.charged(bytes)))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use bytes::BufMut;
    use futures::StreamExt;
    use http_body_util::BodyExt;
    use tokio::time::advance;
    use tonic::{
        Status,
        codec::{EncodeBody, EncodeBuf, Encoder},
    };

    use super::{super::places::Places, *};
    use crate::callers::Callers;

    const SECOND: Duration = Duration::from_secs(1);

    fn config() -> Config {
        Config {
            max: 1,
            first_request_timeout: 10 * SECOND,
            idle_timeout: 100 * SECOND,
            max_age: Some(1000 * SECOND),
            receive_timeout: 10_000 * SECOND,
            ..Config::default()
        }
    }

    fn connection(config: Config) -> Arc<Connection> {
        let place = Places::new(config.clone()).take(None).unwrap();
        Arc::new(Connection::new(place, Peer::User(None), config))
    }

    fn next(connection: &Connection) -> Next {
        connection.next(Instant::now())
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_a_request_is_closed_after_the_timeout_of_the_first() {
        let connection = connection(config());
        assert_eq!(next(&connection), Next::Check(connection.opened + 10 * SECOND));
        advance(10 * SECOND).await;
        assert_eq!(next(&connection), Next::Close);
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_is_finished_after_the_timeout_since_its_last_response() {
        let connection = connection(config());
        let running = connection.begin();
        advance(500 * SECOND).await;
        assert_eq!(next(&connection), Next::Check(Instant::now() + 100 * SECOND));
        assert_eq!(connection.idle_since(), None);
        drop(running);
        let ended = Instant::now();
        advance(99 * SECOND).await;
        assert_eq!(next(&connection), Next::Check(ended + 100 * SECOND));
        advance(SECOND).await;
        assert_eq!(next(&connection), Next::Finish);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_finished_at_its_maximum_age_although_it_is_in_use() {
        let connection = connection(config());
        let _running = connection.begin();
        advance(999 * SECOND).await;
        assert_eq!(next(&connection), Next::Check(connection.opened + 1000 * SECOND));
        advance(SECOND).await;
        assert_eq!(next(&connection), Next::Finish);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_for_probes_is_closed_after_a_few_seconds() {
        let places = Places::new(Config { max: 0, max_per_peer: 1, ..config() });
        let connection = Arc::new(Connection::new(places.take(None).unwrap(), Peer::User(None), config()));
        let _running = connection.begin();
        assert_eq!(next(&connection), Next::Check(connection.opened + PROBE_TIMEOUT));
        advance(PROBE_TIMEOUT).await;
        assert_eq!(next(&connection), Next::Close);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_whose_client_does_not_receive_a_charged_answer_is_closed() {
        let config = Config { receive_timeout: 60 * SECOND, idle_timeout: 1000 * SECOND, ..config() };
        let connection = connection(config);
        let running = connection.begin();
        let callers = Callers::new(Arc::default());
        let charge = callers.take(&Caller::Local, Resource::UnsentBytes, 5 << 20).unwrap();
        let response = axum::response::Response::new(axum::body::Body::from("answer"));
        let mut response = response;
        response.extensions_mut().insert(charge.shared());
        let mut body = Box::pin(Answer::of(response, running).into_body());
        let frame = std::future::poll_fn(|context| body.as_mut().poll_frame(context)).await.unwrap().unwrap();
        let bytes = frame.into_data().unwrap();
        // The transport holds the bytes. A second more per MiB.
        drop(body);
        advance(64 * SECOND).await;
        assert_eq!(next(&connection), Next::Check(Instant::now() + SECOND));
        advance(SECOND).await;
        assert_eq!(next(&connection), Next::Close);
        assert_eq!(callers.usage().callers.len(), 1);
        drop(bytes);
        assert!(callers.usage().callers.is_empty());
        assert_ne!(next(&connection), Next::Close);
    }

    #[tokio::test(start_paused = true)]
    async fn each_message_of_a_stream_is_charged_until_its_bytes_are_sent() {
        let connection = connection(config());
        let callers = Callers::new(Arc::default());
        let (charges, held) =
            (MessageCharges::default(), || callers.usage().totals[Resource::UnsentBytes as usize].1);
        let (put, charged) = (charges.clone(), callers.clone());
        let messages = futures::stream::iter([1u64, 2, 0]).map(move |size| {
            if size > 0 {
                put.charge_next(charged.take(&Caller::Local, Resource::UnsentBytes, size).unwrap());
            }
            Ok::<_, axum::Error>(Bytes::from("message"))
        });
        let mut response = axum::response::Response::new(axum::body::Body::from_stream(messages));
        response.extensions_mut().insert(charges);
        let mut body = Box::pin(Answer::of(response, connection.begin()).into_body());
        let mut frames = Vec::new();
        while let Some(frame) = std::future::poll_fn(|context| body.as_mut().poll_frame(context)).await {
            frames.push(frame.unwrap().into_data().unwrap());
        }
        assert_eq!((frames.len(), held()), (3, 3));
        frames.remove(0);
        assert_eq!(held(), 2, "the first message is sent");
        frames.remove(0);
        assert_eq!(held(), 0, "the stream itself holds nothing");
        drop(body);
    }

    /// Config in which only the time to receive is short.
    fn receiving() -> Config {
        Config { receive_timeout: 60 * SECOND, idle_timeout: 1000 * SECOND, ..config() }
    }

    async fn next_frame(body: &mut Pin<Box<Answer>>) -> Option<Bytes> {
        let frame = std::future::poll_fn(|context| body.as_mut().poll_frame(context)).await?;
        Some(frame.unwrap().into_data().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_whose_client_accepts_no_part_of_an_answer_is_closed() {
        let connection = connection(receiving());
        let response = axum::response::Response::new(axum::body::Body::from("answer"));
        let body = Box::pin(Answer::of(response, connection.begin()).into_body());
        advance(60 * SECOND).await;
        assert_eq!(next(&connection), Next::Close);
        drop(body);
        assert_ne!(next(&connection), Next::Close);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_accepts_one_frame_after_the_other_has_the_time_for_each() {
        let connection = connection(receiving());
        let frames = futures::stream::iter(["one", "two"]).map(Ok::<_, axum::Error>);
        let made = futures::stream::once(async {
            tokio::time::sleep(500 * SECOND).await;
            Ok("three")
        });
        let body = axum::body::Body::from_stream(frames.chain(made));
        let response = axum::response::Response::new(body);
        let mut body = Box::pin(Answer::of(response, connection.begin()).into_body());
        for expected in ["one", "two"] {
            advance(59 * SECOND).await;
            assert_ne!(next(&connection), Next::Close);
            assert_eq!(next_frame(&mut body).await.unwrap(), expected);
        }
        // The next frame is not ready, which is no fault of the client.
        assert!(futures::FutureExt::now_or_never(next_frame(&mut body)).is_none());
        advance(400 * SECOND).await;
        assert_ne!(next(&connection), Next::Close);
        assert_eq!(next_frame(&mut body).await.unwrap(), "three");
        advance(60 * SECOND).await;
        assert_eq!(next(&connection), Next::Close);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_may_pause_a_response_with_a_limit_of_its_own_until_its_deadline() {
        let connection = connection(receiving());
        let deadline = Arc::new(Mutex::new(None));
        let read = Arc::clone(&deadline);
        let mut response = axum::response::Response::new(axum::body::Body::from("batch"));
        response.extensions_mut().insert(MayPause::until(move || *read.lock()));
        let mut body = Answer::of(response, connection.begin()).into_body();
        let bytes = body.frame().await.unwrap().unwrap().into_data().unwrap();
        // The transport has asked for all of the body, and has not sent it.
        drop(body);
        advance(900 * SECOND).await;
        assert_ne!(next(&connection), Next::Close);
        *deadline.lock() = Some(Instant::now() + SECOND);
        assert_eq!(next(&connection), Next::Check(Instant::now() + SECOND));
        advance(SECOND).await;
        assert_eq!(next(&connection), Next::Close);
        drop(bytes);
        assert_ne!(next(&connection), Next::Close);
    }

    #[tokio::test(start_paused = true)]
    async fn a_frame_without_a_charge_is_charged_to_its_caller_until_it_is_sent() {
        let connection = connection(receiving());
        let callers = Callers::new(Arc::default());
        let held = || callers.usage().totals[Resource::UnsentBytes as usize].1;
        let frames = futures::stream::iter(["four", "seven"]).map(Ok::<_, axum::Error>);
        let mut response = axum::response::Response::new(axum::body::Body::from_stream(frames));
        response.extensions_mut().insert(Account::new(&callers, Caller::Local));
        let mut body = Box::pin(Answer::of(response, connection.begin()).into_body());
        let first = next_frame(&mut body).await.unwrap();
        let second = next_frame(&mut body).await.unwrap();
        drop(body);
        assert_eq!(held(), 4 + 5);
        drop(first);
        assert_eq!(held(), 5);
        advance(60 * SECOND).await;
        assert_eq!(next(&connection), Next::Close, "the transport still holds the second frame");
        drop(second);
        assert_eq!(held(), 0);
    }

    /// Encoder of messages that are bytes.
    struct Plain;

    impl Encoder for Plain {
        type Item = Bytes;
        type Error = Status;

        fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
            buffer.put(item);
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_frame_takes_over_the_charges_of_its_messages_and_not_of_the_one_being_made() {
        let connection = connection(config());
        let callers = Callers::new(Arc::default());
        let (charges, held) =
            (MessageCharges::default(), || callers.usage().totals[Resource::UnsentBytes as usize].1);
        let (put, charged) = (charges.clone(), callers.clone());
        // The first two messages are ready together. The transport sends them while the third one is being made.
        let messages = futures::stream::unfold(0, move |made| {
            let (put, charged) = (put.clone(), charged.clone());
            async move {
                if made == 2 {
                    tokio::task::yield_now().await;
                }
                let amount = [1, 10, 100].get(made)?;
                put.charge_next(charged.take(&Caller::Local, Resource::UnsentBytes, *amount).unwrap());
                Some((Ok::<_, Status>(Bytes::from("message")), made + 1))
            }
        });
        let messages = EncodeBody::new_server(Plain, Box::pin(messages), None, Default::default(), None);
        let mut response = axum::response::Response::new(axum::body::Body::new(messages));
        response.extensions_mut().insert(charges);
        let mut body = Box::pin(Answer::of(response, connection.begin()).into_body());
        let mut next = async || {
            let frame = std::future::poll_fn(|context| body.as_mut().poll_frame(context)).await;
            frame.unwrap().unwrap().into_data().unwrap()
        };
        let first = next().await;
        assert_eq!((first.len(), held()), (2 * (5 + 7), 11));
        let second = next().await;
        assert_eq!((second.len(), held()), (5 + 7, 111));
        drop(first);
        assert_eq!(held(), 100, "the first two messages are sent");
        drop(second);
        assert_eq!(held(), 0);
    }

    #[tokio::test]
    async fn a_charge_that_no_frame_has_taken_over_ends_with_its_caller() {
        let connection = connection(config());
        let callers = Callers::new(Arc::default());
        let held = || callers.usage().totals[Resource::UnsentBytes as usize].1;
        // The caller leaves while the first message, or the second one, is charged and not complete.
        for complete in [0, 1] {
            let (charges, charged) = (MessageCharges::default(), callers.clone());
            let put = charges.clone();
            let messages = futures::stream::unfold(0, move |made| {
                let (put, charged) = (put.clone(), charged.clone());
                async move {
                    let charge = charged.take(&Caller::Local, Resource::UnsentBytes, 7).unwrap();
                    if made == complete {
                        std::future::pending::<()>().await;
                    }
                    put.charge_next(charge);
                    Some((Ok::<_, Status>(Bytes::from("message")), made + 1))
                }
            });
            let messages = EncodeBody::new_server(Plain, Box::pin(messages), None, Default::default(), None);
            let mut response = axum::response::Response::new(axum::body::Body::new(messages));
            response.extensions_mut().insert(charges);
            let mut body = Box::pin(Answer::of(response, connection.begin()).into_body());
            let mut frames = Vec::new();
            while let Some(Some(frame)) = futures::FutureExt::now_or_never(std::future::poll_fn(|context| {
                body.as_mut().poll_frame(context)
            })) {
                frames.push(frame.unwrap().into_data().unwrap());
            }
            assert_eq!((frames.len(), held()), (complete, 7 * (complete as u64 + 1)));
            drop(body);
            assert_eq!(held(), 7 * complete as u64, "the charge of the message that was not complete");
            drop(frames);
            assert_eq!(held(), 0);
        }
    }
}
