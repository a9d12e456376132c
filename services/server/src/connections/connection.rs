//! One connection: what its requests tell about it, and when it is closed.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{config::Config, places::Place};
use crate::{Error, address::Peer, callers::Caller};

/// Maximum lifetime of a connection that only probes may use.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of concurrent health watches per connection. They need no token, and are no calls of a caller. The limits of connections
/// therefore limit them, too.
const MAX_WATCHES: usize = 4;

/// State of a connection. It is an extension of each request of the connection.
pub(crate) struct Connection {
    place: Place,
    config: Config,
    opened: Instant,
    peer: Peer,
    requests: Mutex<Requests>,
    is_authenticated: Mutex<bool>,
    /// Number of health watches.
    watches: AtomicUsize,
}

/// A health watch of a connection, until it is dropped.
pub(crate) struct Watch(Arc<Connection>);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.watches.fetch_sub(1, Ordering::Relaxed);
    }
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

/// Marks a response that has a memory limit of its own, and a rule of its own for how long its client may pause. `receive_timeout` does
/// not apply to it. It is an extension of the response.
#[derive(Clone)]
pub(crate) struct MayPause(Arc<dyn Fn() -> Option<Instant> + Send + Sync>);

impl MayPause {
    /// Lets the client pause without a time limit.
    pub(crate) fn always() -> Self {
        Self(Arc::new(|| None))
    }

    /// Lets the client pause until the time that `deadline` returns, and without a limit while it returns none.
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
        Self { place, config, opened, peer, requests, is_authenticated, watches: AtomicUsize::new(0) }
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

    /// Begins a health watch.
    ///
    /// # Errors
    /// Busy if the connection has [`MAX_WATCHES`].
    pub(crate) fn watch(self: &Arc<Self>) -> Result<Watch, Error> {
        let watch = Watch(Arc::clone(self));
        if self.watches.fetch_add(1, Ordering::Relaxed) < MAX_WATCHES {
            return Ok(watch);
        }
        let message =
            format!("the connection has {MAX_WATCHES} health watches; end one of them, or call Check");
        Err(Error::busy(message))
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

    /// Time within which a client must receive an answer, or accept the next part of one.
    pub(super) fn receive_timeout(&self) -> Duration {
        self.config.receive_timeout
    }

    /// Returns a deadline that is not set.
    pub(super) fn new_deadline(self: &Arc<Self>) -> Deadline {
        let mut requests = self.requests.lock();
        let number = requests.total_deadlines;
        requests.total_deadlines += 1;
        Deadline { connection: Arc::clone(self), number }
    }

    /// Time when the last response ended, or when the connection was opened. `None` while a request is running or the client has not
    /// received a charged answer.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let requests = self.requests.lock();
        (requests.running == 0 && requests.deadlines.is_empty()).then_some(requests.last_ended)
    }
}

/// A running request of a [`Connection`].
pub(super) struct Running {
    connection: Arc<Connection>,
}

impl Running {
    pub(super) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut requests = self.connection.requests.lock();
        requests.running -= 1;
        requests.last_ended = Instant::now();
    }
}

/// A deadline of a [`Connection`], until it is dropped.
pub(super) struct Deadline {
    connection: Arc<Connection>,
    number: u64,
}

impl Deadline {
    /// Sets the time, or removes it.
    pub(super) fn set(&self, at: Option<Instant>) {
        let deadlines = &mut self.connection.requests.lock().deadlines;
        match at {
            Some(at) => drop(deadlines.insert(self.number, at)),
            None => drop(deadlines.remove(&self.number)),
        }
    }

    /// Replaces the time by one that the response determines.
    pub(super) fn pause(&self, paused: MayPause) {
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

#[cfg(test)]
pub(super) mod tests {
    use tokio::time::advance;

    use super::{super::places::Places, *};

    pub(in super::super) const SECOND: Duration = Duration::from_secs(1);

    pub(in super::super) fn config() -> Config {
        Config {
            max: 1,
            first_request_timeout: 10 * SECOND,
            idle_timeout: 100 * SECOND,
            max_age: Some(1000 * SECOND),
            receive_timeout: 10_000 * SECOND,
            ..Config::default()
        }
    }

    pub(in super::super) fn connection(config: Config) -> Arc<Connection> {
        let place = Places::new(config.clone()).take(None).unwrap();
        Arc::new(Connection::new(place, Peer::User(None), config))
    }

    pub(in super::super) fn next(connection: &Connection) -> Next {
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

    #[tokio::test]
    async fn a_connection_has_a_few_health_watches_at_a_time() {
        let connection = connection(config());
        let mut watches: Vec<_> = (0..MAX_WATCHES).map(|_| connection.watch().unwrap()).collect();
        for _ in 0..3 {
            let error = connection.watch().err().unwrap();
            assert!(error.message().contains("has 4 health watches"), "{error}");
        }
        watches.pop();
        watches.push(connection.watch().unwrap());
        connection.watch().err().unwrap();
        drop(watches);
        assert_eq!(connection.watches.load(Ordering::Relaxed), 0);
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
}
