//! The stream of batches of one rank and lane.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use forebay_proto::v1::BatchMetadata;
use forebay_stall::{Lane, Moments, Stage};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use crate::{
    Config, Error, Job, Pool, Submitted, WireBatch, activity::Seen, cpu::Flow, producer::Producer,
    space::Share, window::Windows,
};

/// Stream of batches of one rank and lane, prefetched up to a number of bytes.
///
/// Dropping it cancels its work. A stalled consumer occupies only the memory of its finished batches; its windows are
/// released after a timeout.
pub struct Batches {
    remaining: u64,
    made: mpsc::UnboundedReceiver<Result<Making, Error>>,
    /// The batch that [`Self::next_made`] waits for. Kept here so that waiting is cancel-safe.
    next: Option<Making>,
    producer: Option<AbortOnDropHandle<()>>,
}

/// Job, rank and lane of a stream, with its accounting.
#[derive(Clone)]
pub(crate) struct Stream {
    pub(crate) job: Arc<Job>,
    pub(crate) rank: u32,
    pub(crate) lane: u32,
    /// Stall accounting of the stream.
    pub(crate) watch: Lane,
    /// Work done for the current batch while it waited for its windows.
    pub(crate) seen: Arc<Seen>,
    /// Fair-queue flow of gather work.
    pub(crate) gathering: Flow,
}

/// A batch in progress, and its share of the bytes that may be ready.
pub(crate) struct Making {
    /// Metadata without row count, hash and group offsets.
    pub(crate) metadata: BatchMetadata,
    pub(crate) batch: Submitted<Gathered>,
    /// Start of the batch, time spent waiting for its windows, and work done during that wait.
    pub(crate) begun: Instant,
    pub(crate) windows: Duration,
    pub(crate) seen: Vec<(Stage, Instant, Instant)>,
    pub(crate) _share: Arc<Share>,
}

/// A gathered batch.
pub(crate) struct Gathered {
    pub(crate) batch: WireBatch,
    pub(crate) label: Option<Moments>,
    pub(crate) begun: Instant,
    pub(crate) ended: Instant,
}

/// A finished batch with its timings.
#[derive(Debug, Clone, PartialEq)]
pub struct Made {
    /// Metadata of the batch.
    pub metadata: BatchMetadata,
    /// The batch.
    pub batch: WireBatch,
    /// Statistics of the labels of a sample of rows, if the job names a label and delivers its column.
    pub label: Option<Moments>,
    /// Time at which the lookup of its windows began.
    pub begun: Instant,
    /// Time spent waiting for the windows since `begun`.
    pub windows: Duration,
    /// Work done during that wait, as one span per stage. A span starts at the later of the first operation and the
    /// start of the wait, and ends with the last operation. Empty for streams that are not
    /// [watched](crate::Loader::watched_batches).
    pub seen: Vec<(Stage, Instant, Instant)>,
    /// Start and end of gathering.
    pub gathered: (Instant, Instant),
}

impl Batches {
    pub(crate) fn start(stream: Stream, windows: &Arc<Windows>, pool: Pool, config: Config) -> Self {
        // The channel is unbounded; the byte shares of its batches bound it.
        let (sender, made) = mpsc::unbounded_channel();
        let remaining = stream.job.batches(stream.lane);
        let producer = Producer::new(stream, windows, pool, config, sender);
        let producer = AbortOnDropHandle::new(tokio::spawn(producer.run()));
        Self { remaining, made, next: None, producer: Some(producer) }
    }

    /// Number of batches that have not been taken yet.
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// Returns the next batch, or `None` after the last one. Cancel-safe. After an error the stream ends.
    pub async fn next(&mut self) -> Option<Result<(BatchMetadata, WireBatch), Error>> {
        Some(self.next_made().await?.map(|made| (made.metadata, made.batch)))
    }

    /// Returns the next batch with its timings, like [`Self::next`]. Cancel-safe.
    pub async fn next_made(&mut self) -> Option<Result<Made, Error>> {
        if self.remaining == 0 {
            return None;
        }
        let batch = self.wait().await;
        self.next = None;
        self.remaining = if batch.is_ok() { self.remaining - 1 } else { 0 };
        if self.remaining == 0 {
            self.producer = None;
        }
        Some(batch)
    }

    async fn wait(&mut self) -> Result<Made, Error> {
        if self.next.is_none() {
            let early = || Error::Internal("the stream's producer stopped before its last batch".into());
            self.next = Some(self.made.recv().await.ok_or_else(early)??);
        }
        let making = self.next.as_mut().expect("it was there or has just been set");
        let Gathered { batch, label, begun, ended } = (&mut making.batch).await?;
        metrics::counter!("forebay_batches_total").increment(1);
        metrics::counter!("forebay_batch_rows_total").increment(batch.rows);
        metrics::counter!("forebay_batch_bytes_total").increment(batch.body.len() as u64);
        let metadata = BatchMetadata {
            rows: batch.rows,
            content_hash: batch.hash,
            group_offsets: batch.group_offsets.clone(),
            ..making.metadata.clone()
        };
        let (windows, seen, gathered) = (making.windows, std::mem::take(&mut making.seen), (begun, ended));
        Ok(Made { metadata, batch, label, begun: making.begun, windows, seen, gathered })
    }
}
