//! The drain state of a stopping server.

use std::pin::pin;

use tokio_util::sync::CancellationToken;

use crate::Error;

/// Drain state of the server: calls may be rejected, and running streams may be ended. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Drain {
    draining: CancellationToken,
    interrupted: CancellationToken,
}

impl Drain {
    /// Rejects all calls from now on. Running streams continue.
    pub(crate) fn drain(&self) {
        self.draining.cancel();
    }

    /// Ends running streams with `UNAVAILABLE` instead of their next batch.
    pub(crate) fn interrupt(&self) {
        self.interrupted.cancel();
    }

    /// True if calls are rejected.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Waits for [`drain`](Self::drain).
    pub(crate) async fn drained(&self) {
        self.draining.cancelled().await;
    }

    /// Waits for [`interrupt`](Self::interrupt).
    pub(crate) async fn interrupted(&self) {
        self.interrupted.cancelled().await;
    }

    /// Runs `work` unless the server starts to drain first.
    ///
    /// # Errors
    /// [`stopping`] if the server drains.
    pub(crate) async fn unless_drained<T>(&self, work: impl Future<Output = T>) -> Result<T, Error> {
        let (work, drained) = (pin!(work), pin!(self.drained()));
        tokio::select! {
            biased;
            () = drained => Err(stopping()),
            done = work => Ok(done),
        }
    }
}

/// The error of a call that the stopping server rejects or ends.
pub(crate) fn stopping() -> Error {
    Error::unavailable("the server is stopping; retry on another server")
}
