//! The stream of one rank and lane.

use std::{collections::VecDeque, ops::Range, sync::Arc, time::Instant};

use forebay_cache::{Slabs, Weigh};
use forebay_plan::{Cursor, EpochOrder, Location};
use forebay_proto::v1::BatchMetadata;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::timeout,
};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    Config, Error, Frame, Job, Pool, Priority, RowRef, WireBatch, assemble,
    window::{HeldWindow, Room, WindowId, Windows},
};

/// Finished batches of one rank and lane, made ahead of their consumer up to a number of bytes.
///
/// Dropping it ends the work for it. A consumer that takes nothing costs the batches that are ready,
/// and after a while no window.
pub struct Batches {
    remaining: u64,
    ready: mpsc::UnboundedReceiver<Result<Ready, Error>>,
    _producer: AbortOnDropHandle<()>,
}

/// A batch, and its share of the bytes that may be ready.
struct Ready {
    metadata: BatchMetadata,
    batch: WireBatch,
    _share: OwnedSemaphorePermit,
}

/// At most so many windows are made ahead of their use.
const MAX_WINDOWS_AHEAD: usize = 8;

impl Batches {
    pub(crate) fn start(
        job: Arc<Job>,
        rank: u32,
        lane: u32,
        windows: Arc<Windows>,
        pool: Pool,
        config: Config,
    ) -> Self {
        let (sender, ready) = mpsc::unbounded_channel();
        let space = Arc::new(Semaphore::new(kibibytes(config.prefetch_bytes) as usize));
        let count = job.batches(lane);
        let producer = Producer {
            count,
            next: 0,
            orders: VecDeque::new(),
            held: None,
            ahead: VecDeque::new(),
            job,
            rank,
            lane,
            windows,
            pool,
            config,
            space,
            sender,
        };
        Self { remaining: count, ready, _producer: AbortOnDropHandle::new(tokio::spawn(producer.run())) }
    }

    /// Batches that have not been taken yet.
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// The next batch; `None` after the last, never before. Cancel-safe. After an error the stream is over.
    pub async fn next(&mut self) -> Option<Result<(BatchMetadata, WireBatch), Error>> {
        if self.remaining == 0 {
            return None;
        }
        match self.ready.recv().await {
            Some(Ok(ready)) => {
                self.remaining -= 1;
                Some(Ok((ready.metadata, ready.batch)))
            }
            Some(Err(error)) => {
                self.remaining = 0;
                Some(Err(error))
            }
            None => {
                self.remaining = 0;
                Some(Err(Error::Internal("the stream's producer stopped before its last batch".into())))
            }
        }
    }
}

struct Producer {
    job: Arc<Job>,
    rank: u32,
    lane: u32,
    /// Batches of this lane, and the number of the one being made.
    count: u64,
    next: u64,
    /// Orders of the epochs at hand, the oldest first.
    orders: VecDeque<(u64, Arc<EpochOrder>)>,
    held: Option<(WindowId, Arc<HeldWindow>)>,
    ahead: VecDeque<Ahead>,
    windows: Arc<Windows>,
    pool: Pool,
    config: Config,
    space: Arc<Semaphore>,
    sender: mpsc::UnboundedSender<Result<Ready, Error>>,
}

/// A window that is being made ahead of its use.
struct Ahead {
    id: WindowId,
    bytes: u64,
    task: AbortOnDropHandle<Result<Option<Arc<HeldWindow>>, Error>>,
}

impl Producer {
    async fn run(mut self) {
        while self.next < self.count {
            let made = self.batch(self.cursor(self.next)).await;
            self.next += 1;
            let failed = made.is_err();
            let ready = match made {
                Ok((metadata, batch)) => {
                    let share = self.share((batch.header.len() + batch.body.len()) as u64).await;
                    share.map(|share| Ready { metadata, batch, _share: share })
                }
                Err(error) => Err(error),
            };
            if self.sender.send(ready).is_err() || failed {
                return;
            }
        }
    }

    fn cursor(&self, index: u64) -> Cursor {
        self.job.run().cursor(u64::from(self.lane) + index * u64::from(self.job.lanes()))
    }

    /// Waits until `bytes` more may be ready. When the consumer takes nothing for a while, the windows
    /// are let go, so that nobody waits for memory that only this consumer could free.
    async fn share(&mut self, bytes: u64) -> Result<OwnedSemaphorePermit, Error> {
        let permits = kibibytes(bytes.min(self.config.prefetch_bytes));
        let closed = |_| Error::Internal("the space semaphore is closed".into());
        let mut wait = Box::pin(Arc::clone(&self.space).acquire_many_owned(permits));
        if let Ok(share) = timeout(self.config.stall_timeout, &mut wait).await {
            return share.map_err(closed);
        }
        self.held = None;
        self.ahead.clear();
        wait.await.map_err(closed)
    }

    async fn batch(&mut self, cursor: Cursor) -> Result<(BatchMetadata, WireBatch), Error> {
        let positions = self.job.positions(cursor.step, self.rank);
        let hash = self.job.train().hash.unwrap_or(true);
        let batch = self.gather(cursor.epoch, positions.clone(), hash).await?;
        metrics::counter!("forebay_batches_total").increment(1);
        metrics::counter!("forebay_batch_rows_total").increment(batch.rows);
        metrics::counter!("forebay_batch_bytes_total").increment(batch.body.len() as u64);
        let metadata = BatchMetadata {
            epoch: cursor.epoch,
            step: cursor.step,
            rank: self.rank.into(),
            rows: batch.rows,
            position: positions.start,
            hash: batch.hash,
        };
        Ok((metadata, batch))
    }

    /// The batch of the rows at `positions`. They may lie in several windows, of which only one is held
    /// at a time: the rows of all but the last are set aside.
    async fn gather(&mut self, epoch: u64, positions: Range<u64>, hash: bool) -> Result<WireBatch, Error> {
        let order = self.order(epoch).await?;
        let max_bytes = self.config.max_batch_bytes;
        let mut aside: Vec<Arc<Frame>> = Vec::new();
        let mut start = positions.start;
        while start < positions.end {
            let id = WindowId { epoch, window: order.window_at(start) };
            let held = self.window(id, &order).await?;
            let end = order.window(id.window).positions.end.min(positions.end);
            let part = Part { order: Arc::clone(&order), held, positions: start..end };
            start = end;
            let (view, slabs) = (Arc::clone(self.job.view()), self.windows.slabs().clone());
            if start < positions.end {
                aside.push(
                    self.pool.run(Priority::First, move || part.select(&view, &slabs).map(Arc::new)).await?,
                );
                let bytes = aside.iter().map(|frame| frame.weight()).sum();
                if bytes > max_bytes {
                    return Err(Error::batch_too_large(positions.end - positions.start, bytes, max_bytes));
                }
                continue;
            }
            return self
                .pool
                .run(Priority::First, move || part.assemble(&view, aside, hash, max_bytes, &slabs))
                .await;
        }
        let (view, slabs) = (Arc::clone(self.job.view()), self.windows.slabs().clone());
        self.pool.run(Priority::First, move || assemble(&view, &[], &[], hash, max_bytes, &slabs)).await
    }

    /// The loaded window `id`. It replaces the one that was held.
    async fn window(&mut self, id: WindowId, order: &EpochOrder) -> Result<Arc<HeldWindow>, Error> {
        if let Some((held_id, held)) = &self.held
            && *held_id == id
        {
            return Ok(Arc::clone(held));
        }
        self.held = None;
        let held = match self.made_ahead(id).await? {
            Some(held) => held,
            None => {
                // Nothing may be held while waiting for memory.
                self.ahead.clear();
                let blocks = order.window(id.window).blocks;
                let acquired = self.windows.acquire(&self.job, id, blocks, Room::Wait).await?;
                acquired.ok_or_else(|| Error::Internal("a wait for memory ended without memory".into()))?
            }
        };
        self.held = Some((id, Arc::clone(&held)));
        self.read_ahead(id).await?;
        Ok(held)
    }

    async fn made_ahead(&mut self, id: WindowId) -> Result<Option<Arc<HeldWindow>>, Error> {
        while let Some(mut ahead) = self.ahead.pop_front() {
            if ahead.id != id {
                continue;
            }
            // It may have joined another rank's wait for memory, and that wait may be for what is held here.
            let made = match timeout(self.config.stall_timeout, &mut ahead.task).await {
                Ok(made) => made,
                Err(_) => {
                    self.ahead.clear();
                    ahead.task.await
                }
            };
            return made.map_err(|error| Error::Internal(error.to_string()))?;
        }
        Ok(None)
    }

    /// Starts making the windows that come after `id`, in order of need, as far as memory is free.
    async fn read_ahead(&mut self, id: WindowId) -> Result<(), Error> {
        let mut last = self.ahead.back().map_or(id, |ahead| ahead.id);
        loop {
            let bytes: u64 = self.ahead.iter().map(|ahead| ahead.bytes).sum();
            let enough = !self.ahead.is_empty() && bytes >= self.config.read_ahead_bytes;
            if enough || self.ahead.len() >= MAX_WINDOWS_AHEAD {
                return Ok(());
            }
            let Some(next) = self.window_after(last).await? else { return Ok(()) };
            let order = self.order(next.epoch).await?;
            let blocks = order.window(next.window).blocks.to_vec();
            let bytes = self.job.bytes_of(&blocks);
            let (windows, job) = (Arc::clone(&self.windows), Arc::clone(&self.job));
            let task =
                tokio::spawn(async move { windows.acquire(&job, next, &blocks, Room::OnlyIfFree).await });
            self.ahead.push_back(Ahead { id: next, bytes, task: AbortOnDropHandle::new(task) });
            last = next;
        }
    }

    /// The next window after `id` of which this lane needs a row.
    async fn window_after(&mut self, id: WindowId) -> Result<Option<WindowId>, Error> {
        let end = self.order(id.epoch).await?.window(id.window).positions.end;
        let (mut low, mut high) = (self.next, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            let cursor = self.cursor(middle);
            let reaches_past =
                (cursor.epoch, self.job.positions(cursor.step, self.rank).end) > (id.epoch, end);
            if reaches_past { high = middle } else { low = middle + 1 }
        }
        // Only the last batch of an epoch can be empty, so one of two has a row, if any has.
        for index in low..self.count.min(low.saturating_add(2)) {
            let cursor = self.cursor(index);
            let positions = self.job.positions(cursor.step, self.rank);
            if positions.is_empty() {
                continue;
            }
            let first = if cursor.epoch == id.epoch { positions.start.max(end) } else { positions.start };
            let window = self.order(cursor.epoch).await?.window_at(first);
            return Ok(Some(WindowId { epoch: cursor.epoch, window }));
        }
        Ok(None)
    }

    async fn order(&mut self, epoch: u64) -> Result<Arc<EpochOrder>, Error> {
        if let Some((_, order)) = self.orders.iter().find(|(known, _)| *known == epoch) {
            return Ok(Arc::clone(order));
        }
        let job = Arc::clone(&self.job);
        let order = self.pool.run(Priority::First, move || Ok(Arc::new(job.order(epoch)))).await?;
        // This epoch's and the ones being made ahead.
        if self.orders.len() > MAX_WINDOWS_AHEAD {
            self.orders.pop_front();
        }
        self.orders.push_back((epoch, Arc::clone(&order)));
        Ok(order)
    }
}

/// The rows of a batch that lie in one window.
struct Part {
    order: Arc<EpochOrder>,
    held: Arc<HeldWindow>,
    positions: Range<u64>,
}

impl Part {
    fn rows(&self, first_frame: u32, rows: &mut Vec<RowRef>) {
        let mut locations: Vec<Location> = Vec::new();
        self.order.locate_range(self.positions.clone(), &mut locations);
        self.held.window().rows(&locations, first_frame, rows);
    }

    fn select(&self, view: &crate::View, slabs: &Slabs) -> Result<Frame, Error> {
        let mut rows = Vec::new();
        self.rows(0, &mut rows);
        Frame::select(view, &self.held.window().frames, &rows, slabs)
    }

    fn assemble(
        &self,
        view: &crate::View,
        aside: Vec<Arc<Frame>>,
        hash: bool,
        max_bytes: u64,
        slabs: &Slabs,
    ) -> Result<WireBatch, Error> {
        let started = Instant::now();
        let window = self.held.window();
        let mut rows = Vec::new();
        for (frame, rows_aside) in aside.iter().enumerate() {
            rows.extend((0..rows_aside.rows() as u32).map(|row| RowRef { frame: frame as u32, row }));
        }
        self.rows(aside.len() as u32, &mut rows);
        let batch = if aside.is_empty() {
            assemble(view, &window.frames, &rows, hash, max_bytes, slabs)
        } else {
            let mut frames = aside;
            frames.extend(window.frames.iter().cloned());
            assemble(view, &frames, &rows, hash, max_bytes, slabs)
        };
        metrics::histogram!("forebay_gather_duration_seconds").record(started.elapsed());
        batch
    }
}

fn kibibytes(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX >> 3).max(1)
}
