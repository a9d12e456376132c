//! Forecast of the next use of each block, from the orders and the pace of the running jobs.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use forebay_cache::Forecast;
use forebay_plan::EpochOrder;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use tokio::time::Instant;

use crate::{
    Job,
    cpu::off_io::{LongWork, assert_off_io_threads},
    frame::FrameKey,
};

/// Time for which an ended stream is expected to continue with its next epoch.
const LINGER: Duration = Duration::from_secs(600);
/// Maximum number of pairs of order and view that have only ended streams.
const MAX_LINGERING: usize = 64;
/// Weight of the newest batch in the moving average of the time per batch of a stream.
const NEWEST_WEIGHT: f64 = 0.2;
/// Time per batch of a stream before its second batch.
const FIRST_INTERVAL: Duration = Duration::from_millis(10);

/// Running and recently ended streams. Cheap to clone; clones share the streams.
#[derive(Clone)]
pub(crate) struct NextUse {
    shared: Arc<Shared>,
}

struct Shared {
    started: Instant,
    schedules: RwLock<Vec<Arc<ViewSchedule>>>,
}

/// Streams with the same order and view.
struct ViewSchedule {
    order: u128,
    view: u128,
    job: Arc<Job>,
    /// Starts of the windows of a partition, by partition and epoch.
    starts: Mutex<HashMap<(u32, u64), Arc<Starts>>>,
    streams: RwLock<Vec<Arc<Stream>>>,
}

/// Position and pace of one stream in one partition. Positions are those in the order of the partition.
struct Stream {
    partition: u32,
    /// Number of rows or groups of the partition in an epoch.
    items: u64,
    rank: u32,
    lane: u32,
    running: AtomicBool,
    epoch: AtomicU64,
    position: AtomicU64,
    /// Start of the window that contains the position.
    window_start: AtomicU64,
    /// Epoch and end of the last window that was or is being loaded.
    loading_epoch: AtomicU64,
    loading_end: AtomicU64,
    /// Time of the newest batch, in nanoseconds since the start of the forecast.
    made_at: AtomicU64,
    /// Mean time per batch, in nanoseconds.
    interval: AtomicU64,
    /// Number of rows of the partition consumed by all streams while this one makes one batch.
    rows_per_batch: u64,
    /// Window starts of the current epoch and of the next.
    window_starts: RwLock<[Option<Arc<Starts>>; 2]>,
}

/// Registration of a stream. When it is dropped, the stream counts as ended.
pub(crate) struct StreamProgress {
    forecast: NextUse,
    schedule: Arc<ViewSchedule>,
    stream: Arc<Stream>,
}

impl NextUse {
    pub(crate) fn new() -> Self {
        Self { shared: Arc::new(Shared { started: Instant::now(), schedules: RwLock::default() }) }
    }

    /// Registers the stream of a rank and lane in a partition. It replaces an ended one of the same partition, rank and lane.
    pub(crate) fn enter(&self, job: &Arc<Job>, partition: u32, rank: u32, lane: u32) -> StreamProgress {
        let (order, view) = (job.order_key(), job.view().key());
        let rows_per_batch = job.positions_per_step() * u64::from(job.lanes());
        let stream = Arc::new(Stream {
            partition,
            items: job.order.partitions.items_of(partition),
            rank,
            lane,
            running: AtomicBool::new(true),
            epoch: AtomicU64::new(job.train().epoch),
            position: AtomicU64::new(0),
            window_start: AtomicU64::new(0),
            loading_epoch: AtomicU64::new(job.train().epoch),
            loading_end: AtomicU64::new(0),
            made_at: AtomicU64::new(self.now()),
            interval: AtomicU64::new(FIRST_INTERVAL.as_nanos() as u64),
            rows_per_batch,
            window_starts: RwLock::default(),
        });
        let mut schedules = self.shared.schedules.write();
        self.remove_old(&mut schedules);
        let known =
            schedules.iter().find(|schedule| (schedule.order, schedule.view) == (order, view)).cloned();
        let schedule = known.unwrap_or_else(|| {
            let schedule = ViewSchedule {
                order,
                view,
                job: Arc::clone(job),
                starts: Mutex::default(),
                streams: RwLock::default(),
            };
            schedules.push(Arc::new(schedule));
            Arc::clone(schedules.last().expect("just pushed"))
        });
        // The lock on the schedules is still held; otherwise a schedule without streams could be removed.
        let mut streams = schedule.streams.write();
        let place = |stream: &Stream| (stream.partition, stream.rank, stream.lane);
        streams.retain(|other| other.is_running() || place(other) != (partition, rank, lane));
        streams.push(Arc::clone(&stream));
        drop((streams, schedules));
        StreamProgress { forecast: self.clone(), schedule, stream }
    }

    /// Removes jobs with sets of values whose streams have all ended, because a job keeps its sets in memory.
    pub(crate) fn forget_ended_with_sets(&self) {
        self.shared.schedules.write().retain(|schedule| {
            schedule.job.train().values.is_empty()
                || schedule.streams().iter().any(|stream| stream.is_running())
        });
    }

    /// Estimated size of the frames of all streamed views, over whole snapshots, in bytes.
    pub(crate) fn frame_bytes(&self) -> u64 {
        self.schedules()
            .iter()
            .map(|schedule| schedule.job.footprint.snapshot_bytes)
            .fold(0, u64::saturating_add)
    }

    /// True if the block is streamed through more than one view.
    pub(crate) fn is_shared(&self, block: u128) -> bool {
        let schedules = self.schedules();
        let mut views =
            schedules.iter().filter(|schedule| schedule.job.reader().block_ids().block(block).is_some());
        let first = views.next().map(|schedule| schedule.view);
        views.any(|schedule| Some(schedule.view) != first)
    }

    /// Nanoseconds until the next use of the block; `u64::MAX` if none is expected.
    fn next_use(&self, block: u128, tier: Tier) -> u64 {
        let now = self.now();
        let schedules = self.shared.schedules.read();
        let uses = schedules.iter().filter(|schedule| tier.serves(schedule));
        uses.filter_map(|schedule| schedule.next_use(block, tier, now)).min().unwrap_or(u64::MAX)
    }

    fn schedules(&self) -> Vec<Arc<ViewSchedule>> {
        self.shared.schedules.read().clone()
    }

    /// Removes streams that ended long ago, and the oldest ended schedules above the maximum number.
    fn remove_old(&self, schedules: &mut Vec<Arc<ViewSchedule>>) {
        let (now, linger) = (self.now(), LINGER.as_nanos() as u64);
        schedules.retain(|schedule| {
            let mut streams = schedule.streams.write();
            streams.retain(|stream| {
                stream.is_running() || now.saturating_sub(stream.made_at.load(Ordering::Relaxed)) < linger
            });
            !streams.is_empty()
        });
        let ended =
            |schedule: &Arc<ViewSchedule>| !schedule.streams().iter().any(|stream| stream.is_running());
        while schedules.iter().filter(|schedule| ended(schedule)).count() > MAX_LINGERING {
            let Some(oldest) = schedules.iter().position(ended) else { return };
            schedules.remove(oldest);
        }
    }

    fn now(&self) -> u64 {
        self.shared.started.elapsed().as_nanos() as u64
    }
}

impl Forecast<FrameKey> for NextUse {
    fn next_use(&self, key: &FrameKey) -> u64 {
        self.next_use(key.block, Tier::Memory { view: key.view })
    }
}

impl Forecast<u128> for NextUse {
    fn next_use(&self, block: &u128) -> u64 {
        self.next_use(*block, Tier::Disk)
    }
}

/// Cache tier for which a use counts.
#[derive(Clone, Copy)]
enum Tier {
    /// Frames of one view. Blocks of the current window are in use.
    Memory { view: u128 },
    /// Columns, which any view can use. Blocks of windows that are loaded or loading were already read.
    Disk,
}

impl Tier {
    fn serves(self, schedule: &ViewSchedule) -> bool {
        match self {
            Self::Memory { view } => schedule.view == view,
            Self::Disk => true,
        }
    }
}

impl StreamProgress {
    /// Records that a window is being loaded, after all earlier ones.
    pub(crate) fn loading(&self, epoch: u64, window_end: u64) {
        self.stream.loading_epoch.store(epoch, Ordering::Relaxed);
        self.stream.loading_end.store(window_end, Ordering::Relaxed);
    }

    /// Records that the batch at `position` of the epoch of `order` is being made, in the window that begins at
    /// `window_start`. O(blocks) at the beginning of an epoch.
    pub(crate) fn reached(&self, epoch: u64, position: u64, window_start: u64, order: &EpochOrder) {
        let stream = &self.stream;
        let now = self.forecast.now();
        let took = now.saturating_sub(stream.made_at.swap(now, Ordering::Relaxed));
        let mean = stream.interval.load(Ordering::Relaxed) as f64;
        stream.interval.store((mean + NEWEST_WEIGHT * (took as f64 - mean)) as u64, Ordering::Relaxed);
        stream.position.store(position, Ordering::Relaxed);
        stream.window_start.store(window_start, Ordering::Relaxed);
        let is_new = stream.window_starts.read()[0].is_none();
        if stream.epoch.swap(epoch, Ordering::Relaxed) != epoch || is_new {
            let partition = stream.partition;
            let window_starts = [
                Some(self.schedule.starts_of((partition, epoch), || Starts::of(&self.schedule.job, order))),
                self.schedule.next_starts(partition, epoch),
            ];
            *stream.window_starts.write() = window_starts;
        }
    }

    /// True if [`Self::reached`] will compute the window starts of a new epoch.
    pub(crate) fn is_new(&self, epoch: u64) -> bool {
        self.stream.epoch.load(Ordering::Relaxed) != epoch || self.stream.window_starts.read()[0].is_none()
    }
}

impl Drop for StreamProgress {
    fn drop(&mut self) {
        self.stream.running.store(false, Ordering::Relaxed);
    }
}

impl ViewSchedule {
    fn next_use(&self, block: u128, tier: Tier, now: u64) -> Option<u64> {
        let block = self.job.reader().block_ids().block(block)?;
        self.streams().iter().filter_map(|stream| stream.next_use(block, tier, now)).min()
    }

    fn streams(&self) -> RwLockReadGuard<'_, Vec<Arc<Stream>>> {
        self.streams.read()
    }

    /// Window starts of the epoch after `epoch`. The next epoch counts even if it was not requested yet, because
    /// trainers often request one epoch at a time.
    fn next_starts(&self, partition: u32, epoch: u64) -> Option<Arc<Starts>> {
        let next = epoch.checked_add(1)?;
        let starts = || Starts::of(&self.job, &self.job.order.epoch(partition, next));
        Some(self.starts_of((partition, next), starts))
    }

    fn starts_of(&self, of: (u32, u64), make: impl FnOnce() -> Starts) -> Arc<Starts> {
        if let Some(known) = self.starts.lock().get(&of) {
            return Arc::clone(known);
        }
        let made = Arc::new(make());
        let mut starts = self.starts.lock();
        // Only the starts that a stream uses are kept, and the newest.
        starts.retain(|_, starts| Arc::strong_count(starts) > 1);
        Arc::clone(starts.entry(of).or_insert(made))
    }
}

impl Stream {
    fn is_running(&self) -> bool {
        self.running.load(Ordering::Relaxed)
    }

    /// Nanoseconds until this stream needs the block, or `None` if it has not begun or no use is expected.
    fn next_use(&self, block: u32, tier: Tier, now: u64) -> Option<u64> {
        let window_starts = self.window_starts.read();
        let [Some(this), next] = &*window_starts else { return None };
        // The blocks of a partition are the same in every epoch.
        let (this_start, rows) = (this.of_block(block)?, self.items);
        let epoch = self.epoch.load(Ordering::Relaxed);
        // Earlier uses are in the past for this tier.
        let (from_epoch, from) = match tier {
            Tier::Memory { .. } => (epoch, self.window_start.load(Ordering::Relaxed)),
            Tier::Disk => {
                (self.loading_epoch.load(Ordering::Relaxed), self.loading_end.load(Ordering::Relaxed))
            }
        };
        let is_ahead = |epoch: u64, start: u64| (epoch, start) >= (from_epoch, from);
        let use_at = if is_ahead(epoch, this_start) {
            this_start
        } else {
            match next.as_ref().and_then(|next| next.of_block(block)) {
                Some(next_start) if is_ahead(epoch + 1, next_start) => rows + next_start,
                Some(_) => 2 * rows,
                None => return None,
            }
        };
        let rows_ahead = use_at.saturating_sub(self.position.load(Ordering::Relaxed));
        // The time since the last batch counts as the current interval if it is longer than the mean.
        let waited = now.saturating_sub(self.made_at.load(Ordering::Relaxed));
        let interval = self.interval.load(Ordering::Relaxed).max(waited);
        let batches = rows_ahead / self.rows_per_batch.max(1);
        Some(u64::try_from(u128::from(batches) * u128::from(interval)).unwrap_or(u64::MAX - 1))
    }
}

/// Position at which the first window of a partition that reads a block begins, for each of its blocks.
struct Starts(Box<[(u32, u64)]>);

impl Starts {
    fn of(job: &Job, order: &EpochOrder) -> Self {
        assert_off_io_threads(LongWork::WindowStarts);
        let windows = (0..order.windows()).map(|window| order.window(window));
        let starts = windows.flat_map(|window| {
            let start = window.positions.start;
            let rows = window.blocks.iter().flat_map(|block| job.rows.of_frame(*block));
            rows.map(move |rows| (rows.block, start))
        });
        let mut starts: Vec<_> = starts.collect();
        starts.sort_unstable();
        starts.dedup_by_key(|(block, _)| *block);
        Self(starts.into())
    }

    /// Start of the window that reads `block`; `None` if the partition does not read it.
    fn of_block(&self, block: u32) -> Option<u64> {
        // Without partitions, blocks are at the index of their number.
        let at = match self.0.get(block as usize) {
            Some((found, _)) if *found == block => block as usize,
            _ => self.0.binary_search_by_key(&block, |(block, _)| *block).ok()?,
        };
        Some(self.0[at].1)
    }
}

#[cfg(test)]
mod tests;
