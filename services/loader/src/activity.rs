//! What is being done, for which block, and who waits for that.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use dashmap::DashMap;
use forebay_stall::{Lane, Stage};

/// The work of a loader as it goes on. Blocks are read and decoded once for all who want them, so the work for a block is told to
/// every stream that waits for a window with it.
#[derive(Default)]
pub(crate) struct Activity {
    /// Blocks that something is done for, or that somebody waits for.
    blocks: DashMap<u128, Block>,
    totals: [Mutex<Totals>; Stage::ALL.len()],
    /// Blocks that wait for memory to be read into.
    waiting: AtomicUsize,
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

/// What was done for a stream while it waited: of each stage when the first work began, at the earliest when it began to wait,
/// and when the last one ended.
#[derive(Debug, Default)]
pub(crate) struct Seen(Mutex<[Option<(Instant, Instant)>; Stage::ALL.len()]>);

impl Seen {
    /// What was seen since the last call.
    pub(crate) fn take(&self) -> Vec<(Stage, Instant, Instant)> {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let took = |stage: Stage| seen[stage as usize].take().map(|(start, end)| (stage, start, end));
        Stage::ALL.into_iter().filter_map(took).collect()
    }

    fn note(&self, stage: Stage, start: Instant, end: Instant) {
        let seen = &mut self.0.lock().unwrap_or_else(PoisonError::into_inner)[stage as usize];
        *seen = Some(seen.map_or((start, end), |(first, last)| (first.min(start), last.max(end))));
    }
}

/// What a stage has done since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StageWork {
    /// Pieces of work that it is at.
    pub active: usize,
    /// Time of all pieces of work together.
    pub busy: Duration,
    /// Time in which it was at one at least.
    pub at_work: Duration,
    /// Bytes that came out of it.
    pub bytes: u64,
    /// Rows that came out of it; of storage none are known.
    pub rows: u64,
}

#[derive(Default)]
struct Totals {
    work: StageWork,
    /// When `active` changed last.
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
    /// Something begins to be done for a block, until what is returned is dropped.
    pub(crate) fn begin(self: &Arc<Self>, stage: Stage, block: u128) -> Working {
        let mut entry = self.blocks.entry(block).or_default();
        entry.work[stage as usize] += 1;
        entry.watchers.iter().for_each(|watcher| watcher.lane.begin(stage));
        drop(entry);
        self.start(stage, For::Block(block))
    }

    /// ... for a stream alone.
    pub(crate) fn begin_for(self: &Arc<Self>, stage: Stage, lane: &Lane) -> Working {
        lane.begin(stage);
        self.start(stage, For::Lane(lane.clone()))
    }

    /// From now on, and until what is returned is dropped, work for these blocks is work for this stream, and noted as `seen`.
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
                tell(&entry.work, |stage| lane.begin(stage));
                entry.watchers.push(Watcher { lane: lane.clone(), seen: Arc::clone(seen), since });
                watched.push(block);
            }
        }
        Watching { activity: Arc::clone(self), lane: lane.clone(), blocks: watched }
    }

    /// A block waits for memory, until what is returned is dropped.
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

    /// Blocks that wait for memory.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// What a stage has done so far.
    pub(crate) fn work(&self, stage: Stage) -> StageWork {
        let mut totals = self.totals(stage);
        let active = totals.work.active;
        totals.step(Instant::now(), active);
        totals.work
    }

    fn start(self: &Arc<Self>, stage: Stage, whom: For) -> Working {
        self.step(stage, |active| active + 1);
        Working { activity: Arc::clone(self), stage, whom, since: Instant::now() }
    }

    fn step(&self, stage: Stage, active: impl FnOnce(usize) -> usize) {
        let mut totals = self.totals(stage);
        let active = active(totals.work.active);
        totals.step(Instant::now(), active);
    }

    fn totals(&self, stage: Stage) -> MutexGuard<'_, Totals> {
        self.totals[stage as usize].lock().unwrap_or_else(PoisonError::into_inner)
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

fn tell(work: &[u32; Stage::ALL.len()], tell: impl Fn(Stage)) {
    for stage in Stage::ALL {
        (0..work[stage as usize]).for_each(|_| tell(stage));
    }
}

enum For {
    Block(u128),
    Lane(Lane),
}

/// Something that is being done.
pub(crate) struct Working {
    activity: Arc<Activity>,
    stage: Stage,
    whom: For,
    since: Instant,
}

impl Working {
    /// Counts what came out of it.
    pub(crate) fn made(&self, bytes: u64, rows: u64) {
        let mut totals = self.activity.totals(self.stage);
        totals.work.bytes += bytes;
        totals.work.rows += rows;
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        let stage = self.stage;
        self.activity.step(stage, |active| active.saturating_sub(1));
        match &self.whom {
            For::Lane(lane) => lane.end(stage),
            For::Block(block) => self.activity.change(*block, |block| {
                block.work[stage as usize] = block.work[stage as usize].saturating_sub(1);
                let now = Instant::now();
                for watcher in &block.watchers {
                    watcher.lane.end(stage);
                    watcher.seen.note(stage, self.since.max(watcher.since), now);
                }
            }),
        }
    }
}

/// A stream that waits for blocks.
pub(crate) struct Watching {
    activity: Arc<Activity>,
    lane: Lane,
    blocks: Vec<u128>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        for block in &self.blocks {
            self.activity.change(*block, |block| {
                tell(&block.work, |stage| self.lane.end(stage));
                if let Some(at) = block.watchers.iter().position(|watcher| watcher.lane.is(&self.lane)) {
                    block.watchers.swap_remove(at);
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{thread::sleep, time::Duration};

    use forebay_stall::{Bucket, Session};

    use super::*;

    #[test]
    fn work_for_a_block_is_told_to_all_who_wait_for_it_and_to_nobody_else() {
        let activity = Arc::new(Activity::default());
        let session = || Session::new(Instant::now(), false);
        let (early, late, other) = (session(), session(), session());
        let lanes: Vec<Lane> =
            [&early, &late, &other].map(|session| session.enter(Instant::now(), (0, 0))).into();
        lanes.iter().for_each(Lane::asks);
        let seen: [Arc<Seen>; 3] = Default::default();
        let first = activity.watch(&lanes[0], &seen[0], [1, 2].into_iter());
        let elsewhere = activity.watch(&lanes[2], &seen[2], [3].into_iter());
        let work = activity.begin(Stage::Decode, 2);
        let second = activity.watch(&lanes[1], &seen[1], [2].into_iter());
        sleep(Duration::from_millis(20));
        drop(work);
        drop((first, second, elsewhere));
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
    fn a_stage_counts_the_time_of_each_work_and_of_any() {
        let activity = Arc::new(Activity::default());
        let one = activity.begin(Stage::Storage, 1);
        let two = activity.begin_for(Stage::Storage, &Lane::detached());
        two.made(100, 10);
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
