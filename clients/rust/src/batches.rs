//! Batches received ahead of their consumer.

use std::sync::Arc;

use arrow_schema::SchemaRef;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::task::AbortOnDropHandle;

use crate::{Batch, Config, DeviceBatch, Error};

/// Where batches come from.
pub(crate) trait Source: Send + 'static {
    /// Where they are then.
    type Item: Item;

    /// The next batch; `None` after the last one. Nothing is asked for after that, or after an error.
    fn next(&mut self) -> impl Future<Output = Result<Option<Self::Item>, Error>> + Send;
}

/// A batch, on the host or on a device.
pub(crate) trait Item: Send + 'static {
    fn rows(&self) -> u64;

    /// Bytes of its body.
    fn len_bytes(&self) -> u64;
}

impl Item for Batch {
    fn rows(&self) -> u64 {
        self.rows()
    }

    fn len_bytes(&self) -> u64 {
        self.body().len() as u64
    }
}

impl Item for DeviceBatch {
    fn rows(&self) -> u64 {
        self.rows()
    }

    fn len_bytes(&self) -> u64 {
        self.len_bytes()
    }
}

/// The batches of one stream, received ahead of their consumer. Dropping it ends the stream.
pub struct Batches<B = Batch> {
    schema: SchemaRef,
    received: mpsc::Receiver<Result<Received<B>, Error>>,
    ended: bool,
    _receiver: AbortOnDropHandle<()>,
}

/// A batch, and its share of the bytes that may wait.
struct Received<B> {
    batch: B,
    _share: OwnedSemaphorePermit,
}

#[allow(private_bounds)] // Batches of other kinds there are not.
impl<B: Item> Batches<B> {
    /// Receives from `source` in a task of its own, as far ahead as `config` allows.
    pub(crate) fn receive(source: impl Source<Item = B>, schema: SchemaRef, config: &Config) -> Self {
        let ahead =
            usize::try_from(config.prefetch_batches).unwrap_or(usize::MAX).clamp(1, Semaphore::MAX_PERMITS);
        let (sender, received) = mpsc::channel(ahead);
        let receiver = AbortOnDropHandle::new(tokio::spawn(receive(source, sender, config.prefetch_bytes)));
        Self { schema, received, ended: false, _receiver: receiver }
    }

    /// The schema of every batch.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The next batch; `None` after the last one. Cancel-safe. After an error the stream is over.
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
    let space = Arc::new(Semaphore::new(capacity as usize));
    // Its place comes first: there is never one more than there are places for.
    while let Ok(place) = sender.reserve().await {
        let batch = match source.next().await {
            Ok(Some(batch)) => batch,
            Ok(None) => return,
            Err(error) => {
                place.send(Err(error));
                return;
            }
        };
        let share = kibibytes(batch.len_bytes()).min(capacity);
        // Closed only if this task is gone.
        let Ok(share) = Arc::clone(&space).acquire_many_owned(share).await else { return };
        place.send(Ok(Received { batch, _share: share }));
    }
}

fn kibibytes(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX >> 3).max(1)
}
