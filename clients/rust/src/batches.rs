//! A stream of prefetched batches.

use std::sync::Arc;

use arrow_schema::SchemaRef;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::task::AbortOnDropHandle;

use crate::{Batch, Config, DeviceBatch, Error};

/// A source of batches.
pub(crate) trait Source: Send + 'static {
    /// Type of the batches.
    type Item: Item;

    /// Returns the next batch; `None` after the last one. Not called again after `None` or an error.
    fn next(&mut self) -> impl Future<Output = Result<Option<Self::Item>, Error>> + Send;
}

/// A batch in host or device memory.
pub(crate) trait Item: Send + 'static {
    /// Returns the number of rows, and the length of the body in bytes.
    fn rows_and_bytes(&self) -> (u64, u64);
}

impl Item for Batch {
    fn rows_and_bytes(&self) -> (u64, u64) {
        (self.rows(), self.body().len() as u64)
    }
}

impl Item for DeviceBatch {
    fn rows_and_bytes(&self) -> (u64, u64) {
        (self.rows(), self.len_bytes())
    }
}

/// The batches of one stream, prefetched by a background task. Dropping it ends the stream.
pub struct Batches<B = Batch> {
    schema: SchemaRef,
    received: mpsc::Receiver<Result<Received<B>, Error>>,
    ended: bool,
    _receiver: AbortOnDropHandle<()>,
}

/// A prefetched batch, with its permit of the byte budget.
struct Received<B> {
    batch: B,
    _permit: OwnedSemaphorePermit,
}

#[allow(private_bounds)] // The trait is sealed.
impl<B: Item> Batches<B> {
    /// Spawns a task that prefetches batches of `source` within the limits of `config`.
    pub(crate) fn receive(source: impl Source<Item = B>, schema: SchemaRef, config: &Config) -> Self {
        let capacity =
            usize::try_from(config.prefetch_batches).unwrap_or(usize::MAX).clamp(1, Semaphore::MAX_PERMITS);
        let (sender, received) = mpsc::channel(capacity);
        let receiver = AbortOnDropHandle::new(tokio::spawn(receive(source, sender, config.prefetch_bytes)));
        Self { schema, received, ended: false, _receiver: receiver }
    }

    /// Returns the schema of every batch.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Returns the next batch; `None` after the last one and after an error. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<B, Error>> {
        if self.ended {
            return None;
        }
        let next = self.received.recv().await.map(|received| received.map(|received| received.batch));
        self.ended = !matches!(next, Some(Ok(_)));
        next
    }
}

async fn receive<B: Item>(
    mut source: impl Source<Item = B>,
    sender: mpsc::Sender<Result<Received<B>, Error>>,
    prefetch_bytes: u64,
) {
    let capacity = kibibytes(prefetch_bytes);
    let budget = Arc::new(Semaphore::new(capacity as usize));
    // Reserving a slot before receiving keeps the number of batches within the capacity of the channel.
    while let Ok(slot) = sender.reserve().await {
        let batch = match source.next().await {
            Ok(Some(batch)) => batch,
            Ok(None) => return,
            Err(error) => {
                slot.send(Err(error));
                return;
            }
        };
        // A batch larger than the whole budget is admitted alone.
        let (_, bytes) = batch.rows_and_bytes();
        let size = kibibytes(bytes).min(capacity);
        // The semaphore is never closed.
        let Ok(permit) = Arc::clone(&budget).acquire_many_owned(size).await else { return };
        slot.send(Ok(Received { batch, _permit: permit }));
    }
}

fn kibibytes(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX >> 3).max(1)
}
