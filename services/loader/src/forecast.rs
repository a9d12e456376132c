//! When each block is needed next: the orders of the running jobs are known, and so is their pace.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use forebay_cache::Forecast;
use forebay_plan::EpochOrder;
use tokio::time::Instant;

use crate::{Job, window::FrameKey};

/// A stream that has ended is expected to go on with its next epoch for so long.
const LINGER: Duration = Duration::from_secs(600);
/// Views whose streams have ended are remembered up to this number.
const MAX_LINGERING: usize = 64;
/// Share of the newest batch in a stream's mean time a batch.
const NEWEST: f64 = 0.2;
/// Pace of a stream before its second batch.
const FIRST_INTERVAL: Duration = Duration::from_millis(10);

/// The running streams, and those that have ended lately. Cheap to clone; clones share them.
#[derive(Clone)]
pub(crate) struct Outlook {
    shared: Arc<Shared>,
}

struct Shared {
    started: Instant,
    courses: RwLock<Vec<Arc<Course>>>,
}

/// The streams of one order through one view.
struct Course {
    order: u64,
    view: u128,
    job: Arc<Job>,
    /// By epoch: at which position the window of each block begins.
    starts: Mutex<HashMap<u64, Arc<[u64]>>>,
    streams: RwLock<Vec<Arc<Stream>>>,
}

/// Where one stream is, and how fast.
struct Stream {
    rank: u32,
    lane: u32,
    running: AtomicBool,
    epoch: AtomicU64,
    position: AtomicU64,
    /// Where the window of that position begins.
    window_start: AtomicU64,
    /// Epoch and end of the last window that was or is being loaded.
    loading_epoch: AtomicU64,
    loading_end: AtomicU64,
    /// Of the newest batch, in nanoseconds since the start.
    made_at: AtomicU64,
    /// Mean nanoseconds a batch.
    interval: AtomicU64,
    /// Rows of the epoch that pass while this stream makes one batch.
    rows_a_batch: u64,
    /// The starts of this epoch and of the next.
    at_hand: RwLock<[Option<Arc<[u64]>>; 2]>,
}

/// A stream's entry in the outlook; it lingers when this is dropped.
pub(crate) struct Progress {
    outlook: Outlook,
    course: Arc<Course>,
    stream: Arc<Stream>,
}

impl Outlook {
    pub(crate) fn new() -> Self {
        Self { shared: Arc::new(Shared { started: Instant::now(), courses: RwLock::default() }) }
    }

    /// Enters the stream of a rank and lane. It replaces the one of the same rank and lane that has ended.
    pub(crate) fn enter(&self, job: &Arc<Job>, rank: u32, lane: u32) -> Progress {
        let (order, view) = (job.windows_key(), job.view().key());
        let rows_a_batch = job.positions_a_step() * u64::from(job.lanes());
        let stream = Arc::new(Stream {
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
            rows_a_batch,
            at_hand: RwLock::default(),
        });
        let mut courses = self.shared.courses.write().unwrap_or_else(PoisonError::into_inner);
        self.forget_old(&mut courses);
        let known = courses.iter().find(|course| (course.order, course.view) == (order, view)).cloned();
        let course = known.unwrap_or_else(|| {
            let course = Course {
                order,
                view,
                job: Arc::clone(job),
                starts: Mutex::default(),
                streams: RwLock::default(),
            };
            courses.push(Arc::new(course));
            Arc::clone(courses.last().expect("just pushed"))
        });
        // Under the lock of the courses: one without streams is forgotten.
        let mut streams = course.streams.write().unwrap_or_else(PoisonError::into_inner);
        streams.retain(|other| other.is_running() || (other.rank, other.lane) != (rank, lane));
        streams.push(Arc::clone(&stream));
        drop((streams, courses));
        Progress { outlook: self.clone(), course, stream }
    }

    /// Estimated bytes of the frames of all views that are streamed, whole snapshots.
    pub(crate) fn frame_bytes(&self) -> u64 {
        self.courses().iter().map(|course| course.job.snapshot_bytes()).fold(0, u64::saturating_add)
    }

    /// Whether the block is streamed through more than one view.
    pub(crate) fn is_shared(&self, block: u128) -> bool {
        let courses = self.courses();
        let mut views =
            courses.iter().filter(|course| course.job.reader().block_ids().block(block).is_some());
        let first = views.next().map(|course| course.view);
        views.any(|course| Some(course.view) != first)
    }

    /// Nanoseconds until the block is needed.
    fn next_use(&self, block: u128, tier: Tier) -> u64 {
        let now = self.now();
        let courses = self.shared.courses.read().unwrap_or_else(PoisonError::into_inner);
        let uses = courses.iter().filter(|course| tier.serves(course));
        uses.filter_map(|course| course.next_use(block, tier, now)).min().unwrap_or(u64::MAX)
    }

    fn courses(&self) -> Vec<Arc<Course>> {
        self.shared.courses.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Forgets what has ended long ago, and the oldest of what has ended if that is too much.
    fn forget_old(&self, courses: &mut Vec<Arc<Course>>) {
        let (now, linger) = (self.now(), LINGER.as_nanos() as u64);
        courses.retain(|course| {
            let mut streams = course.streams.write().unwrap_or_else(PoisonError::into_inner);
            streams.retain(|stream| {
                stream.is_running() || now.saturating_sub(stream.made_at.load(Ordering::Relaxed)) < linger
            });
            !streams.is_empty()
        });
        let ended = |course: &Arc<Course>| !course.streams().iter().any(|stream| stream.is_running());
        while courses.iter().filter(|course| ended(course)).count() > MAX_LINGERING {
            let Some(oldest) = courses.iter().position(ended) else { return };
            courses.remove(oldest);
        }
    }

    fn now(&self) -> u64 {
        self.shared.started.elapsed().as_nanos() as u64
    }
}

impl Forecast<FrameKey> for Outlook {
    fn next_use(&self, key: &FrameKey) -> u64 {
        self.next_use(key.block, Tier::Memory { view: key.view })
    }
}

impl Forecast<u128> for Outlook {
    fn next_use(&self, block: &u128) -> u64 {
        self.next_use(*block, Tier::Disk)
    }
}

/// For which tier a use counts.
#[derive(Clone, Copy)]
enum Tier {
    /// Frames of one view; the windows at hand are in use.
    Memory { view: u128 },
    /// Columns, which serve any view; what is in the windows at hand was read already.
    Disk,
}

impl Tier {
    fn serves(self, course: &Course) -> bool {
        match self {
            Self::Memory { view } => course.view == view,
            Self::Disk => true,
        }
    }
}

impl Progress {
    /// Notes that a window is being loaded, the last one so far.
    pub(crate) fn loading(&self, epoch: u64, window_end: u64) {
        self.stream.loading_epoch.store(epoch, Ordering::Relaxed);
        self.stream.loading_end.store(window_end, Ordering::Relaxed);
    }

    /// Notes that the batch at `position` of the epoch of `order` is being made, in the window that begins at
    /// `window_start`. O(blocks) at the beginning of an epoch.
    pub(crate) fn reached(&self, epoch: u64, position: u64, window_start: u64, order: &EpochOrder) {
        let stream = &self.stream;
        let now = self.outlook.now();
        let took = now.saturating_sub(stream.made_at.swap(now, Ordering::Relaxed));
        let mean = stream.interval.load(Ordering::Relaxed) as f64;
        stream.interval.store((mean + NEWEST * (took as f64 - mean)) as u64, Ordering::Relaxed);
        stream.position.store(position, Ordering::Relaxed);
        stream.window_start.store(window_start, Ordering::Relaxed);
        let is_new = stream.at_hand.read().unwrap_or_else(PoisonError::into_inner)[0].is_none();
        if stream.epoch.swap(epoch, Ordering::Relaxed) != epoch || is_new {
            let at_hand = [
                Some(self.course.starts_of(epoch, || starts(&self.course.job, order))),
                self.course.next_starts(epoch),
            ];
            *stream.at_hand.write().unwrap_or_else(PoisonError::into_inner) = at_hand;
        }
    }

    /// Whether [`Self::reached`] will look at a new epoch.
    pub(crate) fn is_new(&self, epoch: u64) -> bool {
        self.stream.epoch.load(Ordering::Relaxed) != epoch
            || self.stream.at_hand.read().unwrap_or_else(PoisonError::into_inner)[0].is_none()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.stream.running.store(false, Ordering::Relaxed);
    }
}

impl Course {
    fn next_use(&self, block: u128, tier: Tier, now: u64) -> Option<u64> {
        let block = self.job.reader().block_ids().block(block)?;
        let rows = self.job.epoch_items();
        self.streams().iter().filter_map(|stream| stream.next_use(block, rows, tier, now)).min()
    }

    fn streams(&self) -> std::sync::RwLockReadGuard<'_, Vec<Arc<Stream>>> {
        self.streams.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The epoch after `epoch`, whether it was asked for yet or not: a trainer that asks epoch by epoch will.
    fn next_starts(&self, epoch: u64) -> Option<Arc<[u64]>> {
        let next = epoch.checked_add(1)?;
        Some(self.starts_of(next, || starts(&self.job, &self.job.order(next))))
    }

    fn starts_of(&self, epoch: u64, make: impl FnOnce() -> Arc<[u64]>) -> Arc<[u64]> {
        if let Some(known) = self.starts.lock().unwrap_or_else(PoisonError::into_inner).get(&epoch) {
            return Arc::clone(known);
        }
        let made = make();
        let mut starts = self.starts.lock().unwrap_or_else(PoisonError::into_inner);
        // Only those that a stream holds are worth keeping, and the newest.
        starts.retain(|_, starts| Arc::strong_count(starts) > 1);
        Arc::clone(starts.entry(epoch).or_insert(made))
    }
}

impl Stream {
    fn is_running(&self) -> bool {
        self.running.load(Ordering::Relaxed)
    }

    /// Nanoseconds until this stream needs the block; `None` while it has not begun.
    fn next_use(&self, block: u32, rows: u64, tier: Tier, now: u64) -> Option<u64> {
        let at_hand = self.at_hand.read().unwrap_or_else(PoisonError::into_inner);
        let [Some(this), next] = &*at_hand else { return None };
        let start = |starts: &[u64]| starts.get(block as usize).copied().unwrap_or(rows);
        let epoch = self.epoch.load(Ordering::Relaxed);
        // Uses before this one are past, as far as the tier goes.
        let (from_epoch, from) = match tier {
            Tier::Memory { .. } => (epoch, self.window_start.load(Ordering::Relaxed)),
            Tier::Disk => {
                (self.loading_epoch.load(Ordering::Relaxed), self.loading_end.load(Ordering::Relaxed))
            }
        };
        let is_ahead = |epoch: u64, start: u64| (epoch, start) >= (from_epoch, from);
        let this_start = start(this);
        let use_at = if is_ahead(epoch, this_start) {
            this_start
        } else {
            match next.as_ref().map(|next| start(next)) {
                Some(next_start) if is_ahead(epoch + 1, next_start) => rows + next_start,
                Some(_) => 2 * rows,
                None => return None,
            }
        };
        let rows_ahead = use_at.saturating_sub(self.position.load(Ordering::Relaxed));
        // Who has taken nothing for a while is taken to go on as slowly.
        let waited = now.saturating_sub(self.made_at.load(Ordering::Relaxed));
        let interval = self.interval.load(Ordering::Relaxed).max(waited);
        let batches = rows_ahead / self.rows_a_batch.max(1);
        Some(u64::try_from(u128::from(batches) * u128::from(interval)).unwrap_or(u64::MAX - 1))
    }
}

/// At which position the first window begins for which each block is read; of blocks without rows at the end.
fn starts(job: &Job, order: &EpochOrder) -> Arc<[u64]> {
    let windows = (0..order.windows()).map(|window| order.window(window));
    let mut starts: Vec<u64> = Vec::new();
    for window in windows {
        for piece in window.blocks.iter().flat_map(|block| job.pieces(*block)) {
            let block = piece.block as usize;
            if starts.len() <= block {
                starts.resize(block + 1, order.items());
            }
            starts[block] = starts[block].min(window.positions.start);
        }
    }
    starts.into()
}

#[cfg(test)]
mod tests;
