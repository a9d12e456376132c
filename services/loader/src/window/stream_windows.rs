//! The windows of one stream: those in use and the prefetched ones.

use std::{collections::VecDeque, pin::pin, sync::Arc};

use forebay_plan::Cursor;

use super::{
    held::{HeldWindow, LoadError, SourceWindow},
    orders::Orders,
    progress::Waits,
    wanted::WantedWindow,
    window_set::{HeldSet, SourcePiece, WindowSet},
    windows::Windows,
};
use crate::{
    Config, Error, Job, Pool, Priority, activity::Watching, cache::forecast::StreamProgress, stream::Stream,
};

/// Maximum number of prefetched sets per partition that the rank reads.
const MAX_PREFETCHED: usize = 8;

/// Windows of one rank and lane, in the order of use.
pub(crate) struct StreamWindows {
    stream: Stream,
    /// The partitions that the rank reads of the job's own dataset, then those of each other dataset of its mixture.
    sources: Vec<Source>,
    held: Option<HeldSet>,
    /// Window sets after the held one, without a gap. All of them have memory.
    prefetched: VecDeque<HeldSet>,
    /// The set after the last prefetched one, if it is known.
    next: Option<Vec<WantedWindow>>,
    windows: Arc<Windows>,
    pool: Pool,
    config: Config,
}

/// Partition of a dataset that a stream reads.
struct Source {
    orders: Orders,
    progress: Arc<StreamProgress>,
}

impl StreamWindows {
    pub(crate) fn new(stream: Stream, windows: Arc<Windows>, pool: Pool, config: Config) -> Self {
        let jobs = std::iter::once(&stream.job).chain(&stream.job.mixed);
        let partitions = stream.job.partitions_of(stream.rank);
        let source = |job: &Arc<Job>, partition| Source {
            orders: Orders::new(Arc::clone(job), partition, (stream.rank, stream.lane), pool.clone()),
            progress: Arc::new(windows.forecast().enter(job, partition, stream.rank, stream.lane)),
        };
        let sources =
            jobs.flat_map(|job| partitions.clone().map(move |partition| source(job, partition))).collect();
        Self { stream, sources, held: None, prefetched: VecDeque::new(), next: None, windows, pool, config }
    }

    /// Returns the window sets that the batch at `cursor` needs, one after the other; none for an empty batch.
    pub(crate) async fn window_sets(&mut self, cursor: Cursor) -> Result<Vec<WindowSet>, Error> {
        let mut pieces = Vec::with_capacity(self.sources.len());
        for source in &mut self.sources {
            pieces.push(source.orders.pieces(cursor).await?);
        }
        Ok(WindowSet::of_batch(&pieces))
    }

    /// Returns the windows of `set` if they are held.
    pub(crate) fn held(&self, set: &WindowSet) -> Option<Vec<Arc<HeldWindow>>> {
        self.held.as_ref()?.windows_of(set)
    }

    /// Loads the windows of `set` in place of the held ones, for batch `index` of the lane. Concurrently prefetches the next
    /// sets. If a window turns out to be larger than its reservation, and there is no memory for the rest, releases all windows, and
    /// waits for the memory like for any other set.
    ///
    /// # Errors
    /// Returns [`Error::TooLarge`] if the windows can never fit, and the error of the first block that cannot be read.
    pub(crate) async fn load(&mut self, set: &WindowSet, index: u64) -> Result<(), Error> {
        let before = self.held.take();
        let prefetched = self.take_prefetched(set);
        let is_ready = prefetched.as_ref().is_some_and(HeldSet::is_loaded);
        let wanted = if is_ready { Vec::new() } else { self.wanted(set) };
        let _watching = self.watch(&wanted);
        let waits = self.stream.waits.begin();
        let mut held = match prefetched {
            Some(prefetched) => {
                drop(before);
                prefetched
            }
            None => {
                wait_for_memory(&waits, &wanted);
                self.acquire(set, &wanted, before).await?
            }
        };
        loop {
            let windows = held.windows.clone();
            waits.for_blocks(windows.iter().map(|window| window.loaded_blocks()));
            self.held = Some(held);
            let loading = async move {
                for window in &windows {
                    window.wait().await?;
                }
                Ok(())
            };
            match self.prefetch_until(loading, index).await {
                Ok(()) => return Ok(()),
                Err(LoadError::Failed(error)) => return Err(error),
                Err(LoadError::Understated) => {}
            }
            // A stream that waits for memory must not hold a window.
            self.release();
            wait_for_memory(&waits, &wanted);
            held = self.acquire(set, &wanted, None).await?;
        }
    }

    /// Returns the prefetched windows of `set`, and drops those before them.
    fn take_prefetched(&mut self, set: &WindowSet) -> Option<HeldSet> {
        while let Some(prefetched) = self.prefetched.pop_front() {
            if prefetched.windows_of(set).is_some() {
                return Some(prefetched);
            }
        }
        None
    }

    /// Acquires the windows of `set` and releases those of `before`. Windows in both sets stay held if there is free
    /// memory for the others. Otherwise
    /// the stream queues for memory, and then releases `before`. If the sets have windows in common, windows that only `before` has
    /// are released first.
    async fn acquire(
        &mut self,
        set: &WindowSet,
        wanted: &[WantedWindow],
        mut before: Option<HeldSet>,
    ) -> Result<HeldSet, Error> {
        self.next = None;
        self.note_loading(set);
        let mut kept = None;
        if let Some(before) = &mut before
            && before.keep_those_of(set)
        {
            kept = self.windows.try_acquire(wanted);
        }
        let windows = match kept {
            Some(windows) => windows,
            None => self.windows.acquire(wanted, before).await?,
        };
        Ok(HeldSet::new(wanted, windows, &[]))
    }

    /// Waits for `loading`, and prefetches sets concurrently if there is memory. A set is prefetched only after
    /// loading of every block of the previous set has started. Returns the first error of either.
    async fn prefetch_until(
        &mut self,
        loading: impl Future<Output = Result<(), LoadError>>,
        index: u64,
    ) -> Result<(), LoadError> {
        let mut loading = pin!(loading);
        loop {
            let prefetched = self.prefetched.len();
            self.prefetch(index).await?;
            let Some(last) = self.prefetched.back().or(self.held.as_ref()) else { break };
            if self.prefetched.len() == prefetched && last.all_started() {
                break;
            }
            let all_started = async {
                for window in &last.windows {
                    window.wait_for_start().await;
                }
            };
            tokio::select! {
                biased;
                loaded = &mut loading => return loaded,
                () = all_started => {}
            }
        }
        loading.await
    }

    /// Prefetches the next window sets that batch `index` of the lane or a later batch needs. Stops when there is no free
    /// memory. If another tenant waits for memory, and has less than its share, prefetched sets are released first.
    ///
    /// A set is started only after all blocks of the set before have been started. Blocks are therefore decoded in the
    /// order in which they are needed.
    pub(crate) async fn prefetch(&mut self, index: u64) -> Result<(), Error> {
        if self.yields() {
            return Ok(());
        }
        while let Some(last) = self.prefetched.back().or(self.held.as_ref()) {
            let bytes = self.prefetched.iter().map(|set| set.new_bytes).fold(0, u64::saturating_add);
            let enough = !self.prefetched.is_empty() && bytes >= self.config.window_prefetch_bytes;
            if enough || self.prefetched.len() >= self.max_prefetched() || !last.all_started() {
                return Ok(());
            }
            let ids = last.ids.clone();
            if self.next.is_none() {
                self.next = self.after(&ids, index).await?;
            }
            let Some(windows) = self.next.as_ref().and_then(|next| self.windows.try_acquire(next)) else {
                return Ok(());
            };
            let Some(wanted) = self.next.take() else { return Ok(()) };
            self.prefetched.push_back(HeldSet::new(&wanted, windows, &ids));
        }
        Ok(())
    }

    /// Releases prefetched sets, from the last one on, while another tenant waits for memory of which this one has more than its
    /// share. Stops at a set that is being loaded, because what was read of it would be lost. Returns true if the tenant still
    /// has more than its share; then nothing may be prefetched.
    fn yields(&mut self) -> bool {
        while self.should_yield() {
            if !self.prefetched.back().is_some_and(HeldSet::is_loaded) {
                return true;
            }
            self.prefetched.pop_back();
            self.next = None;
        }
        false
    }

    /// Returns true if another tenant waits for memory of which this one has more than its share.
    pub(crate) fn should_yield(&self) -> bool {
        self.windows.should_yield(self.stream.job.decode_flow.tenant())
    }

    /// Maximum number of prefetched sets. The next set usually has one new window, of one of the partitions.
    fn max_prefetched(&self) -> usize {
        MAX_PREFETCHED * self.stream.job.partitions_of(self.stream.rank).len()
    }

    /// Releases all windows. They are loaded again when they are needed.
    pub(crate) fn release(&mut self) {
        self.held = None;
        self.prefetched.clear();
        self.next = None;
    }

    /// Updates the position of this stream in the forecast, for the datasets from which `set` takes rows. The first
    /// update of an epoch is slow and runs on the pool.
    pub(crate) async fn note(&mut self, set: &WindowSet) -> Result<(), Error> {
        for (_, SourcePiece { source, piece, .. }) in set.taken() {
            let progress = &self.sources[*source].progress;
            let (epoch, position) = (piece.window.epoch, piece.positions.start);
            let window_start = piece.order.window(piece.window.window).positions.start;
            if !progress.is_new(epoch) {
                progress.reached(epoch, position, window_start, &piece.order);
                continue;
            }
            let (progress, order) = (Arc::clone(progress), Arc::clone(&piece.order));
            let note = move || {
                progress.reached(epoch, position, window_start, &order);
                Ok(())
            };
            self.pool.run(Priority::Interactive, note).await?;
        }
        Ok(())
    }

    /// Returns the windows of the first set after the windows `ids`, in batch `index` or a later one.
    async fn after(&mut self, ids: &[SourceWindow], index: u64) -> Result<Option<Vec<WantedWindow>>, Error> {
        let mut first: Option<u64> = None;
        for (source, id) in ids {
            let batch = self.sources[*source].orders.batch_after(*id, index).await?;
            first = first.into_iter().chain(batch).min();
        }
        let Some(batch) = first else { return Ok(None) };
        let sets = self.window_sets(self.stream.job.cursor(self.stream.lane, batch)).await?;
        let Some(set) = sets.iter().find(|set| set.is_after(ids)) else { return Ok(None) };
        self.note_loading(set);
        Ok(Some(self.wanted(set)))
    }

    fn wanted(&self, set: &WindowSet) -> Vec<WantedWindow> {
        let wanted = |of: &SourcePiece| {
            WantedWindow::new(self.sources[of.source].orders.job(), of.id(), &of.piece.order)
        };
        set.pieces().iter().map(wanted).collect()
    }

    /// Updates the forecast with windows that are being loaded.
    fn note_loading(&self, set: &WindowSet) {
        for SourcePiece { source, piece, .. } in set.pieces() {
            let end = piece.order.window(piece.window.window).positions.end;
            self.sources[*source].progress.loading(piece.window.epoch, end);
        }
    }

    /// Charges work for the blocks of `wanted` to this stream while the guard is held.
    fn watch(&self, wanted: &[WantedWindow]) -> Watching {
        let blocks = wanted.iter().flat_map(WantedWindow::block_ids);
        self.windows.activity().watch(&self.stream.watch, &self.stream.seen, blocks)
    }
}

/// Records that the stream waits for the memory of `wanted`.
fn wait_for_memory(waits: &Waits, wanted: &[WantedWindow]) {
    let blocks = wanted.iter().map(|window| window.blocks.len() as u64).sum();
    let bytes = wanted.iter().map(|window| window.estimated_bytes).fold(0, u64::saturating_add);
    waits.for_memory(blocks, bytes);
}
