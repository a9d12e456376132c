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
    callers::{Caller, Charge, MessageCharges},
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
    /// Deadlines of the charged answers that the client has not received, by their number.
    unsent: BTreeMap<u64, Instant>,
    /// Total number of charged answers.
    total_unsent: u64,
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
        let unsent = BTreeMap::new();
        let requests = Requests { running: 0, total: 0, last_ended: opened, unsent, total_unsent: 0 };
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
        let close_at = [self.unsent_deadline(), first, probe].into_iter().flatten().min();
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

    /// Earliest time by which the client must have received an answer.
    pub(super) fn unsent_deadline(&self) -> Option<Instant> {
        self.requests.lock().unsent.values().min().copied()
    }

    /// Notes an answer that holds `charge` until the transport no longer needs its bytes. The client must receive it within
    /// `receive_timeout` plus one second per MiB.
    pub(super) fn hold(self: &Arc<Self>, charge: Charge) -> Unsent {
        let deadline = Instant::now() + unsent_limit(self.config.receive_timeout, &charge);
        let mut requests = self.requests.lock();
        let number = requests.total_unsent;
        requests.total_unsent += 1;
        requests.unsent.insert(number, deadline);
        drop(requests);
        Unsent { connection: Arc::clone(self), number, _charge: charge }
    }

    /// Time when the last response ended, or when the connection was opened. `None` while a request is running or the client has not
    /// received a charged answer.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let requests = self.requests.lock();
        (requests.running == 0 && requests.unsent.is_empty()).then_some(requests.last_ended)
    }
}

/// Time within which a client must receive a charged answer: `receive_timeout` plus one second per MiB.
pub(crate) fn unsent_limit(receive_timeout: Duration, charge: &Charge) -> Duration {
    receive_timeout + Duration::from_secs(charge.amount() >> 20)
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

/// A charged answer that the client has not received.
pub(super) struct Unsent {
    connection: Arc<Connection>,
    number: u64,
    _charge: Charge,
}

impl Drop for Unsent {
    fn drop(&mut self) {
        self.connection.requests.lock().unsent.remove(&self.number);
    }
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
pub(super) struct Answer {
    body: axum::body::Body,
    unsent: Option<Arc<Unsent>>,
    messages: Option<MessageCharges>,
    running: Running,
}

impl Answer {
    /// The body of `response`, whose extensions may hold a [`Charge`] or [`MessageCharges`].
    pub(super) fn of(response: axum::response::Response, running: Running) -> http::Response<Self> {
        let (mut parts, body) = response.into_parts();
        let charge = Charge::from_extension(&mut parts.extensions);
        let unsent = charge.map(|charge| Arc::new(running.connection.hold(charge)));
        let messages = parts.extensions.remove();
        http::Response::from_parts(parts, Self { body, unsent, messages, running })
    }

    /// Charges the bytes of a frame.
    fn charged(&self, bytes: Bytes) -> Bytes {
        if let Some(unsent) = &self.unsent {
            return Bytes::from_owner(Charged { bytes, _unsent: Arc::clone(unsent) });
        }
        let charges = self.messages.as_ref().map(MessageCharges::take).unwrap_or_default();
        if charges.is_empty() {
            return bytes;
        }
        let unsent = charges.into_iter().map(|charge| self.running.connection.hold(charge));
        Bytes::from_owner(Charged { bytes, _unsent: unsent.collect::<Vec<_>>() })
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
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
    use tokio::time::advance;
    use tonic::{
        Status,
        codec::{EncodeBody, EncodeBuf, Encoder},
    };

    use super::{super::places::Places, *};
    use crate::callers::{Caller, Callers, Resource};

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
        let (charges, held) = (MessageCharges::default(), || callers.usage().totals[4].1);
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
        let (charges, held) = (MessageCharges::default(), || callers.usage().totals[4].1);
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
        let held = || callers.usage().totals[4].1;
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
