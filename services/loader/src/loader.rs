//! The running part of the training path.

use std::{path::Path, sync::Arc};

use forebay_cache::{Disk, DiskConfig, Weigh};
use forebay_plan::Cursor;
use forebay_proto::v1;
use forebay_stall::{Known, Lane, Stage};
use forebay_storage::Reader;
use futures::{StreamExt, stream};

use crate::{
    Aside, Batches, Config, Counted, Counts, Error, Job, Pool, Priority, Resident, StageWork, StoredRow,
    aside::SetAside,
    batches::Stream,
    counts::Counter,
    cpu::Flow,
    forecast::Outlook,
    job::{check_mixture, of_mixed, within_mix},
    label::KnownLabels,
    locate::locate,
    pins::Pins,
    window::Windows,
};

/// Loads windows and opens streams. Cheap to clone; clones share memory and threads.
#[derive(Clone)]
pub struct Loader {
    windows: Arc<Windows>,
    counter: Arc<Counter>,
    labels: Arc<KnownLabels>,
    /// What lookups may have of the memory, as far as they don't have it yet.
    aside: SetAside,
    config: Config,
    pool: Pool,
}

/// How far [`Loader::warm`] has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Warmed {
    /// Blocks of the snapshot.
    pub blocks: u64,
    /// Blocks that are in memory now.
    pub blocks_done: u64,
    /// Bytes of their frames.
    pub bytes: u64,
}

/// Work that waits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Blocks, for memory to be read into.
    pub reads: usize,
    /// Blocks, for a thread that decodes them.
    pub decodes: usize,
    /// Batches and other short work, for a thread.
    pub gathers: usize,
}

impl Loader {
    /// A loader that keeps frames in `memory_bytes` and, if `disk` is given, decoded columns there, and does
    /// its CPU work on `pool`. Blocks while it looks at what is on disk.
    ///
    /// # Errors
    /// When the disk tier can't be opened.
    pub fn open(
        memory_bytes: u64,
        disk: Option<(&Path, DiskConfig)>,
        config: Config,
        pool: Pool,
    ) -> Result<Self, forebay_cache::Error> {
        let outlook = Outlook::new();
        let open = |(directory, config)| Disk::open(directory, config, Arc::new(outlook.clone()));
        let disk = disk.map(open).transpose()?;
        let windows = Windows::new(memory_bytes, disk, outlook, config.clone(), pool.clone());
        Ok(Self::over(windows, memory_bytes, config, pool))
    }

    /// A loader that keeps frames in `memory_bytes` and nothing on disk, and does its CPU work on `pool`.
    pub fn new(memory_bytes: u64, config: Config, pool: Pool) -> Self {
        let windows = Windows::new(memory_bytes, None, Outlook::new(), config.clone(), pool.clone());
        Self::over(windows, memory_bytes, config, pool)
    }

    fn over(windows: Windows, memory_bytes: u64, config: Config, pool: Pool) -> Self {
        let counter = Counter::new(memory_bytes, config.clone(), pool.clone());
        Self {
            windows: Arc::new(windows),
            counter: Arc::new(counter),
            labels: Arc::new(KnownLabels::new(config.clone(), pool.clone())),
            aside: SetAside::default(),
            config,
            pool,
        }
    }

    /// Makes ready what the first request with an expression would wait for.
    pub async fn warm_up(&self) {
        let warm_up = || {
            forebay_sql::warm_up();
            Ok(())
        };
        // Pools that stop need nothing ready.
        drop(self.pool.run(Priority::Second, warm_up).await);
    }

    /// Counts the rows that the filter of `train` keeps, and the groups that its key makes, unless that was done before, and
    /// calls `progress` after each block. `None` for a request with neither.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a filter that is none, [`Error::Row`] for a row that it has no answer for, and those of the
    /// first block that can't be read.
    pub async fn count(
        &self,
        train: &v1::Train,
        reader: &Reader,
        progress: impl Fn(Counted) + Send + Sync,
    ) -> Result<Option<Arc<Counts>>, Error> {
        self.counter.of(train, reader, progress).await
    }

    /// The job that `train` asks for, resolved against the snapshot of `reader` and of `others`, one for each other dataset of a
    /// mixture, and admitted.
    ///
    /// # Errors
    /// Those of [`Job::resolve`] and [`Self::admit`].
    pub async fn job(&self, train: v1::Train, reader: Reader, others: Vec<Reader>) -> Result<Job, Error> {
        check_mixture(&train)?;
        let counts = self.counter.of(&train, &reader, |_| {}).await?;
        let mut mixed = Vec::with_capacity(others.len());
        for (index, reader) in others.into_iter().enumerate().take(train.mix.len()) {
            let counts = self.counter.of(&of_mixed(&train, index), &reader, |_| {}).await;
            let counts = counts.map_err(|error| within_mix(&train.mix[index], error))?;
            mixed.push((reader, counts));
        }
        let loader = self.clone();
        // It looks at every block and every window.
        let resolve = move || {
            let others = mixed.iter().map(|(reader, counts)| (reader.clone(), counts.as_deref())).collect();
            let job = Job::resolve_mixture(&train, (reader, counts.as_deref()), others)?;
            loader.admit(&job)?;
            Ok(job)
        };
        self.pool.run(Priority::First, resolve).await
    }

    /// Refuses a job that can never run here, beside what is set aside for lookups.
    ///
    /// # Errors
    /// [`Error::TooLarge`] with the bytes that a batch or a window needs, and the largest window that fits.
    pub fn admit(&self, job: &Job) -> Result<(), Error> {
        job.check_fits(self.free_bytes(), self.config.max_batch_bytes)
    }

    /// Sets so many bytes of the memory aside for lookups: jobs never get them, and lookups never more. To be called once, before
    /// anything runs.
    ///
    /// # Errors
    /// [`Error::TooLarge`] if there is less.
    pub fn set_aside(&self, bytes: u64) -> Result<(), Error> {
        let budget = self.windows.memory().budget();
        let too_large = || Error::TooLarge {
            what: "the memory for lookups".into(),
            needed: bytes,
            limit: budget.available_bytes(),
            advice: "raise --cache-memory".into(),
        };
        let share = budget.try_reserve(bytes).ok_or_else(too_large)?;
        self.aside.put(share);
        Ok(())
    }

    /// Takes bytes for `what` out of those that are [set aside](Self::set_aside), until what is returned is dropped.
    ///
    /// # Errors
    /// [`Error::TooLarge`] with the bytes that are left.
    pub fn take_aside(&self, what: impl Into<String>, bytes: u64) -> Result<Aside, Error> {
        self.aside.take(bytes).map_err(|left| Error::TooLarge {
            what: what.into(),
            needed: bytes,
            limit: left,
            advice: "raise --lookup-memory, or ask for fewer columns".into(),
        })
    }

    /// Loads what `wanted` asks of every row (`select`, `columns`, `tensors`) of the snapshot of `reader` into the memory that is
    /// [set aside](Self::set_aside), and holds it there for lookups. Rows that its `filter` does not keep are as good as missing. An
    /// answer has `max_answer_bytes` at most.
    ///
    /// # Errors
    /// [`Error::TooLarge`] with the bytes that it needs; those of a request that makes no sense, and those of the first block
    /// that can't be read.
    pub async fn resident(
        &self,
        wanted: &v1::Train,
        reader: Reader,
        max_answer_bytes: u64,
    ) -> Result<Resident, Error> {
        let (train, of_job) = (v1::Train { filter: String::new(), ..wanted.clone() }, reader.clone());
        let job = self.pool.run(Priority::First, move || Job::of_lookups(&train, of_job)).await?;
        let snapshot = reader.snapshot();
        let kept_bytes =
            if wanted.filter.is_empty() { 0 } else { snapshot.rows() / 8 + snapshot.blocks().len() as u64 };
        let bytes = job.snapshot_bytes() + kept_bytes;
        let aside = self.take_aside(format!("keeping '{}' in memory", wanted.dataset), bytes)?;
        let kept = self.counter.kept(wanted, &reader).await?;
        Resident::load(job, kept, &self.windows, aside, max_answer_bytes).await
    }

    /// Bytes of memory that are not set aside for lookups.
    fn free_bytes(&self) -> u64 {
        self.windows.memory().budget().available_bytes()
    }

    /// The batches of one rank and lane. Dropping the stream ends its work.
    pub fn batches(&self, job: Arc<Job>, rank: u32, lane: u32) -> Batches {
        self.watched_batches(job, rank, lane, Lane::detached())
    }

    /// ... of which `watch` is told what is being done for them.
    pub fn watched_batches(&self, job: Arc<Job>, rank: u32, lane: u32, watch: Lane) -> Batches {
        let stream = Stream { job, rank, lane, watch, seen: Arc::default(), gathering: Flow::new() };
        Batches::start(stream, &self.windows, self.pool.clone(), self.config.clone())
    }

    /// What the label of `job` is like over its dataset, by a look at some blocks; `None` if it names none.
    ///
    /// # Errors
    /// Those of the first block that can't be read.
    pub async fn label(&self, job: &Job) -> Result<Option<Known>, Error> {
        self.labels.of(job).await
    }

    /// What a stage has done since the start, for all streams.
    pub fn work(&self, stage: Stage) -> StageWork {
        self.windows.activity().work(stage)
    }

    /// What waits now.
    pub fn waiting(&self) -> Waiting {
        let (gathers, decodes) = self.pool.waiting();
        Waiting { reads: self.windows.activity().waiting(), decodes, gathers }
    }

    /// Threads that decode and gather.
    pub fn cpu_threads(&self) -> usize {
        self.pool.threads()
    }

    /// Where the rows of the batch at (`epoch`, `step`) of `rank` are stored, in the batch's order, without those that pad it. A
    /// step past the last has none.
    ///
    /// # Errors
    /// With a filter or groups, those of the first block that can't be read.
    ///
    /// # Panics
    /// If `rank` is not below the job's world size.
    pub async fn locate(
        &self,
        job: &Arc<Job>,
        epoch: u64,
        step: u64,
        rank: u32,
    ) -> Result<Vec<StoredRow>, Error> {
        locate(&self.counter, &self.pool, job, Cursor { epoch, step }, rank).await
    }

    /// Loads the blocks of the job's snapshot into memory, in the order in which its first epoch needs them,
    /// until they would no longer all fit; calls `progress` after each.
    ///
    /// # Errors
    /// Those of the first block that can't be read.
    pub async fn warm(&self, job: &Job, progress: impl Fn(Warmed)) -> Result<Warmed, Error> {
        let blocks = job.snapshot().blocks().len();
        let order = job.order(job.train().epoch);
        let mut room = self.free_bytes();
        let needed = (0..order.windows()).flat_map(|window| order.window(window).blocks).copied();
        let mut fits = Vec::new();
        for block in needed.filter(|block| job.is_needed(*block)) {
            let bytes = job.bytes_of(&[block]);
            if bytes > room {
                break;
            }
            room -= bytes;
            fits.push(block);
        }
        let mut warmed = Warmed { blocks: blocks as u64, blocks_done: 0, bytes: 0 };
        let mut frames = stream::iter(fits)
            .map(|block| self.windows.frame(job, block))
            .buffer_unordered(self.config.concurrent_blocks.max(1));
        while let Some(frame) = frames.next().await {
            warmed.blocks_done += 1;
            warmed.bytes += frame?.weight();
            progress(warmed);
        }
        Ok(warmed)
    }

    /// Brings the columns of the job's view to the disk tier and keeps them there until [`Self::unpin`] or the
    /// end of the process; calls `progress` after each block. When it fails or is cancelled, nothing is pinned.
    ///
    /// # Errors
    /// [`Error::Invalid`] without a disk tier, [`Error::TooLarge`] when it can't hold them beside what is pinned
    /// already, and those of the first block that can't be read or written.
    pub async fn pin(&self, job: &Job, progress: impl Fn(Warmed)) -> Result<Warmed, Error> {
        let disk = self.windows.columns().disk().ok_or_else(no_disk)?;
        let too_large = |needed| Error::TooLarge {
            what: format!("pinning the columns of '{}'", job.train().dataset),
            needed,
            limit: disk.capacity_bytes(),
            advice: "raise --cache-disk, ask for fewer columns or unpin others".into(),
        };
        if job.snapshot_bytes() > disk.capacity_bytes() {
            return Err(too_large(job.snapshot_bytes()));
        }
        let blocks: Vec<u32> = job.kept_blocks().collect();
        let ids = blocks.iter().map(|block| job.reader().block_ids().id(*block));
        let pins = Pins::new(disk.clone(), ids.collect());
        let mut pinned = Warmed { blocks: blocks.len() as u64, blocks_done: 0, bytes: 0 };
        let mut pinning = stream::iter(blocks)
            .map(|block| async move { (job.bytes_of(&[block]), self.windows.pin(job, block).await) })
            .buffer_unordered(self.config.concurrent_blocks.max(1));
        while let Some((bytes, has_room)) = pinning.next().await {
            if !has_room? {
                let left = job.snapshot_bytes() - pinned.bytes;
                return Err(too_large(disk.pinned_bytes().saturating_add(left)));
            }
            pinned.blocks_done += 1;
            pinned.bytes += bytes;
            progress(pinned);
        }
        pins.keep();
        Ok(pinned)
    }

    /// Takes back the pins of the blocks that the job reads.
    ///
    /// # Errors
    /// [`Error::Invalid`] without a disk tier.
    pub fn unpin(&self, job: &Job) -> Result<(), Error> {
        let disk = self.windows.columns().disk().ok_or_else(no_disk)?;
        for block in job.kept_blocks() {
            disk.unpin(job.reader().block_ids().id(block));
        }
        Ok(())
    }

    /// Drops the blocks that `picks` names from both tiers, pinned or not; running streams make again what they
    /// still need. Returns the bytes of memory and of disk that were freed.
    pub async fn drop_cache(&self, picks: impl Fn(u128) -> bool) -> (u64, u64) {
        let memory = self.windows.memory().remove_where(|key| picks(key.block));
        let disk = match self.windows.columns().disk() {
            Some(disk) => disk.remove_where(picks).await,
            None => 0,
        };
        (memory, disk)
    }

    /// Bytes of columns on disk, and how many there may be; `None` without a disk tier.
    pub fn disk_bytes(&self) -> Option<(u64, u64)> {
        self.windows.columns().disk().map(|disk| (disk.resident_bytes(), disk.capacity_bytes()))
    }

    /// Bytes of frames in memory.
    pub fn resident_bytes(&self) -> u64 {
        self.windows.memory().resident_bytes()
    }
}

fn no_disk() -> Error {
    Error::invalid("pin", "this server keeps nothing on disk; start it with --cache-disk")
}
