//! Makes the batches of one stream, in order.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use forebay_cache::{Slabs, Weigh};
use forebay_plan::{Cursor, EpochOrder, Location};
use forebay_proto::v1::BatchMetadata;
use tokio::{sync::mpsc, time::timeout};

use crate::{
    Assembling, Config, Error, Frame, Job, Pool, Priority, RowRef, Submitted, View, WireBatch,
    ahead::WindowsAhead,
    assemble,
    batches::Making,
    forecast::Progress,
    space::{Share, Space},
    window::{HeldWindow, WindowId, Windows},
};

/// What a batch takes besides its message, about.
const MESSAGE_BYTES: u64 = 1024;

/// Makes batches for as long as there is space for them. Several are gathered at the same time.
pub(crate) struct Producer {
    job: Arc<Job>,
    rank: u32,
    lane: u32,
    windows: WindowsAhead,
    slabs: Slabs,
    pool: Pool,
    config: Config,
    space: Arc<Space>,
    progress: Arc<Progress>,
    /// Bytes of a row, or group, as the footers tell: the mean of the snapshot.
    footer_item_bytes: u64,
    /// Bytes of one in the whole batch that was finished last.
    item_bytes: Arc<AtomicU64>,
    sender: mpsc::UnboundedSender<Result<Making, Error>>,
}

impl Producer {
    pub(crate) fn new(
        job: Arc<Job>,
        rank: u32,
        lane: u32,
        windows: Arc<Windows>,
        pool: Pool,
        config: Config,
        sender: mpsc::UnboundedSender<Result<Making, Error>>,
    ) -> Self {
        let footer_item_bytes =
            job.view().least_row_bytes().max(job.snapshot_bytes() / job.epoch_items().max(1));
        let slabs = windows.slabs().clone();
        let (space, progress) =
            (windows.space().enter(), Arc::new(windows.outlook().enter(&job, rank, lane)));
        let windows = WindowsAhead::new(
            Arc::clone(&job),
            rank,
            lane,
            windows,
            Arc::clone(&progress),
            pool.clone(),
            config.clone(),
        );
        let item_bytes = Arc::default();
        Self {
            job,
            rank,
            lane,
            windows,
            slabs,
            pool,
            config,
            space,
            progress,
            footer_item_bytes,
            item_bytes,
            sender,
        }
    }

    pub(crate) async fn run(mut self) {
        for index in 0..self.job.batches(self.lane) {
            let cursor = self.job.cursor(self.lane, index);
            let made = self.make(index, cursor).await;
            let failed = made.is_err();
            if self.sender.send(made).is_err() || failed {
                return;
            }
        }
    }

    /// Starts to make one batch, once there is space for it.
    async fn make(&mut self, index: u64, cursor: Cursor) -> Result<Making, Error> {
        let positions = self.job.positions(cursor.step, self.rank);
        let share = Arc::new(self.share(positions.end - positions.start).await);
        let metadata = BatchMetadata {
            epoch: cursor.epoch,
            step: cursor.step,
            rank: self.rank.into(),
            rows: 0,
            position: positions.start,
            ..BatchMetadata::default()
        };
        let batch = self.gather(index, cursor.epoch, positions, Arc::clone(&share)).await?;
        Ok(Making { metadata, batch, _share: share })
    }

    /// Waits until one more batch, of so many rows or groups, may be ready. When the consumer takes nothing for a while, the windows
    /// are let go, so that nobody waits for memory that only this consumer could free.
    async fn share(&mut self, items: u64) -> Share {
        let item_bytes = self.item_bytes.load(Ordering::Relaxed).max(self.footer_item_bytes);
        let bytes = MESSAGE_BYTES.saturating_add(items.saturating_mul(item_bytes));
        let space = Arc::clone(&self.space);
        if let Ok(share) = timeout(self.config.stall_timeout, space.take(bytes)).await {
            return share;
        }
        self.windows.let_go();
        space.take(bytes).await
    }

    /// Starts to gather the batch of the rows at `positions`. They may lie in several windows, of which only
    /// one is held at a time: the rows of all but the last are set aside.
    async fn gather(
        &mut self,
        index: u64,
        epoch: u64,
        positions: Range<u64>,
        share: Arc<Share>,
    ) -> Result<Submitted<WireBatch>, Error> {
        let order = self.windows.order(epoch).await?;
        let max_bytes = self.config.max_batch_bytes;
        // Of a frame that is held on to, the rows of other batches are held, too, which only their own shares count.
        let max_held_bytes = if self.job.is_one_run() { self.space.max_held_bytes() } else { 0 };
        let (view, grouped) = (Arc::clone(self.job.view()), self.job.has_groups());
        let mut parts = Parts { view, grouped, aside: Vec::new(), last: None };
        let mut start = positions.start;
        while start < positions.end {
            let id = WindowId { epoch, window: order.window_at(start) };
            // First: what makes room for the window should know of it.
            self.note(epoch, start, id, &order).await?;
            let held = self.windows.window(id, index).await?;
            let end = order.window(id.window).positions.end.min(positions.end);
            let part = Part { order: Arc::clone(&order), held, positions: start..end, grouped };
            start = end;
            if start == positions.end {
                parts.last = Some(part);
                break;
            }
            let (view, slabs) = (Arc::clone(self.job.view()), self.slabs.clone());
            let aside = self.pool.run(Priority::First, move || part.set_aside(&view, max_held_bytes, &slabs));
            parts.aside.push(aside.await?);
            let bytes = parts.aside.iter().map(|aside| aside.bytes).sum();
            if bytes > max_bytes {
                return Err(Error::batch_too_large(positions.end - positions.start, bytes, max_bytes));
            }
        }
        let asked = Assembling {
            hash: self.job.train().hash.unwrap_or(true),
            max_bytes,
            max_held_bytes,
            least_rows: self.job.least_rows(),
        };
        let (slabs, batch_size) = (self.slabs.clone(), self.job.train().batch_size);
        let (item_bytes, items) = (Arc::clone(&self.item_bytes), positions.end - positions.start);
        Ok(self.pool.run(Priority::First, move || {
            let started = Instant::now();
            let batch = parts.assemble(asked, &slabs)?;
            let body_bytes = batch.body.len() as u64;
            share.settle(MESSAGE_BYTES + batch.header.len() as u64 + body_bytes);
            // A short one is padding for a good part.
            if items == batch_size {
                item_bytes.store(body_bytes / batch_size, Ordering::Relaxed);
            }
            metrics::histogram!("forebay_gather_duration_seconds").record(started.elapsed());
            Ok(batch)
        }))
    }

    /// Tells the forecast where this stream is; the first time in an epoch that takes a while.
    async fn note(&self, epoch: u64, start: u64, id: WindowId, order: &Arc<EpochOrder>) -> Result<(), Error> {
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
        self.pool.run(Priority::First, note).await
    }
}

/// The rows of a batch: those that were set aside, and those of the last of its windows.
struct Parts {
    view: Arc<View>,
    grouped: bool,
    aside: Vec<Aside>,
    last: Option<Part>,
}

/// Rows of a frame that outlives its window: a copy of some rows, or a frame of the window if they lie there one behind the
/// other.
struct Aside {
    frame: Arc<Frame>,
    rows: Range<u32>,
    /// Rows of each group, if they are grouped.
    groups: Vec<u32>,
    /// Bytes that a body of these rows has at least.
    bytes: u64,
}

impl Parts {
    fn assemble(self, asked: Assembling, slabs: &Slabs) -> Result<WireBatch, Error> {
        let (mut rows, mut groups) = (Vec::new(), Vec::new());
        let mut frames = Vec::with_capacity(self.aside.len());
        for (index, aside) in self.aside.into_iter().enumerate() {
            rows.extend(aside.rows.map(|row| RowRef { frame: index as u32, row }));
            groups.extend(aside.groups);
            frames.push(aside.frame);
        }
        let batch = match self.last {
            None => assemble(&self.view, &frames, &rows, asked, slabs),
            Some(last) => {
                last.rows(frames.len() as u32, &mut rows, &mut groups);
                let window = last.held.window();
                if frames.is_empty() {
                    assemble(&self.view, &window.frames, &rows, asked, slabs)
                } else {
                    frames.extend(window.frames.iter().cloned());
                    assemble(&self.view, &frames, &rows, asked, slabs)
                }
            }
        };
        if !self.grouped {
            return batch;
        }
        let ends = groups.iter().scan(0, |end, rows| {
            *end += rows;
            Some(*end)
        });
        Ok(WireBatch { group_offsets: std::iter::once(0).chain(ends).collect(), ..batch? })
    }
}

/// The rows of a batch that lie in one window.
struct Part {
    order: Arc<EpochOrder>,
    held: Arc<HeldWindow>,
    positions: Range<u64>,
    grouped: bool,
}

impl Part {
    /// Appends its rows, and how many each group has if they are grouped.
    fn rows(&self, first_frame: u32, rows: &mut Vec<RowRef>, groups: &mut Vec<u32>) {
        let mut locations: Vec<Location> = Vec::new();
        self.order.locate_range(self.positions.clone(), &mut locations);
        if self.grouped {
            self.held.window().groups(&locations, first_frame, rows, groups);
        } else {
            self.held.window().rows(&locations, first_frame, rows);
        }
    }

    /// Takes the rows out of the window, which is let go.
    fn set_aside(&self, view: &View, max_held_bytes: u64, slabs: &Slabs) -> Result<Aside, Error> {
        let (mut rows, mut groups) = (Vec::new(), Vec::new());
        self.rows(0, &mut rows, &mut groups);
        let frames = &self.held.window().frames;
        let mut runs = RowRef::runs(&rows);
        if let (Some([first, others @ ..]), None) = (runs.next(), runs.next()) {
            let (frame, rows) = (&frames[first.frame as usize], others.len() + 1);
            if frame.weight() <= max_held_bytes {
                let bytes = (rows * view.tail) as u64;
                return Ok(Aside {
                    frame: Arc::clone(frame),
                    rows: first.row..first.row + rows as u32,
                    groups,
                    bytes,
                });
            }
        }
        let frame = Arc::new(Frame::select(view, frames, &rows, slabs)?);
        Ok(Aside { rows: 0..frame.rows() as u32, groups, bytes: frame.weight(), frame })
    }
}
