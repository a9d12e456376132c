//! Producer of the batches of one stream, in order.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use forebay_cache::Slabs;
use forebay_plan::{Cursor, EpochOrder};
use forebay_proto::v1::BatchMetadata;
use forebay_stall::Stage;
use tokio::{sync::mpsc, time::timeout};

use super::{
    assemble::AssembleOptions,
    budget::{BatchReservation, StreamBudget},
    pending::{GatheredBatch, PendingBatch},
    segments::{BatchRows, RowLimit, Segment, WindowRows},
};
use crate::{
    Config, Error, Job, Pool, Priority, Submitted,
    activity::Activity,
    cache::forecast::StreamProgress,
    cpu::fair_queue::Urgency,
    stream::Stream,
    window::{
        held::{HeldWindow, WindowId},
        prefetch::WindowPrefetch,
        windows::Windows,
    },
};

/// Approximate overhead of a batch in bytes, besides its message.
const MESSAGE_BYTES: u64 = 1024;

/// Starts batches as long as the prefetch budget allows. Several batches are gathered concurrently.
pub(crate) struct Producer {
    stream: Stream,
    activity: Arc<Activity>,
    /// Sources of rows: the job's own dataset, then the other datasets of its mixture.
    sources: Vec<RowSource>,
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
        let jobs: Vec<Arc<Job>> = std::iter::once(&stream.job).chain(&stream.job.mixed).cloned().collect();
        let footer_item_bytes = jobs.iter().map(|job| job.item_bytes()).max().unwrap_or(0);
        let slabs = windows.slabs().clone();
        let activity = Arc::clone(windows.activity());
        let source = |job: Arc<Job>| {
            let progress = Arc::new(windows.forecast().enter(&job, stream.rank, stream.lane));
            let (known, windows) = (Arc::clone(&progress), Arc::clone(windows));
            let source = Stream { job: Arc::clone(&job), ..stream.clone() };
            let windows = WindowPrefetch::new(source, windows, known, pool.clone(), config.clone());
            RowSource { job, windows, progress }
        };
        let sources = jobs.into_iter().map(source).collect();
        let item_bytes = Arc::default();
        Self { stream, activity, sources, slabs, pool, config, budget, footer_item_bytes, item_bytes, sender }
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

    /// Starts one batch once the prefetch budget admits it.
    async fn start(&mut self, index: u64, cursor: Cursor) -> Result<PendingBatch, Error> {
        let items = self.stream.job.size(cursor, self.stream.rank);
        let reservation = Arc::new(self.reserve(items).await);
        let begun = Instant::now();
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
        Ok(PendingBatch { metadata, batch, begun, window_wait, seen, _reservation: reservation })
    }

    /// Reserves memory for one batch of `items` rows or groups. If the consumer takes nothing for
    /// `slow_consumer_timeout`, the windows are released. Otherwise other streams could wait for memory that only this
    /// consumer can free.
    async fn reserve(&mut self, items: u64) -> BatchReservation {
        let item_bytes = self.item_bytes.load(Ordering::Relaxed).max(self.footer_item_bytes);
        let bytes = MESSAGE_BYTES.saturating_add(items.saturating_mul(item_bytes));
        let budget = Arc::clone(&self.budget);
        if let Ok(reservation) = timeout(self.config.slow_consumer_timeout, budget.take(bytes)).await {
            return reservation;
        }
        self.sources.iter_mut().for_each(|source| source.windows.release());
        budget.take(bytes).await
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
        let pattern = if self.sources.len() > 1 { self.stream.job.pattern() } else { Vec::new() };
        let mut rows = BatchRows { view, row_limit, pattern, segments: Vec::new() };
        for at in 0..self.sources.len() {
            if self.sources[at].job.is_packed() {
                // Packs are computed here on the pool, because that is slow.
                self.sources[at].windows.order(cursor.epoch).await?;
            }
            for (epoch, positions) in self.sources[at].job.ranges(cursor, self.stream.rank) {
                let mut start = positions.start;
                while start < positions.end {
                    let order = self.sources[at].windows.order(epoch).await?;
                    let id = WindowId { epoch, window: order.window_at(start) };
                    // Updates the forecast first, because the eviction that makes room for the window uses it.
                    self.sources[at].note(epoch, start, id, &order, &self.pool).await?;
                    let held = match self.sources[at].windows.held(id) {
                        Some(held) => held,
                        None => {
                            self.retain(&mut rows, max_held_bytes).await?;
                            rows.check_retained(max_bytes)?;
                            self.window(at, id, index).await?
                        }
                    };
                    let end = order.window(id.window).positions.end.min(positions.end);
                    let own = WindowRows { order, held, positions: start..end, row_limit };
                    rows.segments.push((at, Segment::Held(own)));
                    start = end;
                }
            }
        }
        for source in &mut self.sources {
            source.windows.prefetch_after(index).await?;
        }
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
        let gather = move || {
            let working = activity.begin_for(Stage::Gather, &watch);
            let begun = Instant::now();
            let assemble = faults.before_gather(|| rows.assemble(job.label.as_ref(), options, &slabs));
            let (batch, label) = assemble()?;
            let body_bytes = batch.body.len() as u64;
            working.add_output(body_bytes, batch.rows);
            reservation.settle(MESSAGE_BYTES + batch.header.len() as u64 + body_bytes);
            // A short batch may be padded, so its mean size would be wrong.
            if items == full_batch_size {
                item_bytes.store(body_bytes / full_batch_size, Ordering::Relaxed);
            }
            let ended = Instant::now();
            metrics::histogram!("forebay_gather_duration_seconds").record(ended.duration_since(begun));
            Ok(GatheredBatch { batch, label, begun, ended })
        };
        Ok(self.pool.run_when(urgency, flow, Priority::Interactive, gather))
    }

    /// Loads the window `id` for the source at index `at` of the mixture.
    async fn window(&mut self, at: usize, id: WindowId, index: u64) -> Result<Arc<HeldWindow>, Error> {
        let (before, rest) = self.sources.split_at_mut(at);
        let Some((this, after)) = rest.split_first_mut() else {
            return Err(Error::Internal(format!("there is no source {at} of the mixture")));
        };
        let mut others: Vec<_> = before.iter_mut().chain(after).map(|source| &mut source.windows).collect();
        this.windows.window(id, index, &mut others).await
    }

    /// Retains the rows of all windows, so that `rows` no longer holds a window.
    async fn retain(&self, rows: &mut BatchRows, max_held_bytes: u64) -> Result<(), Error> {
        for (at, segment) in std::mem::take(&mut rows.segments) {
            let retained = match segment {
                Segment::Retained(retained) => retained,
                Segment::Held(held) => {
                    let (view, slabs) = (Arc::clone(&rows.view), self.slabs.clone());
                    let (activity, watch) = (Arc::clone(&self.activity), self.stream.watch.clone());
                    let retain = move || {
                        let _working = activity.begin_for(Stage::Gather, &watch);
                        held.retain(&view, max_held_bytes, &slabs)
                    };
                    self.pool.run_for(self.stream.gather_flow, Priority::Interactive, retain).await?
                }
            };
            rows.segments.push((at, Segment::Retained(retained)));
        }
        Ok(())
    }
}

/// Source of rows: the job's own dataset or another dataset of its mixture.
struct RowSource {
    job: Arc<Job>,
    windows: WindowPrefetch,
    progress: Arc<StreamProgress>,
}

impl RowSource {
    /// Updates the position of this stream in the forecast. The first update of an epoch is slow and runs on the pool.
    async fn note(
        &self,
        epoch: u64,
        start: u64,
        id: WindowId,
        order: &Arc<EpochOrder>,
        pool: &Pool,
    ) -> Result<(), Error> {
        let window_start = order.window(id.window).positions.start;
        if !self.progress.is_new(epoch) {
            self.progress.reached(epoch, start, window_start, order);
            return Ok(());
        }
        let (progress, order) = (Arc::clone(&self.progress), Arc::clone(order));
        let note = move || {
            progress.reached(epoch, start, window_start, &order);
            Ok(())
        };
        pool.run(Priority::Interactive, note).await
    }
}
