//! One connection: what its requests tell about it, and when it is closed.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{config::Config, places::Place};

/// Maximum time of a connection that only probes may use.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// State of a connection. Each of its requests has it as an extension.
pub(crate) struct Connection {
    place: Place,
    config: Config,
    opened: Instant,
    requests: Mutex<Requests>,
    is_authenticated: AtomicBool,
}

struct Requests {
    /// Number of requests whose responses have not ended.
    running: usize,
    /// Total number of requests.
    total: u64,
    /// Time when the last response ended.
    last_ended: Instant,
}

/// What to do with a connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Checks it again at this time.
    Check(Instant),
    /// Ends it after its running requests.
    Finish,
    /// Closes it at once.
    Close,
}

impl Connection {
    pub(super) fn new(place: Place, config: Config) -> Self {
        let opened = Instant::now();
        let requests = Requests { running: 0, total: 0, last_ended: opened };
        Self {
            place,
            config,
            opened,
            requests: Mutex::new(requests),
            is_authenticated: AtomicBool::new(false),
        }
    }

    /// Notes that a request was authenticated.
    pub(crate) fn authenticated(&self) {
        if !self.is_authenticated.swap(true, Ordering::Relaxed) {
            self.place.authenticated();
        }
    }

    /// Waits until another connection has got the place of this one.
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
        let requests = self.requests.lock();
        let (first, idle) = (self.opened + self.config.first_request_timeout, self.config.idle_timeout);
        let deadline = if self.is_for_probes() {
            self.opened + PROBE_TIMEOUT
        } else if requests.total == 0 {
            first
        } else {
            // A response that ends before this time is noticed at most one timeout late.
            let idle_at = if requests.running > 0 { now + idle } else { requests.last_ended + idle };
            let oldest = self.config.max_age.map(|age| self.opened + age);
            idle_at.min(oldest.unwrap_or(idle_at))
        };
        match deadline > now {
            true => Next::Check(deadline),
            false if self.is_for_probes() || requests.total == 0 => Next::Close,
            false => Next::Finish,
        }
    }

    /// True if no request is running.
    pub(super) fn is_idle(&self) -> bool {
        self.requests.lock().running == 0
    }
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

/// A response body that keeps its request [`Running`] until it ends or is dropped.
pub(super) struct Answer {
    body: axum::body::Body,
    _running: Running,
}

impl Answer {
    pub(super) fn new(body: axum::body::Body, running: Running) -> Self {
        Self { body, _running: running }
    }
}

impl Body for Answer {
    type Data = bytes::Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
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
    use tokio::time::advance;

    use super::{super::places::Places, *};

    const SECOND: Duration = Duration::from_secs(1);

    fn config() -> Config {
        Config {
            max: 1,
            first_request_timeout: 10 * SECOND,
            idle_timeout: 100 * SECOND,
            max_age: Some(1000 * SECOND),
            ..Config::default()
        }
    }

    fn connection(config: Config) -> Arc<Connection> {
        Arc::new(Connection::new(Places::new(config.clone()).take(None).unwrap(), config))
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
        assert!(!connection.is_idle());
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
        let connection = Arc::new(Connection::new(places.take(None).unwrap(), config()));
        let _running = connection.begin();
        assert_eq!(next(&connection), Next::Check(connection.opened + PROBE_TIMEOUT));
        advance(PROBE_TIMEOUT).await;
        assert_eq!(next(&connection), Next::Close);
    }
}
