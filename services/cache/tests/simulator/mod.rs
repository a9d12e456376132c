//! Simulator of the hit ratio of a tier of equal blocks under several eviction policies.
//!
//! A trace is the sequence of blocks that one or more jobs read. Hits are counted from the second to the second-to-last
//! epoch of the first job: in the first epoch the cache is empty, and the last one would favour policies that know the
//! end.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use forebay_cache::{Forecast, NoForecast, Policy};
use forebay_plan::{EpochOrder, Shuffle};

const ROWS: u32 = 1000;
const WINDOW_BLOCKS: u64 = 16;
/// Duration of a read at speed 1.
const TICKS: f64 = 1000.0;

/// Read pattern of a job.
pub(crate) struct Reader {
    /// True if the blocks are shuffled differently in every epoch.
    pub(crate) shuffled: bool,
    /// Speed relative to other jobs.
    pub(crate) speed: f64,
    /// Seed of the order.
    pub(crate) seed: u64,
}

/// Reads of blocks in order of time.
pub(crate) struct Trace {
    blocks: usize,
    jobs: Arc<[Job]>,
    /// Job and block of each read.
    reads: Vec<(usize, u32)>,
    /// Reads that are counted.
    counted: Range<usize>,
}

struct Job {
    ticks_per_read: f64,
    /// Position of each block in each epoch.
    rank: Vec<Vec<u32>>,
    /// Number of blocks read so far.
    done: AtomicUsize,
    /// Speed that the forecast assumes, in percent of the actual speed.
    believed_percent: AtomicUsize,
}

/// Eviction policy of a simulated tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Choice {
    /// This crate's policy without a forecast.
    LeastRecentlyUsed,
    /// First in, first out.
    FirstIn,
    /// This crate's policy with a forecast of the current and the next epoch of each job.
    Forecast,
    /// The same, with a random error of up to a third in the speed of each job, which changes at every read.
    RoughForecast,
    /// Belady's algorithm with bypass and full knowledge.
    Offline,
}

impl Trace {
    /// Creates the trace of `readers` of a dataset of `blocks` blocks. The first reads it `epochs` times.
    pub(crate) fn new(blocks: usize, epochs: usize, readers: &[Reader]) -> Self {
        let mut jobs = Vec::new();
        let mut reads = Vec::new();
        for (job, reader) in readers.iter().enumerate() {
            let ticks_per_read = TICKS / reader.speed;
            let last = (epochs * blocks) as f64 * TICKS / readers[0].speed;
            let (mut rank, mut tick) = (Vec::new(), 0.0);
            // The forecast covers one epoch beyond the end.
            while rank.len() <= epochs + 1 || tick < last {
                let order = order(blocks, reader, rank.len() as u64);
                let mut rank_of = vec![0; blocks];
                for (position, &block) in order.iter().enumerate() {
                    rank_of[block as usize] = position as u32;
                    if tick < last {
                        reads.push((tick, job, block));
                    }
                    tick += ticks_per_read;
                }
                rank.push(rank_of);
            }
            jobs.push(Job {
                ticks_per_read,
                rank,
                done: AtomicUsize::new(0),
                believed_percent: AtomicUsize::new(100),
            });
        }
        reads.sort_by(|a, b| a.0.total_cmp(&b.0));
        let epoch_ticks = blocks as f64 * jobs[0].ticks_per_read;
        let at = |epoch: usize| reads.partition_point(|read| read.0 < epoch as f64 * epoch_ticks);
        let counted = at(1)..at(epochs - 1);
        let reads = reads.into_iter().map(|(_, job, block)| (job, block)).collect();
        Self { blocks, jobs: jobs.into(), reads, counted }
    }

    /// Fraction of bytes that are hits, for a tier with a capacity of `percent` of the dataset.
    pub(crate) fn hit_ratio(&self, choice: Choice, percent: usize) -> f64 {
        let capacity = self.blocks * percent / 100;
        let hits = match choice {
            Choice::LeastRecentlyUsed => self.by_policy(Arc::new(NoForecast), capacity, 0),
            Choice::Forecast => self.by_policy(Arc::new(Known(Arc::clone(&self.jobs))), capacity, 0),
            Choice::RoughForecast => self.by_policy(Arc::new(Known(Arc::clone(&self.jobs))), capacity, 33),
            Choice::FirstIn => self.first_in(capacity),
            Choice::Offline => self.offline(capacity),
        };
        let counted = hits[self.counted.clone()].iter().filter(|&&hit| hit).count();
        counted as f64 / self.counted.len() as f64
    }

    /// Hits with this crate's policy, used as in the disk tier's `put`.
    fn by_policy(
        &self,
        forecast: Arc<dyn Forecast<u32>>,
        capacity: usize,
        wrong_percent: usize,
    ) -> Vec<bool> {
        self.jobs.iter().for_each(|job| job.done.store(0, Relaxed));
        let mut scattered = 1usize;
        let policy = Policy::new(forecast);
        let mut resident = HashSet::new();
        let mut hits = Vec::with_capacity(self.reads.len());
        for &(job, block) in &self.reads {
            self.jobs[job].done.fetch_add(1, Relaxed);
            for job in self.jobs.iter() {
                scattered =
                    scattered.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let percent = 100 - wrong_percent + (scattered >> 40) % (2 * wrong_percent + 1);
                job.believed_percent.store(percent, Relaxed);
            }
            let hit = resident.contains(&block);
            hits.push(hit);
            if hit {
                policy.touch(&block);
                continue;
            }
            if resident.len() == capacity {
                let victim = policy.eviction_scan().victim().expect("the tier is full");
                if policy.next_use(&block) > victim.next_use {
                    continue;
                }
                policy.remove(&victim.key);
                resident.remove(&victim.key);
            }
            policy.insert(block);
            resident.insert(block);
        }
        hits
    }

    fn first_in(&self, capacity: usize) -> Vec<bool> {
        let (mut queue, mut resident) = (VecDeque::new(), HashSet::new());
        let read = |&(_, block): &(usize, u32)| {
            if !resident.insert(block) {
                return true;
            }
            queue.push_back(block);
            if queue.len() > capacity {
                resident.remove(&queue.pop_front().expect("not empty"));
            }
            false
        };
        self.reads.iter().map(read).collect()
    }

    fn offline(&self, capacity: usize) -> Vec<bool> {
        let mut next_uses = vec![usize::MAX; self.reads.len()];
        let mut upcoming = HashMap::new();
        for (at, (_, block)) in self.reads.iter().enumerate().rev() {
            next_uses[at] = upcoming.insert(block, at).unwrap_or(usize::MAX);
        }
        let (mut by_use, mut resident) = (BTreeSet::new(), HashMap::new());
        let mut hits = Vec::with_capacity(self.reads.len());
        for (&(_, block), next_use) in self.reads.iter().zip(next_uses) {
            let before = resident.remove(&block);
            hits.push(before.is_some());
            if let Some(before) = before {
                by_use.remove(&(before, block));
            }
            resident.insert(block, next_use);
            by_use.insert((next_use, block));
            if resident.len() > capacity {
                let (_, farthest) = by_use.pop_last().expect("not empty");
                resident.remove(&farthest);
            }
        }
        hits
    }
}

/// Forecast of the current and the next epoch of each job.
struct Known(Arc<[Job]>);

impl Forecast<u32> for Known {
    fn next_use(&self, block: &u32) -> u64 {
        self.0.iter().map(|job| job.next_use(*block)).min().unwrap_or(u64::MAX)
    }
}

impl Job {
    fn next_use(&self, block: u32) -> u64 {
        let done = self.done.load(Relaxed);
        let blocks = self.rank[0].len();
        let epoch = done / blocks;
        let at = |epoch: usize| epoch * blocks + self.rank[epoch][block as usize] as usize;
        let next = Some(at(epoch)).filter(|&at| at >= done).unwrap_or_else(|| at(epoch + 1));
        ((next - done) as f64 * self.ticks_per_read * 100.0 / self.believed_percent.load(Relaxed) as f64)
            as u64
    }
}

fn order(blocks: usize, reader: &Reader, epoch: u64) -> Vec<u32> {
    let rows = u64::from(ROWS) * WINDOW_BLOCKS;
    let shuffle = Shuffle::Window { rows, keep_block_order: !reader.shuffled };
    let order = EpochOrder::new(&vec![ROWS; blocks], shuffle, reader.seed, epoch);
    (0..order.windows()).flat_map(|window| order.window(window).blocks.to_vec()).collect()
}
