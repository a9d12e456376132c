//! The stream of batches of one rank and lane.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use forebay_proto::v1::BatchMetadata;
use forebay_stall::{Moments, Stage};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::{
    budget::{BatchCharge, Pace, PrefetchBudget, StreamBudget},
    pending::{GatheredBatch, PendingBatch},
    producer::Producer,
    wire::WireBatch,
};
use crate::{
    Config, Error, Pool,
    stream::Stream,
    window::{progress::WindowWait, windows::Windows},
};

/// Stream of batches of one rank and lane, prefetched up to a number of bytes.
///
/// Dropping it cancels its work. A stalled consumer occupies only the memory of its finished batches; its windows are
/// released after a timeout.
pub struct Batches {
    remaining: u64,
    pending: mpsc::UnboundedReceiver<Result<PendingBatch, Error>>,
    /// The batch that [`Self::next_finished`] waits for. Kept here so that waiting is cancel-safe.
    next: Option<PendingBatch>,
    producer: Option<AbortOnDropHandle<()>>,
    budget: Arc<StreamBudget>,
    waits: WindowWait,
}

/// A finished batch with its timings.
#[derive(Debug, Clone)]
pub struct FinishedBatch {
    /// Metadata of the batch.
    pub metadata: BatchMetadata,
    /// The batch.
    pub batch: WireBatch,
    /// Statistics of the labels of a sample of rows, if the job names a label and delivers its column.
    pub label: Option<Moments>,
    /// Time at which the lookup of its windows began.
    pub begun: Instant,
    /// Time spent waiting for the windows since `begun`.
    pub window_wait: Duration,
    /// Work done during that wait, as one span per stage. A span starts at the later of the first operation and the
    /// start of the wait, and ends with the last operation. Empty for streams that are not
    /// [watched](crate::Loader::watched_batches).
    pub seen: Vec<(Stage, Instant, Instant)>,
    /// Start and end of gathering.
    pub gathered: (Instant, Instant),
    /// The batch counts for the prefetch budget of the stream until this is dropped.
    pub charge: BatchCharge,
}

impl Batches {
    pub(crate) fn start(
        stream: Stream,
        windows: &Arc<Windows>,
        budget: &PrefetchBudget,
        pool: Pool,
        config: Config,
    ) -> Self {
        // The channel is unbounded; the reservations of its batches bound it.
        let (sender, pending) = mpsc::unbounded_channel();
        let remaining = stream.job.batches(stream.lane);
        let budget = budget.enter(stream.gather_flow.tenant());
        let waits = stream.waits.clone();
        let producer = Producer::new(stream, windows, Arc::clone(&budget), pool, config, sender);
        let producer = AbortOnDropHandle::new(tokio::spawn(producer.run()));
        Self { remaining, pending, next: None, producer: Some(producer), budget, waits }
    }

    /// Number of batches that have not been taken yet.
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// Windows for which the stream waits.
    pub fn waits(&self) -> &WindowWait {
        &self.waits
    }

    /// Memory that the stream holds while its consumer pauses.
    pub fn pace(&self) -> Pace {
        self.budget.pace()
    }

    /// Returns the next batch, or `None` after the last one. Cancel-safe. After an error the stream ends.
    pub async fn next(&mut self) -> Option<Result<(BatchMetadata, WireBatch), Error>> {
        Some(self.next_finished().await?.map(|pending| (pending.metadata, pending.batch)))
    }

    /// Returns the next batch with its timings, like [`Self::next`]. Cancel-safe.
    pub async fn next_finished(&mut self) -> Option<Result<FinishedBatch, Error>> {
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

    async fn wait(&mut self) -> Result<FinishedBatch, Error> {
        let _waits = self.budget.consumer().waits();
        if self.next.is_none() {
            let early = || Error::Internal("the producer of the stream stopped before its last batch".into());
            self.next = Some(self.pending.recv().await.ok_or_else(early)??);
        }
        let next = self.next.as_mut().expect("it was there or has just been set");
        let GatheredBatch { batch, label, begun, ended } = (&mut next.batch).await?;
        metrics::counter!("forebay_batches_total").increment(1);
        metrics::counter!("forebay_batch_rows_total").increment(batch.rows);
        metrics::counter!("forebay_batch_bytes_total").increment(batch.body.len() as u64);
        let metadata = BatchMetadata {
            rows: batch.rows,
            content_hash: batch.hash,
            group_offsets: batch.group_offsets.clone(),
            ..next.metadata.clone()
        };
        let (window_wait, seen, gathered) =
            (next.window_wait, std::mem::take(&mut next.seen), (begun, ended));
        let charge = BatchCharge::of_taken(&next.reservation);
        Ok(FinishedBatch { metadata, batch, label, begun: next.begun, window_wait, seen, gathered, charge })
    }
}
