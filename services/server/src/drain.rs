//! The drain state of a stopping server.

use std::pin::pin;

use tokio_util::sync::CancellationToken;

use crate::Error;

/// Drain state of the server: it may report that it is not ready, calls may be rejected, and running streams may be ended. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Drain {
    leaving: CancellationToken,
    draining: CancellationToken,
    interrupted: CancellationToken,
}

impl Drain {
    /// Reports from now on that the server is not ready. Calls are still accepted.
    pub(crate) fn leave(&self) {
        self.leaving.cancel();
    }

    /// True after [`leave`](Self::leave).
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.is_cancelled()
    }

    /// Waits for [`leave`](Self::leave).
    pub(crate) async fn left(&self) {
        self.leaving.cancelled().await;
    }

    /// Runs `work` unless [`leave`](Self::leave) is called first.
    pub(crate) async fn unless_left<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        self.leaving.run_until_cancelled(work).await
    }

    /// Rejects all calls from now on. Running streams continue.
    pub(crate) fn drain(&self) {
        self.leave();
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

    /// Runs `work` unless it is still running when the server ends running streams.
    ///
    /// # Errors
    /// [`stopping`] if the server ends streams first.
    pub(crate) async fn unless_interrupted<T>(&self, work: impl Future<Output = T>) -> Result<T, Error> {
        self.interrupted.run_until_cancelled(work).await.ok_or_else(stopping)
    }

    /// Waits for `work`, such as the next message of a client, unless it has to wait while the server drains. A message that was received
    /// before is not lost.
    ///
    /// # Errors
    /// [`stopping`] if the server drains.
    pub(crate) async fn unless_drained<T>(&self, work: impl Future<Output = T>) -> Result<T, Error> {
        let (work, drained) = (pin!(work), pin!(self.drained()));
        tokio::select! {
            biased;
            done = work => Ok(done),
            () = drained => Err(stopping()),
        }
    }
}

/// The error of a call that the stopping server rejects or ends.
pub(crate) fn stopping() -> Error {
    Error::unavailable("the server is stopping; retry on another server")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_draining_server_takes_a_message_that_has_arrived_and_waits_for_no_other() {
        let drain = Drain::default();
        drain.drain();
        assert_eq!(drain.unless_drained(std::future::ready(7)).await, Ok(7));
        assert_eq!(drain.unless_drained(std::future::pending::<()>()).await, Err(stopping()));
    }
}
