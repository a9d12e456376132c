//! Concurrency limit of lookups and DoExchange streams.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::Error;

/// Permits of concurrent lookups and DoExchange streams. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Exchanges {
    permits: Arc<Semaphore>,
    max: u32,
}

impl Exchanges {
    /// Allows `max` lookups and DoExchange streams at a time.
    pub(crate) fn new(max: usize) -> Self {
        let max = u32::try_from(max).unwrap_or(u32::MAX >> 3);
        Self { permits: Arc::new(Semaphore::new(max as usize)), max }
    }

    /// Acquires a permit, which is held until it is dropped.
    ///
    /// # Errors
    /// If `limits.max_streams` are running.
    pub(super) fn enter(&self) -> Result<OwnedSemaphorePermit, Error> {
        Arc::clone(&self.permits).try_acquire_owned().map_err(|_| {
            Error::limit(format!(
                "{} exchanges and lookups are running, which is limits.max_streams",
                self.max
            ))
        })
    }

    /// Waits until all permits are returned.
    pub(crate) async fn none_running(&self) {
        // The semaphore is never closed, so this returns once all permits are available.
        drop(self.permits.acquire_many(self.max).await);
    }
}
