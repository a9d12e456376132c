//! The windows of one stream: those in use and the prefetched ones.

use std::{collections::VecDeque, pin::pin, sync::Arc};

use forebay_plan::Cursor;

use super::{
    held::{HeldWindow, WindowId},
    orders::{Orders, Piece},
    window_set::{HeldSet, WindowSet},
    windows::{WantedWindow, Windows},
};
use crate::{
    Config, Error, Job, Pool, Priority, activity::Watching, cache::forecast::StreamProgress, stream::Stream,
};

/// Maximum number of prefetched sets.
const MAX_PREFETCHED: usize = 8;

/// Windows of one rank and lane, in the order of use.
pub(crate) struct WindowPrefetch {
    stream: Stream,
    /// The job's own dataset, then the other datasets of its mixture.
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

/// Dataset that a stream reads.
struct Source {
    orders: Orders,
    progress: Arc<StreamProgress>,
}

impl WindowPrefetch {
    pub(crate) fn new(stream: Stream, windows: Arc<Windows>, pool: Pool, config: Config) -> Self {
        let jobs = std::iter::once(&stream.job).chain(&stream.job.mixed);
        let source = |job: &Arc<Job>| Source {
            orders: Orders::new(Arc::clone(job), (stream.rank, stream.lane), pool.clone()),
            progress: Arc::new(windows.forecast().enter(job, stream.rank, stream.lane)),
        };
        let sources = jobs.map(source).collect();
        Self { stream, sources, held: None, prefetched: VecDeque::new(), next: None, windows, pool, config }
    }

    /// Divides the batch at `cursor` into sets. Returns none for an empty batch.
    pub(crate) async fn window_sets(&mut self, cursor: Cursor) -> Result<Vec<WindowSet>, Error> {
        let mut pieces = Vec::with_capacity(self.sources.len());
        for source in &mut self.sources {
            pieces.push(source.orders.pieces(cursor).await?);
        }
        Ok(WindowSet::of_batch(&pieces))
    }

    /// Returns the windows `ids` if they are held.
    pub(crate) fn held(&self, ids: &[WindowId]) -> Option<&[Arc<HeldWindow>]> {
        self.held.as_ref().filter(|held| held.ids == ids).map(|held| &held.windows[..])
    }

    /// Loads the windows of `set` in place of the held ones, for batch `index` of the lane. Concurrently prefetches the next
    /// sets.
    ///
    /// # Errors
    /// Returns [`Error::TooLarge`] if the windows can never fit, and the error of the first block that cannot be read.
    pub(crate) async fn load(&mut self, set: &WindowSet, index: u64) -> Result<(), Error> {
        let mut before = self.held.take();
        let mut prefetched = self.prefetched.pop_front();
        while prefetched.as_ref().is_some_and(|prefetched| prefetched.ids != set.ids) {
            prefetched = self.prefetched.pop_front();
        }
        let is_ready =
            prefetched.as_ref().is_some_and(|set| set.windows.iter().all(|window| window.is_loaded()));
        let wanted = if is_ready { Vec::new() } else { self.wanted(set) };
        let watching = self.watch(&wanted);
        let held = match prefetched {
            Some(prefetched) => prefetched,
            None => {
                self.next = None;
                self.note_loading(set.windows());
                if let Some(before) = &mut before {
                    let mut ids = before.ids.iter().zip(&set.ids);
                    before.windows.retain(|_| ids.next().is_some_and(|(before, now)| before == now));
                }
                let windows = match self.windows.try_acquire(&wanted) {
                    Some(windows) => windows,
                    None => {
                        before = None;
                        self.windows.acquire(&wanted).await?
                    }
                };
                HeldSet::new(&wanted, windows, &[])
            }
        };
        drop(before);
        let windows = held.windows.clone();
        self.held = Some(held);
        let mut loading = pin!(async {
            for window in &windows {
                window.wait().await?;
            }
            Ok(())
        });
        loop {
            let prefetched = self.prefetched.len();
            self.prefetch(index).await?;
            let last = self.prefetched.back().or(self.held.as_ref());
            let last: Vec<_> = last.map(|last| last.windows.clone()).unwrap_or_default();
            if self.prefetched.len() == prefetched && last.iter().all(|window| window.all_started()) {
                break;
            }
            // The next set is started as soon as this one has been.
            let all_started = async {
                for window in &last {
                    window.wait_for_start().await;
                }
            };
            tokio::select! {
                biased;
                loaded = &mut loading => return loaded,
                () = all_started => {}
            }
        }
        let loaded = loading.await;
        drop(watching);
        loaded
    }

    /// Prefetches the next window sets that batch `index` of the lane or a later batch needs. Stops when there is no free
    /// memory.
    ///
    /// A set is started only after all blocks of the set before have been started. Blocks are therefore decoded in the
    /// order in which they are needed.
    pub(crate) async fn prefetch(&mut self, index: u64) -> Result<(), Error> {
        while let Some(last) = self.prefetched.back().or(self.held.as_ref()) {
            let bytes = self.prefetched.iter().map(|set| set.new_bytes).fold(0, u64::saturating_add);
            let enough = !self.prefetched.is_empty() && bytes >= self.config.window_prefetch_bytes;
            let all_started = last.windows.iter().all(|window| window.all_started());
            if enough || self.prefetched.len() >= MAX_PREFETCHED || !all_started {
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

    /// Releases all windows. They are loaded again when they are needed.
    pub(crate) fn release(&mut self) {
        self.held = None;
        self.prefetched.clear();
        self.next = None;
    }

    /// Updates the position of this stream in the forecast, for the datasets from which `set` takes rows. The first
    /// update of an epoch is slow and runs on the pool.
    pub(crate) async fn note(&mut self, set: &WindowSet) -> Result<(), Error> {
        for (source, piece) in &set.rows {
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
    async fn after(&mut self, ids: &[WindowId], index: u64) -> Result<Option<Vec<WantedWindow>>, Error> {
        let mut first: Option<u64> = None;
        for (source, id) in self.sources.iter_mut().zip(ids) {
            let batch = source.orders.batch_after(*id, index).await?;
            first = first.into_iter().chain(batch).min();
        }
        let Some(batch) = first else { return Ok(None) };
        let sets = self.window_sets(self.stream.job.cursor(self.stream.lane, batch)).await?;
        let Some(set) = sets.iter().find(|set| set.is_after(ids)) else { return Ok(None) };
        self.note_loading(set.windows());
        Ok(Some(self.wanted(set)))
    }

    fn wanted(&self, set: &WindowSet) -> Vec<WantedWindow> {
        let pieces = self.sources.iter().zip(set.windows());
        pieces
            .map(|(source, piece)| WantedWindow::new(source.orders.job(), piece.window, &piece.order))
            .collect()
    }

    /// Updates the forecast with windows that are being loaded.
    fn note_loading(&self, windows: &[Piece]) {
        for (source, piece) in self.sources.iter().zip(windows) {
            let end = piece.order.window(piece.window.window).positions.end;
            source.progress.loading(piece.window.epoch, end);
        }
    }

    /// Charges work for the blocks of `wanted` to this stream while the guard is held.
    fn watch(&self, wanted: &[WantedWindow]) -> Watching {
        let blocks = wanted.iter().flat_map(WantedWindow::block_ids);
        self.windows.activity().watch(&self.stream.watch, &self.stream.seen, blocks)
    }
}
