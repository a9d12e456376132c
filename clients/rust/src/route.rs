//! Where exchanges are opened.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use forebay_proto::v1::Command;
use tokio::sync::mpsc;

use crate::{Config, Connection, Error, client::Servers, lane::Attempts, messages::Messages, slabs::Slabs};

/// On one connection, or with whichever server answers.
pub(crate) enum Route {
    /// What fails is told at once.
    One(Connection),
    /// What may succeed a little later is tried again, until the deadline.
    Any(Servers),
}

/// An exchange that was opened.
pub(crate) struct Opened {
    /// Takes messages as gRPC frames them.
    pub(crate) outgoing: mpsc::Sender<Bytes>,
    pub(crate) messages: Messages,
    /// To be left when it goes away.
    pub(crate) server: usize,
}

impl Route {
    pub(crate) fn config(&self) -> &Arc<Config> {
        match self {
            Self::One(connection) => connection.config(),
            Self::Any(servers) => servers.config(),
        }
    }

    /// One attempt to open an exchange; see [`Connection::exchange`].
    pub(crate) async fn open(
        &self,
        command: &Command,
        capacity: usize,
        slabs: &Slabs,
    ) -> Result<Opened, Error> {
        let (connection, server) = match self {
            Self::One(connection) => (connection.clone(), 0),
            Self::Any(servers) => servers.connection().await?,
        };
        let opened = connection.exchange(command, capacity, slabs.clone()).await;
        let (outgoing, messages) = opened.inspect_err(|error| self.failed(server, error))?;
        Ok(Opened { outgoing, messages, server })
    }

    /// Notes how an exchange with `server` failed: when it is away, another one is asked from now on.
    pub(crate) fn failed(&self, server: usize, error: &Error) {
        if let Self::Any(servers) = self
            && error.is_transient()
        {
            servers.leave(server);
        }
    }

    /// Whether there is another way than the one that has failed.
    pub(crate) fn goes_on(&self) -> bool {
        matches!(self, Self::Any(_))
    }

    /// Attempts until `deadline` is over.
    pub(crate) fn attempts(&self, deadline: Duration) -> Attempts {
        let servers = match self {
            Self::One(_) => 1,
            Self::Any(servers) => servers.len(),
        };
        Attempts::new(servers, deadline)
    }

    /// Makes `attempt` until `deadline` is over, again and again where there is another way.
    pub(crate) async fn run<T, F: Future<Output = Result<T, Error>>>(
        &self,
        deadline: Duration,
        attempt: impl Fn() -> F,
    ) -> Result<T, Error> {
        let attempts = self.attempts(deadline);
        if self.goes_on() {
            return attempts.run(attempt).await;
        }
        let done = tokio::time::timeout_at(attempts.until(), attempt()).await;
        done.unwrap_or_else(|_| Err(attempts.gave_up()))
    }
}
