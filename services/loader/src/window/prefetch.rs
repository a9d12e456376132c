//! The windows of one stream: the one in use and the prefetched ones.

use std::{
    collections::VecDeque,
    ops::Range,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use forebay_plan::EpochOrder;
use tokio::{sync::oneshot, time::timeout};
use tokio_util::task::AbortOnDropHandle;

use super::{
    held::{HeldWindow, WindowId},
    windows::{WhenFull, Windows},
};
use crate::{
    Config, Error, Pool, Priority, activity::Watching, cache::forecast::StreamProgress, stream::Stream,
};

/// Maximum number of prefetched windows.
const MAX_PREFETCHED: usize = 8;

/// Windows of one rank and lane, in the order of use.
pub(crate) struct WindowPrefetch {
    stream: Stream,
    /// Cached orders of epochs, oldest first.
    orders: VecDeque<(u64, Arc<EpochOrder>)>,
    held: Option<(WindowId, Arc<HeldWindow>)>,
    /// True if prefetching has not yet continued from the held window.
    is_new: bool,
    prefetched: VecDeque<PrefetchedWindow>,
    /// Resolves when all blocks of the last prefetched window are being loaded. The next one waits for it before it
    /// reserves memory, so that blocks are decoded in the order of need.
    last_is_started: Option<oneshot::Receiver<()>>,
    windows: Arc<Windows>,
    progress: Arc<StreamProgress>,
    pool: Pool,
    config: Config,
}

/// A window that is being prefetched.
struct PrefetchedWindow {
    id: WindowId,
    bytes: u64,
    /// True after the task found no memory.
    found_no_memory: Arc<AtomicBool>,
    task: AbortOnDropHandle<Result<Option<Arc<HeldWindow>>, Error>>,
}

impl PrefetchedWindow {
    fn found_no_memory(&self) -> bool {
        self.found_no_memory.load(Ordering::Acquire)
    }
}

impl WindowPrefetch {
    pub(crate) fn new(
        stream: Stream,
        windows: Arc<Windows>,
        progress: Arc<StreamProgress>,
        pool: Pool,
        config: Config,
    ) -> Self {
        let (orders, prefetched) = (VecDeque::new(), VecDeque::new());
        Self {
            stream,
            orders,
            held: None,
            is_new: false,
            prefetched,
            last_is_started: None,
            windows,
            progress,
            pool,
            config,
        }
    }

    /// Returns window `id` if it is the held one.
    pub(crate) fn held(&self, id: WindowId) -> Option<Arc<HeldWindow>> {
        self.held.as_ref().filter(|(held_id, _)| *held_id == id).map(|(_, held)| Arc::clone(held))
    }

    /// Loads window `id` for batch `index` of the lane and replaces the held window. If it has to wait for memory, the
    /// `others` of a mixture release their windows.
    pub(crate) async fn window(
        &mut self,
        id: WindowId,
        index: u64,
        others: &mut [&mut Self],
    ) -> Result<Arc<HeldWindow>, Error> {
        if let Some(held) = self.held(id) {
            return Ok(held);
        }
        self.held = None;
        let _watching = self.watch(id).await?;
        let held = match self.take_prefetched(id, others).await? {
            Some(held) => held,
            None if others.is_empty() => self.wait_for(id, others).await?,
            None => match self.try_load(id, others).await? {
                Some(held) => held,
                None => self.wait_for(id, others).await?,
            },
        };
        self.held = Some((id, Arc::clone(&held)));
        self.is_new = true;
        if others.is_empty() {
            self.prefetch_after(index).await?;
        }
        Ok(held)
    }

    /// Charges work for the blocks of window `id` to this stream while the guard is held. Returns `None` if the window
    /// is ready.
    async fn watch(&mut self, id: WindowId) -> Result<Option<Watching>, Error> {
        let is_ready = |window: &PrefetchedWindow| {
            window.id == id && window.task.is_finished() && !window.found_no_memory()
        };
        if self.prefetched.iter().any(is_ready) {
            return Ok(None);
        }
        let order = self.order(id.epoch).await?;
        let (ids, blocks) = (self.stream.job.reader().block_ids(), order.window(id.window).blocks);
        let blocks = blocks.iter().map(|block| ids.id(*block));
        Ok(Some(self.windows.activity().watch(&self.stream.watch, &self.stream.seen, blocks)))
    }

    /// Prefetches the windows that follow a newly held window, or that found no memory before. A mixture calls this
    /// after all of its datasets hold their windows.
    pub(crate) async fn prefetch_after(&mut self, index: u64) -> Result<(), Error> {
        let is_new = std::mem::take(&mut self.is_new);
        match self.held.as_ref().map(|(id, _)| *id) {
            Some(id) if is_new || self.drop_failed() => self.prefetch(id, index).await,
            _ => Ok(()),
        }
    }

    /// Returns true if there is now memory for the first prefetched window that found none. In this case drops it and
    /// all later ones.
    fn drop_failed(&mut self) -> bool {
        let Some(failed) = self.prefetched.iter().position(PrefetchedWindow::found_no_memory) else {
            return false;
        };
        if !self.windows.has_room(self.prefetched[failed].bytes) {
            return false;
        }
        self.prefetched.truncate(failed);
        self.last_is_started = None;
        true
    }

    /// Loads window `id` if there is free memory for it in addition to the windows held by `others`. Otherwise
    /// it drops all prefetched windows and tries once more.
    async fn try_load(
        &mut self,
        id: WindowId,
        others: &mut [&mut Self],
    ) -> Result<Option<Arc<HeldWindow>>, Error> {
        let order = self.order(id.epoch).await?;
        let window = order.window(id.window);
        self.progress.loading(id.epoch, window.positions.end);
        for _ in 0..2 {
            let when_full = WhenFull::Fail(None);
            let acquiring = self.windows.acquire(&self.stream.job, id, window.blocks, when_full);
            // The call may have joined another stream's wait for memory, which may need the memory held here.
            if let Some(acquired) = self.unless_without_memory(id, acquiring).await
                && let Some(held) = acquired?
            {
                return Ok(Some(held));
            }
            self.discard_prefetched();
            others.iter_mut().for_each(|other| other.discard_prefetched());
        }
        Ok(None)
    }

    /// Waits for `loading`, which loads window `id`. Returns `None` if the window has not got its memory for
    /// `slow_consumer_timeout`. A window that has its memory may take any time.
    async fn unless_without_memory<T>(&self, id: WindowId, loading: impl Future<Output = T>) -> Option<T> {
        let mut loading = pin!(loading);
        loop {
            match timeout(self.config.slow_consumer_timeout, &mut loading).await {
                Ok(loaded) => return Some(loaded),
                Err(_) if self.windows.has_memory(&self.stream.job, id) => {}
                Err(_) => return None,
            }
        }
    }

    /// Loads window `id` as soon as there is memory for it. All windows are released first, because waiting while
    /// holding memory can deadlock.
    async fn wait_for(&mut self, id: WindowId, others: &mut [&mut Self]) -> Result<Arc<HeldWindow>, Error> {
        self.release();
        others.iter_mut().for_each(|other| other.release());
        let order = self.order(id.epoch).await?;
        let window = order.window(id.window);
        self.progress.loading(id.epoch, window.positions.end);
        let acquired = self.windows.acquire(&self.stream.job, id, window.blocks, WhenFull::Wait).await?;
        acquired.ok_or_else(|| Error::Internal("a wait for memory ended without memory".into()))
    }

    /// Releases all windows. They are loaded again when they are needed.
    pub(crate) fn release(&mut self) {
        self.held = None;
        self.discard_prefetched();
    }

    fn discard_prefetched(&mut self) {
        self.prefetched.clear();
        self.last_is_started = None;
    }

    /// Returns the order of `epoch`. Also computes the packs of the epoch.
    pub(crate) async fn order(&mut self, epoch: u64) -> Result<Arc<EpochOrder>, Error> {
        if let Some((_, order)) = self.orders.iter().find(|(known, _)| *known == epoch) {
            return Ok(Arc::clone(order));
        }
        let job = Arc::clone(&self.stream.job);
        let compute = move || {
            job.packs(epoch);
            Ok(Arc::new(job.order.epoch(epoch)))
        };
        let order = self.pool.run(Priority::Interactive, compute).await?;
        // Room for the orders of the current epoch and of the prefetched windows.
        if self.orders.len() > MAX_PREFETCHED {
            self.orders.pop_front();
        }
        self.orders.push_back((epoch, Arc::clone(&order)));
        Ok(order)
    }

    async fn take_prefetched(
        &mut self,
        id: WindowId,
        others: &mut [&mut Self],
    ) -> Result<Option<Arc<HeldWindow>>, Error> {
        while let Some(mut window) = self.prefetched.pop_front() {
            if window.id != id {
                continue;
            }
            // The task may have joined another rank's wait for memory, which may need the memory held here.
            let loaded = match self.unless_without_memory(id, &mut window.task).await {
                Some(loaded) => loaded,
                None => {
                    self.release();
                    others.iter_mut().for_each(|other| other.release());
                    window.task.await
                }
            };
            return loaded.map_err(|error| Error::Internal(error.to_string()))?;
        }
        Ok(None)
    }

    /// Prefetches the windows that follow `id`, in the order of use, while there is free memory.
    async fn prefetch(&mut self, id: WindowId, index: u64) -> Result<(), Error> {
        let mut last = self.prefetched.back().map_or(id, |window| window.id);
        loop {
            let bytes: u64 = self.prefetched.iter().map(|window| window.bytes).sum();
            let enough = !self.prefetched.is_empty() && bytes >= self.config.window_prefetch_bytes;
            if enough || self.prefetched.len() >= MAX_PREFETCHED {
                return Ok(());
            }
            let Some(next) = self.window_after(last, index).await? else { return Ok(()) };
            let order = self.order(next.epoch).await?;
            let window = order.window(next.window);
            self.progress.loading(next.epoch, window.positions.end);
            let blocks = window.blocks.to_vec();
            let bytes = self.stream.job.bytes_of(&blocks);
            let (windows, job) = (Arc::clone(&self.windows), Arc::clone(&self.stream.job));
            let (started, is_started) = oneshot::channel();
            let before = self.last_is_started.replace(is_started);
            let found_no_memory = Arc::<AtomicBool>::default();
            let without_memory = Arc::clone(&found_no_memory);
            let task = tokio::spawn(async move {
                // A window that is needed later must not take memory or threads from one that is needed sooner.
                let is_next = match before {
                    Some(before) => before.await.is_ok(),
                    None => true,
                };
                let acquired = match is_next {
                    true => windows.acquire(&job, next, &blocks, WhenFull::Fail(Some(started))).await?,
                    false => None,
                };
                without_memory.store(acquired.is_none(), Ordering::Release);
                Ok(acquired)
            });
            self.prefetched.push_back(PrefetchedWindow {
                id: next,
                bytes,
                found_no_memory,
                task: AbortOnDropHandle::new(task),
            });
            last = next;
        }
    }

    /// Returns the next window after `id` from which this lane needs a row in batch `index` or a later batch.
    async fn window_after(&mut self, id: WindowId, index: u64) -> Result<Option<WindowId>, Error> {
        let end = self.order(id.epoch).await?.window(id.window).positions.end;
        let count = self.stream.job.batches(self.stream.lane);
        let (mut low, mut high) = (index, count);
        while low < high {
            let middle = low + (high - low) / 2;
            let cursor = self.stream.job.cursor(self.stream.lane, middle);
            let reaches_past = if self.stream.job.is_packed() && cursor.epoch != id.epoch {
                // The packs of the epochs in between are not computed for this comparison.
                cursor.epoch > id.epoch
            } else {
                let ranges = self.stream.job.ranges(cursor, self.stream.rank);
                ranges.last().is_some_and(|(epoch, range)| (*epoch, range.end) > (id.epoch, end))
            };
            if reaches_past { high = middle } else { low = middle + 1 }
        }
        // Only the last batch of an epoch can be empty. If any batch has a row, one of these two does.
        for index in low..count.min(low.saturating_add(2)) {
            let cursor = self.stream.job.cursor(self.stream.lane, index);
            if self.stream.job.is_packed() {
                self.order(cursor.epoch).await?;
            }
            let ranges = self.stream.job.ranges(cursor, self.stream.rank).into_iter();
            let is_past = |(epoch, range): &(u64, Range<u64>)| {
                !range.is_empty() && (*epoch, range.end) > (id.epoch, end)
            };
            let Some((epoch, range)) = ranges.into_iter().find(is_past) else { continue };
            let first = if epoch == id.epoch { range.start.max(end) } else { range.start };
            let window = self.order(epoch).await?.window_at(first);
            return Ok(Some(WindowId { epoch, window }));
        }
        Ok(None)
    }
}
