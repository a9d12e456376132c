//! The listening sockets, their TLS certificates and the tokens of callers.

use std::sync::Arc;

use anyhow::Context;
use tokio::{runtime::Handle, task::JoinSet};

use crate::{
    Address, Settings,
    auth::{Acceptor, Authenticator, HolderKey, Tls},
    connections::{self, Connections},
    events::{Event, Events, Kind},
};

/// Bound sockets and the credentials of both sides.
pub(crate) struct Listeners {
    pub(crate) grpc: Connections,
    pub(crate) http: Connections,
    pub(crate) authenticator: Authenticator,
    /// Certificates, if connections are encrypted.
    pub(crate) tls: Option<Arc<Tls>>,
}

impl Listeners {
    /// Reads the credentials and binds the ports. The HTTP port belongs to `http_runtime`, which must serve it. `holder_key` is that of a
    /// server with `open_datasets`.
    ///
    /// # Errors
    /// If a file is malformed or a port is taken.
    pub(crate) async fn bind(
        settings: &Settings,
        holder_key: Option<HolderKey>,
        http_runtime: &Handle,
    ) -> anyhow::Result<Self> {
        let authenticator =
            Authenticator::new(settings.tokens.as_deref(), settings.insecure).context("--tokens")?;
        let authenticator = match holder_key {
            Some(key) => authenticator.for_owner(rustix::process::geteuid().as_raw(), key),
            None => authenticator,
        };
        let tls = settings.tls.as_ref().map(Tls::open).transpose().context("TLS")?.map(Arc::new);
        let listen = async |flag: &str, address: &Address, runtime: &Handle| {
            let acceptor = tls.clone().map(Acceptor::new);
            let binding = address.clone();
            let bound = runtime.spawn(async move { binding.bind().await }).await?;
            let bound = bound.with_context(|| format!("{flag} {address}"))?;
            let limits = connections::Config::new(&settings.limits, settings.tokens.is_some());
            anyhow::Ok(Connections::new(bound, limits, acceptor)?)
        };
        let grpc = listen("--grpc", &settings.grpc, &Handle::current()).await?;
        let http = listen("--http", &settings.http, http_runtime).await?;
        Ok(Self { grpc, http, authenticator, tls })
    }

    /// Starts to reload the credentials when their files change.
    pub(crate) fn watch_credentials(&self, settings: &Settings, events: &Events, tasks: &mut JoinSet<()>) {
        let interval = settings.credentials_reload_interval;
        let failed = |events: Events| {
            move |error: &anyhow::Error| {
                let message = format!("credential reload failed; keeping previous: {error:#}");
                events.note(Event::new(Kind::ReloadFailed, &message));
            }
        };
        if let Some(tls) = &self.tls {
            tasks.spawn(Arc::clone(tls).watch(interval, failed(events.clone())));
        }
        if let Some(tokens) = self.authenticator.tokens() {
            tasks.spawn(tokens.watch(interval, failed(events.clone())));
        }
    }
}
