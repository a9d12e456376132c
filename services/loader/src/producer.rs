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

/// So many times the largest body may be kept of the rows of one that lie in several windows.
const MAX_KEPT_ASIDE: u64 = 16;
/// What a batch takes besides its message, about.
const MESSAGE_BYTES: u64 = 1024;

/// Makes batches for as long as there is space for them. Several are gathered at the same time.
pub(crate) struct Producer {
    stream: Stream,
    activity: Arc<Activity>,
    /// The job itself, and the others of its mixture.
    parts: Vec<Feeder>,
    slabs: Slabs,
    pool: Pool,
    config: Config,
    space: Arc<Space>,
    /// Bytes of a row, or of a group that is not packed, as the footers tell: the mean of the snapshots.
    footer_item_bytes: u64,
    /// Bytes of one in the whole batch that was finished last.
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

    /// Starts to make one batch, once there is space for it.
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

    /// Waits until one more batch, of so many rows or groups, may be ready. When the consumer takes nothing for a while, the windows
    /// are let go, so that nobody waits for memory that only this consumer could free.
    async fn share(&mut self, items: u64) -> Share {
        let item_bytes = self.item_bytes.load(Ordering::Relaxed).max(self.footer_item_bytes);
        let bytes = MESSAGE_BYTES.saturating_add(items.saturating_mul(item_bytes));
        let space = Arc::clone(&self.space);
        if let Ok(share) = timeout(self.config.stall_timeout, space.take(bytes)).await {
            return share;
        }
        self.parts.iter_mut().for_each(|part| part.windows.let_go());
        space.take(bytes).await
    }

    /// Starts to gather a batch of so many rows or groups. They may lie in several windows. While another one is made or waited
    /// for, none is held: the rows of those before it are set aside.
    async fn gather(
        &mut self,
        index: u64,
        cursor: Cursor,
        items: u64,
        share: Arc<Share>,
    ) -> Result<Submitted<Gathered>, Error> {
        let max_bytes = self.config.max_batch_bytes;
        // Of a frame that is held on to, the rows of other batches are held, too, which only their own shares count.
        let max_held_bytes = if self.stream.job.is_one_run() { self.space.max_held_bytes() } else { 0 };
        let view = Arc::clone(self.stream.job.view());
        let grouped = self.stream.job.has_groups().then(|| MostRows::of(view.least_row_bytes(), max_bytes));
        let round = if self.parts.len() > 1 { self.stream.job.round() } else { Vec::new() };
        let mut gathering = Gathering { view, grouped, round, pieces: Vec::new() };
        for at in 0..self.parts.len() {
            if self.parts[at].job.is_packed() {
                // Cut into packs by a thread of the pool.
                self.parts[at].windows.order(cursor.epoch).await?;
            }
            for (epoch, positions) in self.parts[at].job.ranges(cursor, self.stream.rank) {
                let mut start = positions.start;
                while start < positions.end {
                    let order = self.parts[at].windows.order(epoch).await?;
                    let id = WindowId { epoch, window: order.window_at(start) };
                    // First: what makes room for the window should know of it.
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
            hash: self.stream.job.train().hash.unwrap_or(true),
            max_bytes,
            max_held_bytes,
            least_rows: self.stream.job.least_rows(),
        };
        let (slabs, whole_size) = (self.slabs.clone(), self.stream.job.whole_size());
        let (item_bytes, delays) = (Arc::clone(&self.item_bytes), self.config.delays);
        let (activity, watch, job) =
            (Arc::clone(&self.activity), self.stream.watch.clone(), Arc::clone(&self.stream.job));
        let (flow, need) = (self.stream.gathering, if share.is_only() { Need::Now } else { Need::Later });
        let gather = move || {
            let working = activity.begin_for(Stage::Gather, &watch);
            let begun = Instant::now();
            delays.before_gather();
            let (batch, label) = gathering.assemble(job.label(), asked, &slabs)?;
            let body_bytes = batch.body.len() as u64;
            working.made(body_bytes, batch.rows);
            share.settle(MESSAGE_BYTES + batch.header.len() as u64 + body_bytes);
            // A short one is padding for a good part.
            if items == whole_size {
                item_bytes.store(body_bytes / whole_size, Ordering::Relaxed);
            }
            let ended = Instant::now();
            metrics::histogram!("forebay_gather_duration_seconds").record(ended.duration_since(begun));
            Ok(Gathered { batch, label, begun, ended })
        };
        Ok(self.pool.run_when(need, flow, Priority::First, gather))
    }

    /// The window of one of the parts, which is loaded now.
    async fn window(&mut self, at: usize, id: WindowId, index: u64) -> Result<Arc<HeldWindow>, Error> {
        let (before, rest) = self.parts.split_at_mut(at);
        let Some((this, after)) = rest.split_first_mut() else {
            return Err(Error::Internal(format!("there is no part {at} of the mixture")));
        };
        let mut others: Vec<_> = before.iter_mut().chain(after).map(|part| &mut part.windows).collect();
        this.windows.window(id, index, &mut others).await
    }

    /// Takes the rows out of all windows, which are let go when their parts let them go, too.
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

/// Where rows come from: the job's own dataset, or another one of its mixture.
struct Feeder {
    job: Arc<Job>,
    windows: WindowsAhead,
    progress: Arc<Progress>,
}

impl Feeder {
    /// Tells the forecast where this stream is; the first time in an epoch that takes a while.
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

/// The rows of a batch, in order, each piece with the part of the mixture that it is of.
struct Gathering {
    /// Of the job's own dataset; rows of the others lie alike.
    view: Arc<View>,
    grouped: Option<MostRows>,
    /// In a mixture: how many rows of each part follow one another.
    round: Vec<usize>,
    pieces: Vec<(usize, Piece)>,
}

/// Rows of a window that is held, or of one that was.
enum Piece {
    Held(Part),
    Aside(Aside),
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

impl Gathering {
    /// Refuses a batch whose rows so far make too large a body, or are too much to keep until it is assembled.
    fn check_aside(&self, max_bytes: u64) -> Result<(), Error> {
        let asides = || {
            self.pieces.iter().filter_map(|(_, piece)| match piece {
                Piece::Aside(aside) => Some(aside),
                Piece::Held(_) => None,
            })
        };
        let body = asides().map(|aside| aside.bytes).fold(0, u64::saturating_add);
        // Of a tensor that is de-duplicated each window keeps the distinct rows of its own.
        let kept = asides().map(|aside| aside.frame.value_bytes()).fold(0, u64::saturating_add);
        if body > max_bytes || kept / MAX_KEPT_ASIDE > max_bytes {
            let rows = asides().map(|aside| aside.rows.len() as u64).sum();
            return Err(Error::batch_too_large(rows, body.max(kept), max_bytes));
        }
        Ok(())
    }

    /// The batch, and what its labels are like.
    fn assemble(
        self,
        label: Option<&Label>,
        asked: Assembling,
        slabs: &Slabs,
    ) -> Result<(WireBatch, Option<Moments>), Error> {
        let mut groups = Vec::new();
        let mut rows = vec![Vec::new(); self.round.len().max(1)];
        let mut frames = Vec::new();
        // As a rule there is one window, whose frames can be had as they are.
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

/// The rows of a mixture, in rounds of so many of each part.
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

/// The rows of a batch that lie in one window.
struct Part {
    order: Arc<EpochOrder>,
    held: Arc<HeldWindow>,
    positions: Range<u64>,
    /// How many rows there may be if they are grouped.
    grouped: Option<MostRows>,
}

/// How many rows a batch may have at most, and why.
#[derive(Clone, Copy)]
struct MostRows {
    rows: u64,
    row_bytes: u64,
    max_bytes: u64,
}

impl MostRows {
    /// Of which each has `row_bytes` at least, of `max_bytes` in all.
    fn of(row_bytes: u64, max_bytes: u64) -> Self {
        let row_bytes = row_bytes.max(1);
        Self { rows: (max_bytes / row_bytes).min(u64::from(u32::MAX)), row_bytes, max_bytes }
    }
}

impl Part {
    /// Appends its rows, and how many each group has if they are grouped.
    ///
    /// # Errors
    /// More rows than a batch may have, of groups that are longer than most.
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

    /// Takes the rows out of the window, which is let go.
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
