//! Batches received ahead of their consumer.

use std::sync::Arc;

use arrow_schema::SchemaRef;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::task::AbortOnDropHandle;

use crate::{Batch, Config, Error};

/// Where batches come from.
pub(crate) trait Source: Send + 'static {
    /// The next batch; `None` after the last one. Nothing is asked for after that, or after an error.
    fn next(&mut self) -> impl Future<Output = Result<Option<Batch>, Error>> + Send;
}

/// The batches of one stream, received ahead of their consumer. Dropping it ends the stream.
pub struct Batches {
    schema: SchemaRef,
    received: mpsc::Receiver<Result<Received, Error>>,
    ended: bool,
    _receiver: AbortOnDropHandle<()>,
}

/// A batch, and its share of the bytes that may wait.
struct Received {
    batch: Batch,
    _share: OwnedSemaphorePermit,
}

impl Batches {
    /// Receives from `source` in a task of its own, as far ahead as `config` allows.
    pub(crate) fn receive(source: impl Source, schema: SchemaRef, config: &Config) -> Self {
        // One more is in the hands of whoever receives.
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
    pub async fn next(&mut self) -> Option<Result<Batch, Error>> {
        if self.ended {
            return None;
        }
        let next = self.received.recv().await.map(|received| received.map(|received| received.batch));
        self.ended = !matches!(next, Some(Ok(_)));
        next
    }
}

async fn receive(
    mut source: impl Source,
    sender: mpsc::Sender<Result<Received, Error>>,
    prefetch_bytes: u64,
) {
    let capacity = kibibytes(prefetch_bytes);
    let space = Arc::new(Semaphore::new(capacity as usize));
    loop {
        let batch = match source.next().await {
            Ok(Some(batch)) => batch,
            Ok(None) => return,
            Err(error) => {
                drop(sender.send(Err(error)).await);
                return;
            }
        };
        let share = kibibytes(batch.body().len() as u64).min(capacity);
        // Closed only if this task is gone.
        let Ok(share) = Arc::clone(&space).acquire_many_owned(share).await else { return };
        if sender.send(Ok(Received { batch, _share: share })).await.is_err() {
            return;
        }
    }
}

fn kibibytes(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX >> 3).max(1)
}
