//! Tracking of the work in flight: stage, block and the streams that wait for it.

use std::{
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use dashmap::DashMap;
use forebay_stall::{Lane, Stage};
use futures::FutureExt;
use parking_lot::{Mutex, MutexGuard};

/// Work in flight in a loader, by stage and block.
///
/// A block is read and decoded once for all streams that need it. Its work is therefore charged to every stream that
/// waits for a window with the block.
#[derive(Default)]
pub(crate) struct Activity {
    /// Blocks that have work in flight or streams that wait for them.
    blocks: DashMap<u128, Block>,
    totals: [Mutex<Totals>; Stage::ALL.len()],
    /// Number of blocks that wait for memory.
    waiting: AtomicUsize,
    /// Operations on blocks that are in flight, by purpose.
    in_flight: [AtomicUsize; Purpose::ALL.len()],
}

#[derive(Default)]
struct Block {
    work: [u32; Stage::ALL.len()],
    watchers: Vec<Watcher>,
}

struct Watcher {
    lane: Lane,
    seen: Arc<Seen>,
    since: Instant,
}

/// Reason why a block is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Loads rows into a frame or to the disk cache, for streams and for loading on request.
    Window,
    /// Counts or locates rows and groups, for a filter or groups.
    Count,
    /// Samples the mean of the labels.
    Label,
    /// Adds keys to an index.
    Index,
}

impl Purpose {
    /// All purposes, in the order of their discriminants.
    pub const ALL: [Self; 4] = [Self::Window, Self::Count, Self::Label, Self::Index];

    /// Returns the name of the purpose in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Window => "window",
            Self::Count => "count",
            Self::Label => "label",
            Self::Index => "index",
        }
    }
}

/// Work done for a stream while it waited, as one time span per stage. A span starts when the first operation began,
/// but not before the stream began to wait. It ends when the last operation ended.
#[derive(Debug, Default)]
pub(crate) struct Seen(Mutex<[Option<(Instant, Instant)>; Stage::ALL.len()]>);

impl Seen {
    /// Returns the spans recorded since the last call, and clears them.
    pub(crate) fn take(&self) -> Vec<(Stage, Instant, Instant)> {
        let mut seen = self.0.lock();
        let took = |stage: Stage| seen[stage as usize].take().map(|(start, end)| (stage, start, end));
        Stage::ALL.into_iter().filter_map(took).collect()
    }

    fn note(&self, stage: Stage, start: Instant, end: Instant) {
        let seen = &mut self.0.lock()[stage as usize];
        *seen = Some(seen.map_or((start, end), |(first, last)| (first.min(start), last.max(end))));
    }
}

/// Work of a stage since the loader started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StageWork {
    /// Number of operations in flight.
    pub active: usize,
    /// Sum of the durations of all operations.
    pub busy: Duration,
    /// Time during which at least one operation was in flight.
    pub at_work: Duration,
    /// Number of bytes produced.
    pub bytes: u64,
    /// Number of rows produced; 0 for storage, where rows are not known.
    pub rows: u64,
}

#[derive(Default)]
struct Totals {
    work: StageWork,
    /// Time of the last change of `active`.
    changed: Option<Instant>,
}

impl Totals {
    fn step(&mut self, now: Instant, active: usize) {
        if let Some(changed) = self.changed {
            let elapsed = now.saturating_duration_since(changed);
            self.work.busy += elapsed * u32::try_from(self.work.active).unwrap_or(u32::MAX);
            if self.work.active > 0 {
                self.work.at_work += elapsed;
            }
        }
        self.changed = Some(now);
        self.work.active = active;
    }
}

impl Activity {
    /// Records an operation on a block, until the returned guard is dropped. For [`Purpose::Window`] its time is
    /// charged to the streams that wait for the block; no stream waits for the other purposes.
    pub(crate) fn begin(self: &Arc<Self>, stage: Stage, purpose: Purpose, block: u128) -> Working {
        self.in_flight[purpose as usize].fetch_add(1, Ordering::Relaxed);
        if purpose != Purpose::Window {
            return self.start(stage, Target::Unwatched(purpose));
        }
        let mut entry = self.blocks.entry(block).or_default();
        entry.work[stage as usize] += 1;
        entry.watchers.iter().for_each(|watcher| watcher.lane.begin(stage));
        drop(entry);
        self.start(stage, Target::Block(block))
    }

    /// Records an operation for one stream, until the returned guard is dropped.
    pub(crate) fn begin_for(self: &Arc<Self>, stage: Stage, lane: &Lane) -> Working {
        lane.begin(stage);
        self.start(stage, Target::Lane(lane.clone()))
    }

    /// Charges work for these blocks to this stream and records it in `seen`, until the returned guard is dropped.
    pub(crate) fn watch(
        self: &Arc<Self>,
        lane: &Lane,
        seen: &Arc<Seen>,
        blocks: impl Iterator<Item = u128>,
    ) -> Watching {
        let (since, mut watched) = (Instant::now(), Vec::new());
        if lane.is_attached() {
            for block in blocks {
                let mut entry = self.blocks.entry(block).or_default();
                for_each_operation(&entry.work, |stage| lane.begin(stage));
                entry.watchers.push(Watcher { lane: lane.clone(), seen: Arc::clone(seen), since });
                watched.push(block);
            }
        }
        Watching { activity: Arc::clone(self), lane: lane.clone(), blocks: watched }
    }

    /// Counts a block as waiting for memory, until the returned guard is dropped.
    pub(crate) fn wait(self: &Arc<Self>) -> impl Drop + use<> {
        struct Waiting(Arc<Activity>);
        impl Drop for Waiting {
            fn drop(&mut self) {
                self.0.waiting.fetch_sub(1, Ordering::Relaxed);
            }
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting(Arc::clone(self))
    }

    /// Number of operations on blocks that are in flight for a purpose.
    pub(crate) fn in_flight(&self, purpose: Purpose) -> usize {
        self.in_flight[purpose as usize].load(Ordering::Relaxed)
    }

    /// Number of blocks that wait for memory.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Returns the work of a stage since the loader started, including the elapsed time of operations in flight.
    pub(crate) fn work(&self, stage: Stage) -> StageWork {
        let mut totals = self.totals(stage);
        let active = totals.work.active;
        totals.step(Instant::now(), active);
        totals.work
    }

    /// Adds the output of an operation to the totals of its stage.
    pub(crate) fn add_output(&self, stage: Stage, bytes: u64, rows: u64) {
        let mut totals = self.totals(stage);
        totals.work.bytes += bytes;
        totals.work.rows += rows;
    }

    fn start(self: &Arc<Self>, stage: Stage, target: Target) -> Working {
        self.step(stage, |active| active + 1);
        Working { activity: Arc::clone(self), stage, target, since: Instant::now() }
    }

    fn step(&self, stage: Stage, active: impl FnOnce(usize) -> usize) {
        let mut totals = self.totals(stage);
        let active = active(totals.work.active);
        totals.step(Instant::now(), active);
    }

    fn totals(&self, stage: Stage) -> MutexGuard<'_, Totals> {
        self.totals[stage as usize].lock()
    }

    fn ended(&self, purpose: Purpose) {
        self.in_flight[purpose as usize].fetch_sub(1, Ordering::Relaxed);
    }

    fn change(&self, block: u128, change: impl FnOnce(&mut Block)) {
        let Some(mut entry) = self.blocks.get_mut(&block) else { return };
        change(&mut entry);
        drop(entry);
        self.blocks.remove_if(&block, |_, block| {
            block.watchers.is_empty() && block.work.iter().all(|work| *work == 0)
        });
    }
}

fn for_each_operation(work: &[u32; Stage::ALL.len()], visit: impl Fn(Stage)) {
    for stage in Stage::ALL {
        (0..work[stage as usize]).for_each(|_| visit(stage));
    }
}

enum Target {
    Block(u128),
    Unwatched(Purpose),
    Lane(Lane),
}

/// An operation in flight. Dropping it ends the operation.
pub(crate) struct Working {
    activity: Arc<Activity>,
    stage: Stage,
    target: Target,
    since: Instant,
}

impl Working {
    /// Adds the output of the operation to the totals of its stage.
    pub(crate) fn add_output(&self, bytes: u64, rows: u64) {
        self.activity.add_output(self.stage, bytes, rows);
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        let stage = self.stage;
        self.activity.step(stage, |active| active.saturating_sub(1));
        match &self.target {
            Target::Lane(lane) => lane.end(stage),
            Target::Unwatched(purpose) => self.activity.ended(*purpose),
            Target::Block(block) => {
                self.activity.ended(Purpose::Window);
                self.activity.change(*block, |block| {
                    block.work[stage as usize] = block.work[stage as usize].saturating_sub(1);
                    let now = Instant::now();
                    for watcher in &block.watchers {
                        watcher.lane.end(stage);
                        watcher.seen.note(stage, self.since.max(watcher.since), now);
                    }
                });
            }
        }
    }
}

/// Does `work`, and records each of its turns with `begin`. The time between two turns is no time of the work. Assembly and decoding are
/// several kilobytes of state: `work` is boxed at once, so that the pool does not copy it each time that it takes it over.
pub(crate) fn recorded_turns<T>(
    begin: impl Fn() -> Working,
    work: impl Future<Output = T>,
) -> impl Future<Output = T> {
    timed_turns(begin, work).map(|(output, _)| output)
}

/// Does `work` as [`recorded_turns`] does, and also returns the total time of the turns.
pub(crate) fn timed_turns<T>(
    begin: impl Fn() -> Working,
    work: impl Future<Output = T>,
) -> impl Future<Output = (T, Duration)> {
    let (mut work, mut worked) = (Box::pin(work), Duration::ZERO);
    poll_fn(move |context| {
        let (_working, begun) = (begin(), Instant::now());
        let polled = work.as_mut().poll(context);
        worked += begun.elapsed();
        polled.map(|output| (output, worked))
    })
}

/// Registration of a stream that waits for blocks. Dropping it ends the wait.
pub(crate) struct Watching {
    activity: Arc<Activity>,
    lane: Lane,
    blocks: Vec<u128>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        for block in &self.blocks {
            self.activity.change(*block, |block| {
                for_each_operation(&block.work, |stage| self.lane.end(stage));
                if let Some(at) = block.watchers.iter().position(|watcher| watcher.lane.is(&self.lane)) {
                    block.watchers.swap_remove(at);
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Poll, Waker},
        thread::sleep,
        time::Duration,
    };

    use forebay_stall::{Bucket, Session};

    use super::*;

    #[test]
    fn work_on_a_block_is_charged_to_every_stream_that_waits_for_it_and_to_no_other() {
        let activity = Arc::new(Activity::default());
        let session = || Session::new(Instant::now(), false);
        let (early, late, other) = (session(), session(), session());
        let lanes: Vec<Lane> =
            [&early, &late, &other].map(|session| session.enter(Instant::now(), (0, 0))).into();
        lanes.iter().for_each(Lane::batch_requested);
        let seen: [Arc<Seen>; 3] = Default::default();
        let first = activity.watch(&lanes[0], &seen[0], [1, 2].into_iter());
        let unrelated = activity.watch(&lanes[2], &seen[2], [3].into_iter());
        let work = activity.begin(Stage::Decode, Purpose::Window, 2);
        let second = activity.watch(&lanes[1], &seen[1], [2].into_iter());
        sleep(Duration::from_millis(20));
        drop(work);
        drop((first, second, unrelated));
        let decode = |session: &Session| session.clock().total(Instant::now())[Bucket::Decode];
        assert!(decode(&early) >= Duration::from_millis(20));
        assert!(decode(&late) >= Duration::from_millis(20));
        assert_eq!(decode(&other), Duration::ZERO);
        let [early, late, other] = seen.map(|seen| (seen.take(), seen.take())).map(|(seen, again)| {
            assert_eq!(again, []);
            seen
        });
        let ([(Stage::Decode, began, ended)], [(Stage::Decode, joined, also_ended)]) =
            (&early[..], &late[..])
        else {
            panic!("{early:?} {late:?}")
        };
        assert!(began < joined && *ended - *joined >= Duration::from_millis(20) && ended == also_ended);
        assert_eq!(other, []);
        assert!(activity.blocks.is_empty());
    }

    #[test]
    fn reads_for_other_purposes_are_counted_and_not_charged_to_streams_that_wait_for_the_block() {
        let activity = Arc::new(Activity::default());
        let session = Session::new(Instant::now(), false);
        let lane = session.enter(Instant::now(), (0, 0));
        lane.batch_requested();
        let seen = Arc::<Seen>::default();
        let watching = activity.watch(&lane, &seen, [1].into_iter());
        for purpose in [Purpose::Count, Purpose::Label, Purpose::Index] {
            let work = activity.begin(Stage::Decode, purpose, 1);
            assert_eq!(activity.in_flight(purpose), 1);
            sleep(Duration::from_millis(5));
            drop(work);
            assert_eq!(activity.in_flight(purpose), 0);
        }
        drop(watching);
        assert_eq!(session.clock().total(Instant::now())[Bucket::Decode], Duration::ZERO);
        assert_eq!(seen.take(), []);
        assert!(activity.work(Stage::Decode).busy >= 3 * Duration::from_millis(5));
        assert!(activity.blocks.is_empty());
    }

    #[test]
    fn the_time_of_work_is_that_of_its_turns_without_the_time_between_them() {
        let activity = Arc::new(Activity::default());
        let work = async {
            sleep(Duration::from_millis(20));
            futures::pending!();
            sleep(Duration::from_millis(20));
        };
        let mut turns = pin!(timed_turns(|| activity.begin_for(Stage::Gather, &Lane::detached()), work));
        let (mut context, started) = (Context::from_waker(Waker::noop()), Instant::now());
        assert!(turns.as_mut().poll(&mut context).is_pending());
        sleep(Duration::from_millis(50));
        let Poll::Ready(((), worked)) = turns.as_mut().poll(&mut context) else { panic!("two turns") };
        assert!(worked >= Duration::from_millis(40));
        assert!(worked + Duration::from_millis(50) <= started.elapsed());
    }

    #[test]
    fn a_stage_counts_the_time_of_every_operation_and_the_time_with_any() {
        let activity = Arc::new(Activity::default());
        let one = activity.begin(Stage::Storage, Purpose::Window, 1);
        let two = activity.begin_for(Stage::Storage, &Lane::detached());
        two.add_output(100, 10);
        sleep(Duration::from_millis(20));
        assert_eq!(activity.work(Stage::Storage).active, 2);
        drop((one, two));
        let work = activity.work(Stage::Storage);
        assert_eq!((work.active, work.bytes, work.rows), (0, 100, 10));
        assert!(work.at_work >= Duration::from_millis(20) && work.busy >= 2 * Duration::from_millis(20));
        assert!(work.busy <= 2 * work.at_work);
        assert!(activity.blocks.is_empty());
    }
}
