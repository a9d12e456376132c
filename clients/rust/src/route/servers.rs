//! The URLs of a client, and the server among them that is in use.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    dial::dial,
    failback::Failback,
    host::with_scheme,
    transport::Transport,
    trust::Trust,
    waiting::{self, Waiting, WaitingHook},
};
use crate::{Config, Error, ValueSet};

/// Shortest time between two notices of a client.
const NOTICE_SPACING: Duration = Duration::from_secs(3);

/// The URLs of a client, and the server among them that is in use. Cheap to clone. Clones use the same server, so that the ranks and
/// lanes of a process read the same windows from the memory of one server.
#[derive(Clone)]
pub(crate) struct Servers {
    shared: Arc<Shared>,
    /// Sets of values for servers that do not have them.
    values: Arc<[ValueSet]>,
}

struct Shared {
    urls: Vec<String>,
    trust: Trust,
    config: Arc<Config>,
    state: Mutex<State>,
    /// True once a server has accepted a connection of this client.
    was_connected: AtomicBool,
    waiting: Mutex<WaitingNotices>,
}

/// The receiver of notices about calls that take long.
struct WaitingNotices {
    hook: WaitingHook,
    last: Option<Instant>,
}

/// A server, and the address at which it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Target {
    /// Index of the URL.
    server: usize,
    /// Address of its host; `None` for a Unix socket, or if the name of the host was not resolved.
    address: Option<SocketAddr>,
}

struct State {
    /// Index of the server in use.
    server: usize,
    /// Addresses of its host, in the order in which they are used; empty before the first connection.
    addresses: Vec<SocketAddr>,
    /// Index of the address in use.
    address: usize,
    /// Number of addresses of each server, as far as it is known.
    counts: Vec<usize>,
    failback: Failback,
    /// True if the preferred server is in use because a probe found it healthy.
    is_returned: bool,
}

impl State {
    fn target(&self) -> Target {
        Target { server: self.server, address: self.addresses.get(self.address).copied() }
    }

    /// Selects `server`, whose addresses are resolved by the next connection.
    fn select(&mut self, server: usize) {
        (self.server, self.address) = (server, 0);
        self.addresses.clear();
    }
}

impl Servers {
    /// Creates the choice among the servers at `urls`, the preferred one first. Does not connect.
    ///
    /// # Errors
    /// [`Error::Request`] if `urls` is empty, or if a URL or a setting of `config` is invalid.
    pub(crate) fn new(urls: &[String], config: Config) -> Result<Self, Error> {
        if urls.is_empty() {
            return Err(Error::Request("urls: is empty, expected at least one server URL".into()));
        }
        let urls = urls.iter().map(|url| with_scheme(url)).collect::<Result<Vec<_>, _>>()?;
        config.validate()?;
        let trust = Trust::new(&urls, &config.trusted_hosts)?;
        let state = State {
            server: 0,
            addresses: Vec::new(),
            address: 0,
            counts: vec![1; urls.len()],
            failback: Failback::new(config.failback_interval),
            is_returned: false,
        };
        let shared = Shared {
            urls,
            trust,
            config: Arc::new(config),
            state: Mutex::new(state),
            was_connected: AtomicBool::new(false),
            waiting: Mutex::new(WaitingNotices { hook: Arc::new(waiting::log), last: None }),
        };
        Ok(Self { shared: Arc::new(shared), values: Arc::default() })
    }

    /// Returns the same servers, to which calls can send `values`, in addition to those of this choice.
    pub(crate) fn with_values(&self, values: impl IntoIterator<Item = ValueSet>) -> Self {
        let values = self.values.iter().cloned().chain(values).collect();
        Self { shared: Arc::clone(&self.shared), values }
    }

    /// Sends the sets of values to the server of `transport` that it is missing according to `error`. Returns true if the server has all
    /// of them now, so that the failed call can be repeated.
    ///
    /// # Errors
    /// The error of the server, such as a limit.
    pub(crate) async fn supply(&self, transport: &Transport, error: &Error) -> Result<bool, Error> {
        let missing = error.missing_values();
        let sets: Vec<&ValueSet> = missing
            .iter()
            .filter_map(|sha256| self.values.iter().find(|set| set.sha256() == sha256))
            .collect();
        if missing.is_empty() || sets.len() < missing.len() {
            return Ok(false);
        }
        for set in sets {
            transport.put_values(set).await?;
        }
        Ok(true)
    }

    /// Returns true if a server has accepted a connection before. It exists, although it may not be reachable at the moment.
    pub(crate) fn was_connected(&self) -> bool {
        self.shared.was_connected.load(Ordering::Relaxed)
    }

    /// Records that a server has accepted a connection.
    pub(super) fn connected(&self) {
        self.shared.was_connected.store(true, Ordering::Relaxed);
    }

    /// Sets the receiver of notices about calls that take long. It replaces the log.
    pub(crate) fn on_waiting(&self, hook: WaitingHook) {
        self.shared.waiting.lock().hook = hook;
    }

    /// Gives a notice, unless there was another one just before: one notice stands for all calls that wait for the same servers.
    pub(super) fn notify(&self, waiting: impl FnOnce(&[String]) -> Waiting) {
        let now = Instant::now();
        let hook = {
            let mut notices = self.shared.waiting.lock();
            if notices.last.is_some_and(|last| now - last < NOTICE_SPACING) {
                return;
            }
            notices.last = Some(now);
            Arc::clone(&notices.hook)
        };
        hook(&waiting(&self.shared.urls));
    }

    /// Returns the settings of the client.
    pub(crate) fn config(&self) -> &Arc<Config> {
        &self.shared.config
    }

    /// Returns the URLs of the servers, the preferred one first.
    pub(super) fn urls(&self) -> &[String] {
        &self.shared.urls
    }

    /// Returns the number of addresses of all servers. The host of a server that was never used counts as one address.
    pub(crate) fn targets(&self) -> usize {
        self.shared.state.lock().counts.iter().sum()
    }

    /// Opens a connection to the server in use, at the first of its addresses that accepts it. Also returns the target, for
    /// [`skip`](Self::skip).
    pub(crate) async fn connect(&self) -> Result<(Transport, Target), Error> {
        let (server, mut addresses) = {
            let state = self.shared.state.lock();
            let mut addresses = state.addresses.clone();
            addresses.rotate_left(state.address);
            (state.server, addresses)
        };
        let opened = dial(&self.shared.urls[server], &mut addresses, &self.shared.config).await;
        let address = opened.as_ref().map_or(None, |(_, address)| *address);
        let target = Target { server, address };
        {
            let mut state = self.shared.state.lock();
            state.counts[server] = addresses.len().max(1);
            if state.server == server {
                if state.addresses.is_empty() {
                    state.addresses = addresses;
                }
                let used = state.addresses.iter().position(|known| Some(*known) == address);
                state.address = used.unwrap_or(state.address);
            }
        }
        match opened {
            Ok((transport, _)) => {
                self.connected();
                Ok((transport, target))
            }
            Err(error) => {
                self.leave(&mut self.shared.state.lock(), server);
                Err(error)
            }
        }
    }

    /// As [`connect`](Self::connect), within `limit`. After it, the next server is in use.
    ///
    /// # Errors
    /// As [`connect`](Self::connect); [`Error::Lost`] after `limit`.
    pub(crate) async fn connect_within(&self, limit: Duration) -> Result<(Transport, Target), Error> {
        let server = self.shared.state.lock().server;
        let connected = tokio::time::timeout(limit, self.connect()).await;
        connected.unwrap_or_else(|_| {
            self.leave(&mut self.shared.state.lock(), server);
            Err(Error::silent(&self.shared.urls[server], limit))
        })
    }

    /// Connects to a server that is not one of the URLs, at the first of its addresses that accepts a connection.
    pub(crate) async fn dial(&self, url: &str) -> Result<Transport, Error> {
        let (transport, _) = dial(url, &mut Vec::new(), &self.shared.config).await?;
        Ok(transport)
    }

    /// Returns whether the client may connect to `location`; see [`Trust::admits`].
    pub(super) fn admits(&self, location: &str) -> Result<(), &'static str> {
        self.shared.trust.admits(location)
    }

    /// Replaces `target` by the next address of its host or, after the last one, by the next server. Has no effect if it is no
    /// longer in use.
    pub(crate) fn skip(&self, target: Target) {
        let mut state = self.shared.state.lock();
        // Another lane may have replaced it before.
        if state.target() != target {
            return;
        }
        match state.address + 1 < state.addresses.len() {
            true => state.address += 1,
            false => self.leave(&mut state, target.server),
        }
    }

    /// Replaces `server` by the next one, unless it is no longer in use.
    fn leave(&self, state: &mut State, server: usize) {
        if state.server != server {
            return;
        }
        state.is_returned = false;
        let next = (server + 1) % self.shared.urls.len();
        state.select(next);
        if server == 0 && next != 0 {
            state.failback.left(Instant::now(), self.shared.config.failback_interval);
        } else if next == 0 {
            // The other servers have failed.
            state.failback.due = None;
        }
    }

    /// Returns true if `target` is another server than the preferred one, and a probe has found the preferred one healthy again.
    pub(crate) fn has_returned_from(&self, target: Target) -> bool {
        target.server != 0 && self.shared.state.lock().is_returned
    }

    /// Probes the preferred server in a task of its own, if another one is in use and a probe is due. If it is healthy, it is in
    /// use again.
    pub(crate) fn probe_preferred(&self) {
        let now = Instant::now();
        {
            let mut state = self.shared.state.lock();
            if state.failback.due.is_none_or(|due| now < due) {
                return;
            }
            state.failback.due = now.checked_add(self.shared.config.failback_interval);
        }
        let servers = self.clone();
        tokio::spawn(async move {
            let limit = servers.shared.config.connect_timeout;
            match tokio::time::timeout(limit, servers.is_preferred_healthy()).await {
                Ok(Ok(())) => servers.return_to_preferred(),
                Ok(Err(error)) => tracing::debug!(%error, "the preferred server is not healthy"),
                Err(_) => tracing::debug!("the preferred server did not answer a probe"),
            }
        });
    }

    async fn is_preferred_healthy(&self) -> Result<(), Error> {
        let transport = self.dial(&self.shared.urls[0]).await?;
        transport.check_health().await
    }

    fn return_to_preferred(&self) {
        let mut state = self.shared.state.lock();
        if state.server != 0 {
            tracing::info!(url = self.shared.urls[0], "returning to the preferred server");
            state.select(0);
            state.is_returned = true;
            state.failback.returned(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(urls: [&str; 3]) -> Servers {
        Servers::new(&urls.map(str::to_owned), Config::default()).unwrap()
    }

    fn target(servers: &Servers) -> Target {
        servers.shared.state.lock().target()
    }

    #[test]
    fn each_address_of_a_host_is_used_before_the_next_server() {
        let servers = servers(["grpc://a", "grpc://b", "grpc://c"]);
        let addresses: Vec<SocketAddr> =
            ["10.0.0.1:1", "10.0.0.2:1"].map(|text| text.parse().unwrap()).into();
        servers.shared.state.lock().addresses = addresses.clone();
        let at = |server, address| Target { server, address };
        let mut used = Vec::new();
        for _ in 0..4 {
            let target = target(&servers);
            used.push(target);
            servers.skip(target);
            // Another lane has failed with the same target.
            servers.skip(target);
        }
        let expected = [at(0, Some(addresses[0])), at(0, Some(addresses[1])), at(1, None), at(2, None)];
        assert_eq!(used, expected);
        assert_eq!(target(&servers), at(0, None), "the name is resolved again");
    }

    #[tokio::test]
    async fn an_address_that_refuses_connections_is_replaced_by_the_next_one_of_its_host() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        // The address refuses connections, because no socket listens at it.
        let refusing = tokio::net::TcpSocket::new_v4().unwrap();
        refusing.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let addresses = vec![refusing.local_addr().unwrap(), listener.local_addr().unwrap()];
        let servers = servers(["grpc://a", "grpc://b", "grpc://c"]);
        servers.shared.state.lock().addresses = addresses.clone();
        let (_, used) = servers.connect().await.unwrap();
        assert_eq!(used, Target { server: 0, address: Some(addresses[1]) });
        assert_eq!(target(&servers), used, "later connections begin with this address");
        assert_eq!(servers.targets(), 4);
    }
}
