//! The servers of a cluster.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use super::transport::Transport;
use crate::{Config, Error};

/// The servers of a cluster, and the one in use. Cheap to clone. Clones share the server in use, so that the ranks and lanes of
/// a process read the same windows from the memory of one server.
#[derive(Clone)]
pub(crate) struct Servers {
    shared: Arc<Shared>,
}

struct Shared {
    urls: Vec<String>,
    config: Arc<Config>,
    current: AtomicUsize,
}

impl Servers {
    /// Creates the cluster of the servers at `urls`, the preferred one first. Does not connect.
    ///
    /// # Errors
    /// [`Error::Request`] if `urls` is empty.
    pub(crate) fn new(urls: Vec<String>, config: Config) -> Result<Self, Error> {
        if urls.is_empty() {
            return Err(Error::Request("urls: is empty, expected at least one server URL".into()));
        }
        let shared = Shared { urls, config: Arc::new(config), current: AtomicUsize::new(0) };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Returns the settings of the client.
    pub(crate) fn config(&self) -> &Arc<Config> {
        &self.shared.config
    }

    /// Returns the number of servers.
    pub(crate) fn len(&self) -> usize {
        self.shared.urls.len()
    }

    /// Opens a connection to the server in use. Also returns the index of the server, for [`skip`](Self::skip).
    pub(crate) async fn connect(&self) -> Result<(Transport, usize), Error> {
        let server = self.shared.current.load(Ordering::Relaxed);
        let opened = Transport::open(&self.shared.urls[server], Arc::clone(&self.shared.config)).await;
        Ok((opened.inspect_err(|_| self.skip(server))?, server))
    }

    /// Replaces `server` by the next one, unless it is no longer in use.
    pub(crate) fn skip(&self, server: usize) {
        let next = (server + 1) % self.len();
        // Fails if another lane has replaced the server before.
        let _ = self.shared.current.compare_exchange(server, next, Ordering::Relaxed, Ordering::Relaxed);
    }
}
