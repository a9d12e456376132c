//! Producer of the batches of one stream, in order.

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
use forebay_stall::{Moments, Stage};
use tokio::{sync::mpsc, time::timeout};

use crate::{
    Assembling, Config, Error, Frame, Job, Pool, Priority, RowRef, Submitted, View, WireBatch,
    activity::Activity,
    ahead::WindowsAhead,
    assemble,
    batches::{Gathered, Making, Stream},
    cpu::Need,
    forecast::Progress,
    label::Label,
    space::{Share, Space},
    window::{HeldWindow, WindowId, Windows},
};

/// Maximum memory for rows retained from earlier windows, as a multiple of the largest batch body.
const MAX_KEPT_ASIDE: u64 = 16;
/// Approximate overhead of a batch in bytes, besides its message.
const MESSAGE_BYTES: u64 = 1024;

/// Starts batches as long as the prefetch budget has space. Several batches are gathered concurrently.
pub(crate) struct Producer {
    stream: Stream,
    activity: Arc<Activity>,
    /// Sources of rows: the job's own dataset, then the other datasets of its mixture.
    parts: Vec<Feeder>,
    slabs: Slabs,
    pool: Pool,
    config: Config,
    space: Arc<Space>,
    /// Estimated bytes per row, or per group if groups are not packed, computed from footers. In a mixture, the largest
    /// of the datasets' means.
    footer_item_bytes: u64,
    /// Bytes per row or group in the last finished batch of full size; 0 before the first.
    item_bytes: Arc<AtomicU64>,
    sender: mpsc::UnboundedSender<Result<Making, Error>>,
}

impl Producer {
    pub(crate) fn new(
        stream: Stream,
        windows: &Arc<Windows>,
        pool: Pool,
        config: Config,
        sender: mpsc::UnboundedSender<Result<Making, Error>>,
    ) -> Self {
        let jobs = std::iter::once(&stream.job).chain(stream.job.mixed()).cloned().collect::<Vec<_>>();
        let footer_item_bytes = jobs.iter().map(|job| job.item_bytes()).max().unwrap_or(0);
        let (slabs, space) = (windows.slabs().clone(), windows.space().enter());
        let activity = Arc::clone(windows.activity());
        let feeder = |job: Arc<Job>| {
            let progress = Arc::new(windows.outlook().enter(&job, stream.rank, stream.lane));
            let (known, windows) = (Arc::clone(&progress), Arc::clone(windows));
            let part = Stream { job: Arc::clone(&job), ..stream.clone() };
            let windows = WindowsAhead::new(part, windows, known, pool.clone(), config.clone());
            Feeder { job, windows, progress }
        };
        let parts = jobs.into_iter().map(feeder).collect();
        let item_bytes = Arc::default();
        Self { stream, activity, parts, slabs, pool, config, space, footer_item_bytes, item_bytes, sender }
    }

    pub(crate) async fn run(mut self) {
        for index in 0..self.stream.job.batches(self.stream.lane) {
            let cursor = self.stream.job.cursor(self.stream.lane, index);
            let made = self.make(index, cursor).await;
            let failed = made.is_err();
            if self.sender.send(made).is_err() || failed {
                return;
            }
        }
    }

    /// Starts one batch once the prefetch budget has space for it.
    async fn make(&mut self, index: u64, cursor: Cursor) -> Result<Making, Error> {
        let items = self.stream.job.size(cursor, self.stream.rank);
        let share = Arc::new(self.share(items).await);
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
        let batch = self.gather(index, cursor, items, Arc::clone(&share)).await?;
        let (windows, seen) = (begun.elapsed(), self.stream.seen.take());
        Ok(Making { metadata, batch, begun, windows, seen, _share: share })
    }

    /// Reserves space for one batch of `items` rows or groups. If the consumer takes nothing for
    /// `slow_consumer_timeout`, the windows are released. Otherwise other streams could wait for memory that only this
    /// consumer can free.
    async fn share(&mut self, items: u64) -> Share {
        let item_bytes = self.item_bytes.load(Ordering::Relaxed).max(self.footer_item_bytes);
        let bytes = MESSAGE_BYTES.saturating_add(items.saturating_mul(item_bytes));
        let space = Arc::clone(&self.space);
        if let Ok(share) = timeout(self.config.slow_consumer_timeout, space.take(bytes)).await {
            return share;
        }
        self.parts.iter_mut().for_each(|part| part.windows.let_go());
        space.take(bytes).await
    }

    /// Starts to gather a batch of `items` rows or groups, which may come from several windows. No window is held while
    /// another one is loaded or waited for: rows of the earlier windows are retained instead.
    async fn gather(
        &mut self,
        index: u64,
        cursor: Cursor,
        items: u64,
        share: Arc<Share>,
    ) -> Result<Submitted<Gathered>, Error> {
        let max_bytes = self.config.max_batch_bytes;
        // A retained frame also keeps the rows of other batches in memory, which only their own reservations count.
        let max_held_bytes = if self.stream.job.is_one_run() { self.space.max_held_bytes() } else { 0 };
        let view = Arc::clone(self.stream.job.view());
        let grouped = self.stream.job.has_groups().then(|| MostRows::of(view.least_row_bytes(), max_bytes));
        let round = if self.parts.len() > 1 { self.stream.job.round() } else { Vec::new() };
        let mut gathering = Gathering { view, grouped, round, pieces: Vec::new() };
        for at in 0..self.parts.len() {
            if self.parts[at].job.is_packed() {
                // Packs are computed here on the pool, because that is slow.
                self.parts[at].windows.order(cursor.epoch).await?;
            }
            for (epoch, positions) in self.parts[at].job.ranges(cursor, self.stream.rank) {
                let mut start = positions.start;
                while start < positions.end {
                    let order = self.parts[at].windows.order(epoch).await?;
                    let id = WindowId { epoch, window: order.window_at(start) };
                    // Updates the forecast first, because the eviction that makes room for the window uses it.
                    self.parts[at].note(epoch, start, id, &order, &self.pool).await?;
                    let held = match self.parts[at].windows.held(id) {
                        Some(held) => held,
                        None => {
                            self.set_aside(&mut gathering, max_held_bytes).await?;
                            gathering.check_aside(max_bytes)?;
                            self.window(at, id, index).await?
                        }
                    };
                    let end = order.window(id.window).positions.end.min(positions.end);
                    let part = Part { order, held, positions: start..end, grouped };
                    gathering.pieces.push((at, Piece::Held(part)));
                    start = end;
                }
            }
        }
        for part in &mut self.parts {
            part.windows.follow(index).await?;
        }
        let asked = Assembling {
            hash: self.stream.job.train().content_hash.unwrap_or(true),
            max_bytes,
            max_held_bytes,
            least_rows: self.stream.job.least_rows(),
        };
        let (slabs, whole_size) = (self.slabs.clone(), self.stream.job.whole_size());
        let (item_bytes, faults) = (Arc::clone(&self.item_bytes), self.config.fault_injection);
        let (activity, watch, job) =
            (Arc::clone(&self.activity), self.stream.watch.clone(), Arc::clone(&self.stream.job));
        let (flow, need) = (self.stream.gathering, if share.is_only() { Need::Now } else { Need::Later });
        let gather = move || {
            let working = activity.begin_for(Stage::Gather, &watch);
            let begun = Instant::now();
            let assemble = faults.before_gather(|| gathering.assemble(job.label(), asked, &slabs));
            let (batch, label) = assemble()?;
            let body_bytes = batch.body.len() as u64;
            working.made(body_bytes, batch.rows);
            share.settle(MESSAGE_BYTES + batch.header.len() as u64 + body_bytes);
            // A short batch may be padded, so its mean size would be wrong.
            if items == whole_size {
                item_bytes.store(body_bytes / whole_size, Ordering::Relaxed);
            }
            let ended = Instant::now();
            metrics::histogram!("forebay_gather_duration_seconds").record(ended.duration_since(begun));
            Ok(Gathered { batch, label, begun, ended })
        };
        Ok(self.pool.run_when(need, flow, Priority::First, gather))
    }

    /// Loads the window `id` for the part at index `at` of the mixture.
    async fn window(&mut self, at: usize, id: WindowId, index: u64) -> Result<Arc<HeldWindow>, Error> {
        let (before, rest) = self.parts.split_at_mut(at);
        let Some((this, after)) = rest.split_first_mut() else {
            return Err(Error::Internal(format!("there is no part {at} of the mixture")));
        };
        let mut others: Vec<_> = before.iter_mut().chain(after).map(|part| &mut part.windows).collect();
        this.windows.window(id, index, &mut others).await
    }

    /// Retains the rows of all windows, so that `gathering` no longer holds a window.
    async fn set_aside(&self, gathering: &mut Gathering, max_held_bytes: u64) -> Result<(), Error> {
        for (at, piece) in std::mem::take(&mut gathering.pieces) {
            let aside = match piece {
                Piece::Aside(aside) => aside,
                Piece::Held(part) => {
                    let (view, slabs) = (Arc::clone(&gathering.view), self.slabs.clone());
                    let (activity, watch) = (Arc::clone(&self.activity), self.stream.watch.clone());
                    let aside = move || {
                        let _working = activity.begin_for(Stage::Gather, &watch);
                        part.set_aside(&view, max_held_bytes, &slabs)
                    };
                    self.pool.run_for(self.stream.gathering, Priority::First, aside).await?
                }
            };
            gathering.pieces.push((at, Piece::Aside(aside)));
        }
        Ok(())
    }
}

/// Source of rows: the job's own dataset or another dataset of its mixture.
struct Feeder {
    job: Arc<Job>,
    windows: WindowsAhead,
    progress: Arc<Progress>,
}

impl Feeder {
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
        pool.run(Priority::First, note).await
    }
}

/// Rows of a batch in order. Each piece is paired with the index of its part of the mixture.
struct Gathering {
    /// View of the job's own dataset. Rows of the other datasets have the same layout.
    view: Arc<View>,
    grouped: Option<MostRows>,
    /// Number of consecutive rows from each part in one round of a mixture.
    round: Vec<usize>,
    pieces: Vec<(usize, Piece)>,
}

/// Rows of a batch: in a window that is still held, or retained from one that was released.
enum Piece {
    Held(Part),
    Aside(Aside),
}

/// Rows retained after their window is released. The frame is a copy of the rows, or a frame of the window if the rows
/// are consecutive there.
struct Aside {
    frame: Arc<Frame>,
    rows: Range<u32>,
    /// Number of rows in each group, if rows are grouped.
    groups: Vec<u32>,
    /// Minimum number of bytes of a body with these rows.
    bytes: u64,
}

impl Gathering {
    /// Returns an error if the retained rows exceed the limit of a batch body or take too much memory until assembly.
    fn check_aside(&self, max_bytes: u64) -> Result<(), Error> {
        let asides = || {
            self.pieces.iter().filter_map(|(_, piece)| match piece {
                Piece::Aside(aside) => Some(aside),
                Piece::Held(_) => None,
            })
        };
        let body = asides().map(|aside| aside.bytes).fold(0, u64::saturating_add);
        // Each window retains its own distinct rows of a de-duplicated tensor, so memory use can exceed the body.
        let kept = asides().map(|aside| aside.frame.value_bytes()).fold(0, u64::saturating_add);
        if body > max_bytes || kept / MAX_KEPT_ASIDE > max_bytes {
            let rows = asides().map(|aside| aside.rows.len() as u64).sum();
            return Err(Error::batch_too_large(rows, body.max(kept), max_bytes));
        }
        Ok(())
    }

    /// Assembles the batch and computes the moments of its labels.
    fn assemble(
        self,
        label: Option<&Label>,
        asked: Assembling,
        slabs: &Slabs,
    ) -> Result<(WireBatch, Option<Moments>), Error> {
        let mut groups = Vec::new();
        let mut rows = vec![Vec::new(); self.round.len().max(1)];
        let mut frames = Vec::new();
        // Most batches come from one window, whose frames are used without building a list.
        let only = match self.pieces.as_slice() {
            [(_, Piece::Held(part))] => Some(Arc::clone(&part.held)),
            _ => None,
        };
        for (at, piece) in &self.pieces {
            let first_frame = frames.len() as u32;
            match piece {
                Piece::Aside(Aside { frame, rows: range, groups: lengths, .. }) => {
                    rows[*at].extend(range.clone().map(|row| RowRef { frame: first_frame, row }));
                    groups.extend(lengths);
                    frames.push(Arc::clone(frame));
                }
                Piece::Held(part) => {
                    part.rows(first_frame, &mut rows[*at], &mut groups)?;
                    if only.is_none() {
                        frames.extend(part.held.window().frames.iter().cloned());
                    }
                }
            }
        }
        let rows = interleaved(rows, &self.round);
        if let Some(limit) = self.grouped.filter(|limit| rows.len() as u64 > limit.rows) {
            let bytes = (rows.len() as u64).saturating_mul(limit.row_bytes);
            return Err(Error::batch_too_large(rows.len() as u64, bytes, limit.max_bytes));
        }
        let frames = only.as_ref().map_or(&frames[..], |held| &held.window().frames);
        let batch = assemble(&self.view, frames, &rows, asked, slabs)?;
        let label = label.map(|label| label.moments(&self.view, frames, &rows));
        if self.grouped.is_none() {
            return Ok((batch, label));
        }
        let ends = groups.iter().scan(0, |end, rows| {
            *end += rows;
            Some(*end)
        });
        Ok((WireBatch { group_offsets: std::iter::once(0).chain(ends).collect(), ..batch }, label))
    }
}

/// Interleaves the rows of a mixture: each round takes the number of rows in `round` from each part.
pub(crate) fn interleaved<T: Copy>(mut parts: Vec<Vec<T>>, round: &[usize]) -> Vec<T> {
    if parts.len() == 1 {
        return parts.pop().unwrap_or_default();
    }
    let mut rows = Vec::with_capacity(parts.iter().map(Vec::len).sum());
    let mut rounds: Vec<_> =
        parts.iter().zip(round).map(|(part, rows)| part.chunks((*rows).max(1))).collect();
    loop {
        let before = rows.len();
        rounds.iter_mut().filter_map(Iterator::next).for_each(|chunk| rows.extend_from_slice(chunk));
        if rows.len() == before {
            return rows;
        }
    }
}

/// Rows of a batch in one window.
struct Part {
    order: Arc<EpochOrder>,
    held: Arc<HeldWindow>,
    positions: Range<u64>,
    /// Row limit of the batch, if rows are grouped.
    grouped: Option<MostRows>,
}

/// Maximum number of rows per batch, with the sizes from which it was computed.
#[derive(Clone, Copy)]
struct MostRows {
    rows: u64,
    row_bytes: u64,
    max_bytes: u64,
}

impl MostRows {
    /// Computes the limit for rows of at least `row_bytes` bytes in a body of at most `max_bytes` bytes.
    fn of(row_bytes: u64, max_bytes: u64) -> Self {
        let row_bytes = row_bytes.max(1);
        Self { rows: (max_bytes / row_bytes).min(u64::from(u32::MAX)), row_bytes, max_bytes }
    }
}

impl Part {
    /// Appends the rows of the part to `rows`, and the length of each group to `groups` if rows are grouped.
    ///
    /// # Errors
    /// Returns [`Error::TooLarge`] if long groups exceed the row limit of a batch.
    fn rows(&self, first_frame: u32, rows: &mut Vec<RowRef>, groups: &mut Vec<u32>) -> Result<(), Error> {
        let mut locations: Vec<Location> = Vec::new();
        self.order.locate_range(self.positions.clone(), &mut locations);
        let window = self.held.window();
        let Some(limit) = self.grouped else {
            window.rows(&locations, first_frame, rows);
            return Ok(());
        };
        let count = rows.len() as u64 + window.rows_of_groups(&locations);
        if count > limit.rows {
            let bytes = count.saturating_mul(limit.row_bytes);
            return Err(Error::batch_too_large(count, bytes, limit.max_bytes));
        }
        window.groups(&locations, first_frame, rows, groups);
        Ok(())
    }

    /// Retains the rows independently of the window. References the frame if the rows are consecutive in one frame of
    /// at most `max_held_bytes` bytes; otherwise copies them.
    fn set_aside(&self, view: &View, max_held_bytes: u64, slabs: &Slabs) -> Result<Aside, Error> {
        let (mut rows, mut groups) = (Vec::new(), Vec::new());
        self.rows(0, &mut rows, &mut groups)?;
        let frames = &self.held.window().frames;
        let mut runs = RowRef::runs(&rows);
        if let (Some([first, others @ ..]), None) = (runs.next(), runs.next()) {
            let (frame, rows) = (&frames[first.frame as usize], others.len() + 1);
            if frame.weight() <= max_held_bytes {
                let bytes = rows as u64 * view.least_row_bytes();
                return Ok(Aside {
                    frame: Arc::clone(frame),
                    rows: first.row..first.row + rows as u32,
                    groups,
                    bytes,
                });
            }
        }
        let frame = Arc::new(Frame::select(view, frames, &rows, slabs)?);
        let bytes = frame.least_body_bytes(view);
        Ok(Aside { rows: 0..frame.rows() as u32, groups, bytes, frame })
    }
}
