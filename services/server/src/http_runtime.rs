//! The runtime of the HTTP port. Probes are answered there, so that they are answered whatever the I/O threads do.

use std::time::Duration;

use anyhow::Context;
use axum::{
    extract::{Request, State},
    http::StatusCode,
    middleware::Next,
    response::{IntoResponse, Response},
};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio_util::task::AbortOnDropHandle;

/// Time after which an unused thread for blocking calls is stopped. The runtime needs none after its port is bound.
const KEEP_ALIVE: Duration = Duration::from_secs(1);

/// A runtime with one thread, for the connections of the HTTP port. Dropping it ends them.
pub(crate) struct HttpRuntime(Option<Runtime>);

impl HttpRuntime {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system can't start it.
    pub(crate) fn start() -> anyhow::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(1)
            .thread_keep_alive(KEEP_ALIVE)
            .thread_name("forebay-http")
            .enable_all()
            .build();
        Ok(Self(Some(runtime.context("can't start the thread of the HTTP port")?)))
    }

    /// Handle of the runtime.
    pub(crate) fn handle(&self) -> &Handle {
        self.0.as_ref().expect("the runtime is there until it is dropped").handle()
    }
}

impl Drop for HttpRuntime {
    fn drop(&mut self) {
        // The server may be dropped by a task of another runtime, which must not wait.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Handles a request on the I/O threads: it may take long.
pub(crate) async fn on_io_threads(
    State(io_threads): State<Handle>,
    request: Request,
    next: Next,
) -> Response {
    match AbortOnDropHandle::new(io_threads.spawn(next.run(request))).await {
        Ok(response) => response,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
        },
    }
}
