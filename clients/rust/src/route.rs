//! The way to a server: connections, choice of a server, retries.
//!
//! ```text
//! placement: the server for the streams of a rank. candidates: the choice; trust: the allowed locations; replan: the time of a new plan
//!     |
//! servers: the URLs of the client, for calls without locations. failback: the time of the return to the first one
//!     |
//! dial: the addresses of a host --> transport: one gRPC connection. grpc_channel, peer: what else than a gRPC server may answer
//! retry: the attempts of a call. notices, waiting: reports to the user while they fail
//! ```

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use forebay_proto::v1::Command;
use tokio::sync::mpsc;

use crate::{Config, Error, memory::Slabs, wire::Response};

mod address;
mod candidates;
mod dial;
mod failback;
mod grpc_channel;
mod host;
mod notices;
mod peer;
mod placement;
mod replan;
mod retry;
mod servers;
mod tls;
mod transport;
mod trust;
mod waiting;

pub(crate) use dial::dial;
pub(crate) use notices::FIRST_NOTICE;
pub(crate) use placement::{Origin, Placement};
pub(crate) use retry::Attempts;
pub(crate) use servers::{Servers, Target};
pub(crate) use transport::{StreamSender, Transport};
pub use waiting::Waiting;

/// The servers that a call may use.
pub(crate) enum Route {
    /// One connection. Errors are returned without a retry.
    One(Transport),
    /// Any server of a cluster. Transient errors are retried until the deadline.
    Any(Servers),
}

/// An open DoExchange stream.
pub(crate) struct OpenedExchange {
    /// Sends framed messages.
    pub(crate) outgoing: mpsc::Sender<Bytes>,
    /// Messages of the server.
    pub(crate) response: Response,
    /// Target of the connection, for [`Route::failed`]; `None` without a choice of servers.
    pub(crate) target: Option<Target>,
    /// Maximum size of a message that the server receives, in bytes; `None` if it does not say.
    pub(crate) max_message_bytes: Option<u64>,
}

/// Shortest time limit for opening an exchange. An exchange that one request opens serves others, too, whose time may be longer.
const MIN_OPEN_TIME: Duration = Duration::from_secs(1);

impl Route {
    /// Returns the settings of the client.
    pub(crate) fn config(&self) -> &Arc<Config> {
        match self {
            Self::One(transport) => transport.config(),
            Self::Any(servers) => servers.config(),
        }
    }

    /// Opens a DoExchange stream with one attempt; see [`Transport::exchange`]. The attempt fails if the server sends nothing for
    /// `limit`, which is at least a second, by default for [`Config::attempt_timeout`], and so does the response at first.
    pub(crate) async fn open(
        &self,
        command: &Command,
        capacity: usize,
        slabs: &Slabs,
        limit: Option<Duration>,
    ) -> Result<OpenedExchange, Error> {
        let limit = limit.map_or(self.config().attempt_timeout, |limit| limit.max(MIN_OPEN_TIME));
        let (transport, target) = match self {
            Self::One(transport) => (transport.clone(), None),
            Self::Any(servers) => {
                let (transport, target) = servers.connect_within(limit).await?;
                (transport, Some(target))
            }
        };
        let opened = tokio::time::timeout(limit, transport.exchange(command, capacity, slabs.clone())).await;
        let opened = opened.unwrap_or_else(|_| Err(Error::silent(transport.url(), limit)));
        let (outgoing, mut response, max_message_bytes) =
            opened.inspect_err(|error| self.failed(target, error))?;
        response.limit_silence(Some(limit));
        Ok(OpenedExchange { outgoing, response, target, max_message_bytes })
    }

    /// Records that an exchange with `target` failed. If another target may succeed, the next attempt uses another one.
    pub(crate) fn failed(&self, target: Option<Target>, error: &Error) {
        if let (Self::Any(servers), Some(target)) = (self, target)
            && (error.is_transient() || error.is_limit())
        {
            servers.skip(target);
        }
    }

    /// Returns true if the preferred server is in use again, and `target` belongs to another one. Probes the preferred server if
    /// a probe is due.
    pub(crate) fn has_returned_from(&self, target: Option<Target>) -> bool {
        let (Self::Any(servers), Some(target)) = (self, target) else { return false };
        servers.probe_preferred();
        servers.has_returned_from(target)
    }

    /// Returns true if transient errors are retried.
    pub(crate) fn retries(&self) -> bool {
        matches!(self, Self::Any(_))
    }

    /// Returns the number of addresses of all servers.
    pub(crate) fn targets(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Any(servers) => servers.targets(),
        }
    }

    /// Returns the attempts of a call for `subject` within `timeout`.
    pub(crate) fn attempts(&self, subject: &str, timeout: Duration) -> Attempts {
        match self {
            Self::One(_) => Attempts::new(timeout),
            Self::Any(servers) => Attempts::of(servers, subject, timeout),
        }
    }

    /// Runs `attempt` within `timeout`, repeatedly if the route retries. `attempt` receives the time without data after which it should
    /// ask another server; see [`Attempts::limit`]. `subject` says in notices what the caller waits for.
    pub(crate) async fn run<T, F: Future<Output = Result<T, Error>>>(
        &self,
        subject: &str,
        timeout: Duration,
        attempt: impl Fn(Option<Duration>) -> F,
    ) -> Result<T, Error> {
        let attempts = self.attempts(subject, timeout);
        if !self.retries() {
            return attempts.run_once(attempt(None)).await;
        }
        attempts.run(self.config().attempt_timeout, || self.targets(), attempt).await
    }
}
