//! Producer of the batches of one stream, in order.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use forebay_cache::Slabs;
use forebay_plan::Cursor;
use forebay_proto::v1::BatchMetadata;
use forebay_stall::Stage;
use futures::FutureExt;
use tokio::{sync::mpsc, time::timeout};

use super::{
    assemble::AssembleOptions,
    budget::{BatchReservation, StreamBudget},
    pending::{GatheredBatch, PendingBatch},
    segments::{BatchRows, RowLimit, Segment, WindowRows},
};
use crate::{
    Config, Error, Job, Pool, Priority, Submitted,
    activity::{Activity, recorded_turns, timed_turns},
    cpu::fair_queue::Urgency,
    stream::Stream,
    window::{orders::Piece, stream_windows::StreamWindows, window_set::SourcePiece, windows::Windows},
};

/// Approximate overhead of a batch in bytes, besides its message.
const MESSAGE_BYTES: u64 = 1024;
/// Interval at which a stream that waits for memory for a batch checks whether another tenant waits for the memory of its windows.
const YIELD_INTERVAL: Duration = Duration::from_millis(50);

/// Starts batches as long as the prefetch budget allows. Several batches are gathered concurrently.
pub(crate) struct Producer {
    stream: Stream,
    activity: Arc<Activity>,
    windows: StreamWindows,
    slabs: Slabs,
    pool: Pool,
    config: Config,
    budget: Arc<StreamBudget>,
    /// Estimated bytes per row, or per group if groups are not packed, computed from footers. In a mixture, the largest
    /// of the datasets' means.
    footer_item_bytes: u64,
    /// Bytes per row or group in the last finished batch of full size; 0 before the first.
    item_bytes: Arc<AtomicU64>,
    sender: mpsc::UnboundedSender<Result<PendingBatch, Error>>,
}

impl Producer {
    pub(crate) fn new(
        stream: Stream,
        windows: &Arc<Windows>,
        budget: Arc<StreamBudget>,
        pool: Pool,
        config: Config,
        sender: mpsc::UnboundedSender<Result<PendingBatch, Error>>,
    ) -> Self {
        let footer_item_bytes = stream.job.parts().map(Job::item_bytes).max().unwrap_or(0);
        let slabs = windows.slabs().clone();
        let activity = Arc::clone(windows.activity());
        let windows = StreamWindows::new(stream.clone(), Arc::clone(windows), pool.clone(), config.clone());
        let item_bytes = Arc::default();
        Self { stream, activity, windows, slabs, pool, config, budget, footer_item_bytes, item_bytes, sender }
    }

    pub(crate) async fn run(mut self) {
        for index in 0..self.stream.job.batches(self.stream.lane) {
            let cursor = self.stream.job.cursor(self.stream.lane, index);
            let batch = self.start(index, cursor).await;
            let failed = batch.is_err();
            if self.sender.send(batch).is_err() || failed {
                return;
            }
        }
    }

    /// Starts one batch once its first windows are held and the prefetch budget admits it.
    ///
    /// The stream first waits for the windows, and only then reserves memory for the batch. In the other order, streams that wait for
    /// windows could hold all memory for batches, and streams that hold windows would wait for that memory.
    async fn start(&mut self, index: u64, cursor: Cursor) -> Result<PendingBatch, Error> {
        let items = self.stream.job.size(cursor, self.stream.rank);
        let (reservation, loading) = loop {
            let loading = Instant::now();
            self.load_first(index, cursor).await?;
            let loading = loading.elapsed();
            if let Some(reservation) = self.reserve(items).await {
                break (Arc::new(reservation), loading);
            }
        };
        let now = Instant::now();
        let begun = now.checked_sub(loading).unwrap_or(now);
        let (position, mixed_positions) = self.stream.job.positions(cursor, self.stream.rank);
        let metadata = BatchMetadata {
            epoch: cursor.epoch,
            step: cursor.step,
            rank: self.stream.rank.into(),
            position,
            mixed_positions,
            ..BatchMetadata::default()
        };
        let batch = self.gather(index, cursor, items, Arc::clone(&reservation)).await?;
        let (window_wait, seen) = (begun.elapsed(), self.stream.seen.take());
        Ok(PendingBatch { metadata, batch, begun, window_wait, seen, reservation })
    }

    /// Loads the first windows of the batch at `cursor`, if the stream does not hold them.
    async fn load_first(&mut self, index: u64, cursor: Cursor) -> Result<(), Error> {
        let Some(set) = self.windows.window_sets(cursor).await?.into_iter().next() else { return Ok(()) };
        if self.windows.held(&set).is_none() {
            // Updates the forecast first, because the eviction that makes room for the windows uses it.
            self.windows.note(&set).await?;
            self.windows.load(&set, index).await?;
        }
        Ok(())
    }

    /// Reserves memory for one batch of `items` rows or groups. If the stream must release its windows, waits until there is memory for
    /// the batch again, and returns `None`. It releases them in three cases, because other streams could wait for the memory of these
    /// windows indefinitely:
    ///
    /// - The consumer has made no progress for `slow_consumer_timeout`. A consumer that has received everything and waits for a batch is
    ///   not slow, however long making the batch takes.
    /// - The stream has no batch, and has waited for `slow_consumer_timeout` for consumers of other streams.
    /// - The stream waits for memory, and another tenant waits for windows of which this one has more than its share.
    async fn reserve(&mut self, items: u64) -> Option<BatchReservation> {
        let item_bytes = self.item_bytes.load(Ordering::Relaxed).max(self.footer_item_bytes);
        let bytes = MESSAGE_BYTES.saturating_add(items.saturating_mul(item_bytes));
        let budget = Arc::clone(&self.budget);
        let mut taking = pin!(budget.reserve(bytes));
        let (began, patience) = (tokio::time::Instant::now(), self.config.slow_consumer_timeout);
        loop {
            // A consumer that was slow is no reason to release windows for a batch that can begin now.
            if let Some(reservation) = (&mut taking).now_or_never() {
                return Some(reservation);
            }
            let of_others = if budget.is_empty() { began.elapsed() } else { Duration::ZERO };
            let waited = budget.consumer().busy_for().max(of_others);
            if waited >= patience || (began.elapsed() >= YIELD_INTERVAL && self.windows.should_yield()) {
                self.windows.release();
                // Waits for the reservation and returns it at once, because streams that hold their windows can use it.
                drop(taking.await);
                return None;
            }
            let step = (patience - waited).min(YIELD_INTERVAL);
            if let Ok(reservation) = timeout(step, &mut taking).await {
                return Some(reservation);
            }
        }
    }

    /// Starts to gather a batch of `items` rows or groups, which may come from several windows. No window is held while
    /// another one is loaded or waited for: rows of the earlier windows are retained instead.
    async fn gather(
        &mut self,
        index: u64,
        cursor: Cursor,
        items: u64,
        reservation: Arc<BatchReservation>,
    ) -> Result<Submitted<GatheredBatch>, Error> {
        let max_bytes = self.config.max_batch_bytes;
        // A retained frame also keeps the rows of other batches in memory, which only their own reservations count.
        let max_held_bytes = if self.stream.job.is_file_order() { self.budget.max_held_bytes() } else { 0 };
        let view = Arc::clone(self.stream.job.view());
        let row_limit = self.stream.job.has_groups().then(|| RowLimit::of(view.min_row_bytes(), max_bytes));
        let pattern = if self.stream.job.mixed.is_empty() { Vec::new() } else { self.stream.job.pattern() };
        let partitions = self.stream.job.partitions_of(self.stream.rank).len();
        let mut rows = BatchRows { view, row_limit, pattern, partitions, segments: Vec::new() };
        for set in self.windows.window_sets(cursor).await? {
            // Updates the forecast first, because the eviction that makes room for the windows uses it.
            self.windows.note(&set).await?;
            if self.windows.held(&set).is_none() {
                self.retain(&mut rows, max_held_bytes).await?;
                rows.check_retained(max_bytes)?;
                self.windows.load(&set, index).await?;
            }
            let held = self.windows.held(&set).unwrap_or_default();
            rows.segments.extend(set.taken().map(|(at, SourcePiece { source, piece, .. })| {
                let Piece { positions, order, .. } = piece.clone();
                let held = Arc::clone(&held[at]);
                (*source, Segment::Held(WindowRows { order, held, positions, row_limit }))
            }));
        }
        self.windows.prefetch(index).await?;
        let options = AssembleOptions {
            hash: self.stream.job.train().content_hash.unwrap_or(true),
            max_bytes,
            max_held_bytes,
            min_rows: self.stream.job.min_rows(),
        };
        let (slabs, full_batch_size) = (self.slabs.clone(), self.stream.job.full_batch_size());
        let (item_bytes, faults) = (Arc::clone(&self.item_bytes), self.config.fault_injection);
        let (activity, watch, job) =
            (Arc::clone(&self.activity), self.stream.watch.clone(), Arc::clone(&self.stream.job));
        let (flow, urgency) =
            (self.stream.gather_flow, if reservation.is_only() { Urgency::Now } else { Urgency::Later });
        let recorder = Arc::clone(&activity);
        let gather = async move {
            let begun = Instant::now();
            let assemble = faults.before_gather(rows.assemble(job.label.as_ref(), options, &slabs));
            let (batch, label) = assemble.await?;
            let body_bytes = batch.body.len() as u64;
            activity.add_output(Stage::Gather, body_bytes, batch.rows);
            reservation.settle(MESSAGE_BYTES + batch.header.len() as u64 + body_bytes);
            // A short batch may be padded, so its mean size would be wrong.
            if items == full_batch_size {
                item_bytes.store(body_bytes / full_batch_size, Ordering::Relaxed);
            }
            let ended = Instant::now();
            Ok(GatheredBatch { batch, label, begun, ended })
        };
        let turns = timed_turns(move || recorder.begin_for(Stage::Gather, &watch), gather);
        let turns = turns.map(|(gathered, worked): (Result<GatheredBatch, Error>, Duration)| {
            if gathered.is_ok() {
                metrics::histogram!("forebay_gather_duration_seconds").record(worked);
            }
            gathered
        });
        Ok(self.pool.run_in_turns_when(urgency, flow, Priority::Interactive, turns))
    }

    /// Retains the rows of all windows, so that `rows` no longer holds a window.
    async fn retain(&self, rows: &mut BatchRows, max_held_bytes: u64) -> Result<(), Error> {
        for (at, segment) in std::mem::take(&mut rows.segments) {
            let retained = match segment {
                Segment::Retained(retained) => retained,
                Segment::Held(held) => {
                    let (view, slabs) = (Arc::clone(&rows.view), self.slabs.clone());
                    let (activity, watch) = (Arc::clone(&self.activity), self.stream.watch.clone());
                    let retain = async move { held.retain(&view, max_held_bytes, &slabs).await };
                    let turns = recorded_turns(move || activity.begin_for(Stage::Gather, &watch), retain);
                    self.pool.run_in_turns(self.stream.gather_flow, Priority::Interactive, turns).await?
                }
            };
            rows.segments.push((at, Segment::Retained(retained)));
        }
        Ok(())
    }
}
