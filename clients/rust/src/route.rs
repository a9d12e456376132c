//! The way to a server: connections, choice of a server, retries.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use forebay_proto::v1::Command;
use tokio::sync::mpsc;

use crate::{Config, Error, memory::Slabs, wire::Response};

mod retry;
mod servers;
mod tls;
mod transport;

pub(crate) use retry::Attempts;
pub(crate) use servers::Servers;
pub(crate) use transport::Transport;

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
    /// Index of the server, for [`Route::failed`].
    pub(crate) server: usize,
}

impl Route {
    /// Returns the settings of the client.
    pub(crate) fn config(&self) -> &Arc<Config> {
        match self {
            Self::One(transport) => transport.config(),
            Self::Any(servers) => servers.config(),
        }
    }

    /// Opens a DoExchange stream with one attempt; see [`Transport::exchange`].
    pub(crate) async fn open(
        &self,
        command: &Command,
        capacity: usize,
        slabs: &Slabs,
    ) -> Result<OpenedExchange, Error> {
        let (transport, server) = match self {
            Self::One(transport) => (transport.clone(), 0),
            Self::Any(servers) => servers.connect().await?,
        };
        let opened = transport.exchange(command, capacity, slabs.clone()).await;
        let (outgoing, response) = opened.inspect_err(|error| self.failed(server, error))?;
        Ok(OpenedExchange { outgoing, response, server })
    }

    /// Records that an exchange with `server` failed. After a transient error, the next attempt uses another server.
    pub(crate) fn failed(&self, server: usize, error: &Error) {
        if let Self::Any(servers) = self
            && error.is_transient()
        {
            servers.skip(server);
        }
    }

    /// Returns true if transient errors are retried.
    pub(crate) fn retries(&self) -> bool {
        matches!(self, Self::Any(_))
    }

    /// Starts the attempts of a call with a time limit of `timeout`.
    pub(crate) fn attempts(&self, timeout: Duration) -> Attempts {
        let servers = match self {
            Self::One(_) => 1,
            Self::Any(servers) => servers.len(),
        };
        Attempts::new(servers, timeout)
    }

    /// Runs `attempt` within `timeout`, repeatedly if the route retries.
    pub(crate) async fn run<T, F: Future<Output = Result<T, Error>>>(
        &self,
        timeout: Duration,
        attempt: impl Fn() -> F,
    ) -> Result<T, Error> {
        let attempts = self.attempts(timeout);
        if self.retries() { attempts.run(attempt).await } else { attempts.run_once(attempt()).await }
    }
}
