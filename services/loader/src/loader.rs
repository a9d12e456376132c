//! Running service of the training path.

use std::{path::Path, sync::Arc};

use forebay_cache::{Budget, Disk, DiskConfig, FileSystem, Files, Recovery, Weigh};
use forebay_plan::{Cursor, EpochOrder};
use forebay_proto::v1;
use forebay_stall::{Known, Lane, Stage};
use forebay_storage::Reader;
use futures::{StreamExt, stream};

use crate::{
    Batches, Config, CountProgress, Counts, Error, Flow, Job, LookupReservation, LookupRows, Pool, Priority,
    StageWork, StoredRow, Tenant,
    activity::Purpose,
    batch::budget::PrefetchBudget,
    block_reader::BlockReader,
    cache::{forecast::NextUse, pins::Pins},
    label_statistics::LabelStatistics,
    locate::locate,
    lookup::{kept::KeptRows, memory::LookupMemory},
    request::{
        job::Resolved,
        mixture::{check_mixture, mixed_request, within_mix},
        shared::SharedJobs,
        validate::Dimensions,
    },
    selection::counts::Counter,
    stream::Stream,
    values::{StoredValues, check_used},
    view::expressions::Expressions,
    window::{progress::WindowWait, windows::Windows},
};

/// Loads windows and opens streams. Cheap to clone; clones share memory and threads.
#[derive(Clone)]
pub struct Loader {
    windows: Arc<Windows>,
    counter: Arc<Counter>,
    labels: Arc<LabelStatistics>,
    blocks: BlockReader,
    /// Memory reserved for lookups and not yet taken by one.
    lookup_memory: LookupMemory,
    jobs: SharedJobs,
    /// Memory of finished batches.
    prefetch_budget: PrefetchBudget,
    config: Config,
    pool: Pool,
    /// Tenant of the jobs and streams that are opened.
    tenant: Tenant,
    /// Sets of values that filters refer to.
    values: StoredValues,
}

/// Progress of [`Loader::warm`] and [`Loader::pin`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadProgress {
    /// Number of blocks to load: all blocks of the snapshot for `warm`, the blocks that the job reads for `pin`.
    pub blocks: u64,
    /// Number of blocks loaded so far.
    pub blocks_done: u64,
    /// Bytes of the blocks loaded so far: frame sizes for `warm`, estimates for `pin`.
    pub bytes: u64,
}

/// Number of waiting operations, by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Block reads that wait for memory.
    pub reads: usize,
    /// Blocks that wait for a decode thread.
    pub decodes: usize,
    /// Batches and other short tasks that wait for a thread.
    pub gathers: usize,
}

impl Loader {
    /// Opens a loader that keeps frames in `memory_bytes` and runs its CPU work on `pool`. If `disk` is given, decoded
    /// columns are kept in that directory. Blocks the calling thread while it scans the directory.
    ///
    /// # Errors
    /// Returns an error if the disk tier cannot be opened.
    pub fn open(
        memory_bytes: u64,
        disk: Option<(&Path, DiskConfig)>,
        config: Config,
        pool: Pool,
    ) -> Result<Self, forebay_cache::Error> {
        let (loader, recovery) = Self::open_unrecovered(memory_bytes, disk, config, pool)?;
        if let Some(recovery) = recovery {
            recovery.run();
        }
        Ok(loader)
    }

    /// As [`open`](Self::open), but leaves the columns of earlier processes to the returned recovery, which takes long if there
    /// are many. Until it ends, the disk tier has no columns and accepts none.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_unrecovered(
        memory_bytes: u64,
        disk: Option<(&Path, DiskConfig)>,
        config: Config,
        pool: Pool,
    ) -> Result<(Self, Option<Recovery>), forebay_cache::Error> {
        Self::open_over(Arc::new(FileSystem), memory_bytes, disk, config, pool)
    }

    /// As [`open_unrecovered`](Self::open_unrecovered), with replaceable file operations. For simulations.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    #[doc(hidden)]
    pub fn open_over(
        files: Arc<dyn Files>,
        memory_bytes: u64,
        disk: Option<(&Path, DiskConfig)>,
        config: Config,
        pool: Pool,
    ) -> Result<(Self, Option<Recovery>), forebay_cache::Error> {
        let forecast = NextUse::new();
        let open =
            |(directory, config)| Disk::open_with(files, directory, config, Arc::new(forecast.clone()));
        let (disk, recovery) = disk.map(open).transpose()?.unzip();
        Ok((Self::over(memory_bytes, disk, forecast, config, pool), recovery))
    }

    /// Creates a loader that keeps frames in `memory_bytes`, has no disk tier, and runs its CPU work on `pool`.
    pub fn new(memory_bytes: u64, config: Config, pool: Pool) -> Self {
        Self::over(memory_bytes, None, NextUse::new(), config, pool)
    }

    fn over(memory_bytes: u64, disk: Option<Disk>, forecast: NextUse, config: Config, pool: Pool) -> Self {
        let blocks = BlockReader::new(memory_bytes, &config, pool.clone());
        let prefetch_budget = PrefetchBudget::new(
            config.total_prefetch_bytes(memory_bytes),
            config.prefetch_bytes,
            config.max_prefetch_bytes(memory_bytes),
        );
        let windows = Windows::new(memory_bytes, disk, forecast, config.clone(), blocks.clone());
        Self {
            windows: Arc::new(windows),
            counter: Arc::new(Counter::new(config.clone(), blocks.clone())),
            labels: Arc::new(LabelStatistics::new(blocks.clone())),
            blocks,
            lookup_memory: LookupMemory::default(),
            jobs: SharedJobs::default(),
            prefetch_budget,
            config,
            pool,
            tenant: Tenant::SERVER,
            values: StoredValues::default(),
        }
    }

    /// Tenant of the jobs and streams that are opened.
    pub fn tenant(&self) -> Tenant {
        self.tenant
    }

    /// Returns a handle of this loader, whose jobs and streams belong to `tenant`.
    #[must_use]
    pub fn of_tenant(&self, tenant: Tenant) -> Self {
        Self { tenant, ..self.clone() }
    }

    /// Returns a handle of this loader for requests whose filters refer to `values`, which are charged to its memory. Without them, such
    /// requests are refused.
    #[must_use]
    pub fn with_values(&self, values: StoredValues) -> Self {
        Self { values: values.charged_to(self.budget().clone()), ..self.clone() }
    }

    /// Initializes the expression engine, so that the first request with an expression does not wait for it.
    pub async fn warm_up(&self) {
        let warm_up = || {
            forebay_sql::warm_up();
            Ok(())
        };
        // The only possible error is that the pool is stopping, and then no warm-up is needed.
        drop(self.pool.run(Priority::Background, warm_up).await);
    }

    /// Counts the rows that the filter of `train` keeps and the groups of its key, and calls `progress` after each
    /// block. Counts are cached. Returns `None` for a request without a filter and without a key.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] for an invalid filter, [`Error::Row`] for a row on which the filter cannot be
    /// evaluated, and the error of the first block that cannot be read.
    pub async fn count(
        &self,
        train: &v1::Train,
        reader: &Reader,
        progress: impl Fn(CountProgress) + Send + Sync,
    ) -> Result<Option<Arc<Counts>>, Error> {
        check_used(train)?;
        let compiled = self.compiled(train, reader).await?;
        self.counter.of(train, reader, &compiled, progress).await
    }

    /// Resolves `train` against the snapshot of `reader` and admits the job. `others` holds one reader for each other
    /// dataset of a mixture. Requests of one tenant that differ only in rank and lane share a job while at
    /// least one of their streams uses it.
    ///
    /// # Errors
    /// Returns the errors of [`Job::resolve`], [`Self::count`] and [`Self::admit`].
    pub async fn job(
        &self,
        train: v1::Train,
        reader: Reader,
        others: Vec<Reader>,
    ) -> Result<Arc<Job>, Error> {
        check_mixture(&train)?;
        Dimensions::of(&train)?;
        check_used(&train)?;
        let train = v1::Train { rank: None, lane: None, ..train };
        let readers: Vec<Reader> = std::iter::once(&reader).chain(&others).cloned().collect();
        self.jobs
            .get_or_resolve(self.tenant, &train, &readers, || self.resolve(train.clone(), reader, others))
            .await
    }

    async fn resolve(&self, train: v1::Train, reader: Reader, others: Vec<Reader>) -> Result<Job, Error> {
        let compiled = self.compiled(&train, &reader).await?;
        let counts = self.counter.of(&train, &reader, &compiled, |_| {}).await?;
        let mut mixed = Vec::with_capacity(others.len());
        for (index, reader) in others.into_iter().enumerate().take(train.mix.len()) {
            let request = mixed_request(&train, index);
            let compiled = self.compiled(&request, &reader).await?;
            let counts = self.counter.of(&request, &reader, &compiled, |_| {}).await;
            let counts = counts.map_err(|error| within_mix(&train.mix[index], error))?;
            mixed.push((reader, counts, compiled));
        }
        let loader = self.clone();
        // Runs on the pool, because resolving visits every block and every window.
        let resolve = move || {
            let own = Resolved { reader, counts: counts.as_deref(), compiled: &compiled };
            let others = mixed.iter().map(|(reader, counts, compiled)| {
                let (reader, counts) = (reader.clone(), counts.as_deref());
                Resolved { reader, counts, compiled }
            });
            let mut job = Job::resolve_all(&train, own, others.collect())?;
            loader.admit(&job)?;
            job.belongs_to(loader.tenant);
            Ok(job)
        };
        self.pool.run_for(Flow::of(self.tenant), Priority::Interactive, resolve).await
    }

    /// Compiles the expressions of `train`, each as an operation of its own.
    async fn compiled(&self, train: &v1::Train, reader: &Reader) -> Result<Arc<Expressions>, Error> {
        let flow = Flow::of(self.tenant);
        if !train.values.is_empty() {
            self.windows.forecast().forget_ended_with_sets();
        }
        let sets = self.values.of(train, &self.pool, flow).await?;
        Expressions::compile(&self.pool, flow, reader.snapshot(), train, sets).await.map(Arc::new)
    }

    /// Checks that a job fits in the memory that is not reserved for lookups.
    ///
    /// # Errors
    /// Returns [`Error::TooLarge`] with the bytes that a batch or a window needs, and the largest window that fits.
    pub fn admit(&self, job: &Job) -> Result<(), Error> {
        job.check_fits(self.free_bytes(), self.config.max_batch_bytes)
    }

    /// Reserves `bytes` of the memory for lookups. Jobs never use this memory, and lookups never use more. Must be
    /// called once, before anything runs.
    ///
    /// # Errors
    /// Returns [`Error::TooLarge`] if less memory is available.
    pub fn reserve_for_lookups(&self, bytes: u64) -> Result<(), Error> {
        let budget = self.budget();
        let too_large = || Error::TooLarge {
            what: "the memory for lookups".into(),
            needed: bytes,
            limit: budget.available_bytes(),
            advice: "raise cache_memory".into(),
        };
        let reservation = budget.try_reserve(bytes, &[]).ok_or_else(too_large)?;
        self.lookup_memory.put(reservation);
        Ok(())
    }

    /// Budget of the memory of frames, lookups and snapshots.
    pub fn budget(&self) -> &Budget {
        self.windows.memory().budget()
    }

    /// Takes `bytes` for `what` from the memory [reserved for lookups](Self::reserve_for_lookups). Dropping the returned value
    /// releases them. The tenant of the loader leaves a part of the memory to others.
    ///
    /// # Errors
    /// Returns [`Error::TooLarge`] with the number of bytes that the tenant can have.
    pub fn take_lookup_memory(
        &self,
        what: impl Into<String>,
        bytes: u64,
    ) -> Result<LookupReservation, Error> {
        self.lookup_memory.take(self.tenant, bytes).map_err(|left| Error::TooLarge {
            what: what.into(),
            needed: bytes,
            limit: left,
            advice: "raise --lookup-memory, or request fewer columns".into(),
        })
    }

    /// Loads the requested columns of every row (`select`, `columns`, `tensors`) of the snapshot of `reader` into the
    /// memory [reserved for lookups](Self::reserve_for_lookups). Rows that the `filter` drops are treated as missing. An answer
    /// has at most `max_answer_bytes` bytes.
    ///
    /// # Errors
    /// Returns [`Error::TooLarge`] with the bytes needed, [`Error::Invalid`] for an invalid request, and the error of
    /// the first block that cannot be read.
    pub async fn lookup_rows(
        &self,
        wanted: &v1::Train,
        reader: Reader,
        max_answer_bytes: u64,
    ) -> Result<LookupRows, Error> {
        let compiled = self.compiled(wanted, &reader).await?;
        let counts = self.counter.of(wanted, &reader, &compiled, |_| {}).await?;
        let (train, of_job, of_view) = (wanted.clone(), reader.clone(), Arc::clone(&compiled));
        let resolve = move || {
            let of = Resolved { reader: of_job, counts: counts.as_deref(), compiled: &of_view };
            Job::for_lookups(&train, of)
        };
        let job = self.pool.run(Priority::Interactive, resolve).await?;
        let snapshot = reader.snapshot();
        let kept_bytes = match wanted.filter.is_empty() {
            true => 0,
            false => KeptRows::expected_bytes(snapshot.rows(), snapshot.blocks().len() as u64),
        };
        let bytes = job.footprint.snapshot_bytes + kept_bytes;
        let reservation =
            self.take_lookup_memory(format!("keeping '{}' in memory", wanted.dataset), bytes)?;
        let kept = self.counter.kept(wanted, &reader, &compiled).await?;
        LookupRows::load(job, kept, &self.windows, reservation, max_answer_bytes).await
    }

    /// Bytes of memory that are not reserved for lookups.
    fn free_bytes(&self) -> u64 {
        self.budget().available_bytes()
    }

    /// Opens the stream of batches of one rank and lane. Dropping the stream cancels its work.
    pub fn batches(&self, job: Arc<Job>, rank: u32, lane: u32) -> Batches {
        self.watched_batches(job, rank, lane, Lane::detached())
    }

    /// Opens the stream of batches of one rank and lane, and records the work done for it in `watch`.
    pub fn watched_batches(&self, job: Arc<Job>, rank: u32, lane: u32, watch: Lane) -> Batches {
        let stream = Stream {
            job,
            rank,
            lane,
            watch,
            seen: Arc::default(),
            waits: WindowWait::default(),
            gather_flow: Flow::of(self.tenant),
        };
        Batches::start(stream, &self.windows, &self.prefetch_budget, self.pool.clone(), self.config.clone())
    }

    /// Estimates the label statistics of the dataset of `job` from a sample of its blocks. Returns `None` if the job
    /// has no label column or the sample does not support an estimate.
    ///
    /// # Errors
    /// Returns the error of the first block that cannot be read.
    pub async fn label(&self, job: &Job) -> Result<Option<Known>, Error> {
        self.labels.of(job).await
    }

    /// Work that a stage has done since the start, summed over all streams.
    pub fn work(&self, stage: Stage) -> StageWork {
        self.windows.activity().work(stage)
    }

    /// Block reader. Index builds use it to share its memory limit.
    pub fn blocks(&self) -> &BlockReader {
        &self.blocks
    }

    /// Number of block reads that are being fetched or decoded for `purpose`.
    pub fn reads_in_flight(&self, purpose: Purpose) -> usize {
        self.blocks.activity().in_flight(purpose)
    }

    /// Number of operations that wait now.
    pub fn waiting(&self) -> Waiting {
        let (gathers, decodes) = self.pool.waiting();
        Waiting { reads: self.windows.activity().waiting(), decodes, gathers }
    }

    /// Number of threads that decode and gather.
    pub fn cpu_threads(&self) -> usize {
        self.pool.threads()
    }

    /// Returns the storage location of each row of the batch at (`epoch`, `step`) of `rank`, in batch order and without
    /// padding rows. Returns no rows for a step past the last one.
    ///
    /// # Errors
    /// With a filter or groups, returns the error of the first block that cannot be read.
    ///
    /// # Panics
    /// Panics if `rank` is not below the world size of the job.
    pub async fn locate(
        &self,
        job: &Arc<Job>,
        epoch: u64,
        step: u64,
        rank: u32,
    ) -> Result<Vec<StoredRow>, Error> {
        locate(&self.counter, &self.pool, job, Cursor { epoch, step }, rank).await
    }

    /// Loads blocks of the job's snapshot into memory, in the order of its first epoch, until the next block would not
    /// fit. Calls `progress` after each block.
    ///
    /// # Errors
    /// Returns the error of the first block that cannot be read.
    pub async fn warm(&self, job: &Arc<Job>, progress: impl Fn(LoadProgress)) -> Result<LoadProgress, Error> {
        let blocks = job.snapshot().blocks().len() as u64;
        let (of, room) = (Arc::clone(job), self.free_bytes());
        let flow = Flow::of(self.tenant);
        let first = move || Ok(first_blocks(&of, room));
        let fits = self.pool.run_for(flow, Priority::Interactive, first).await?;
        let mut warmed = LoadProgress { blocks, blocks_done: 0, bytes: 0 };
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

    /// Loads the columns of the job's view into the disk tier and keeps them there until [`Self::unpin`] or the end of
    /// the process. Waits for the recovery of the disk tier. Calls `progress` after each block. If it fails or is cancelled, nothing is pinned.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] without a disk tier, [`Error::TooLarge`] if the columns do not fit next to those
    /// already pinned, and the error of the first block that cannot be read or written.
    pub async fn pin(&self, job: &Job, progress: impl Fn(LoadProgress)) -> Result<LoadProgress, Error> {
        let disk = self.windows.columns().disk().ok_or_else(no_disk)?;
        // Columns that are on disk already are not decoded again.
        disk.recovered().await;
        if disk.capacity_bytes() == 0 {
            let reason = "the capacity of the disk cache is unknown, because one of its folders cannot be listed; the server's log names the folder";
            return Err(Error::Unavailable(reason.into()));
        }
        let too_large = |needed| {
            Error::TooLarge {
            what: format!("pinning the columns of '{}'", job.train().dataset),
            needed,
            limit: disk.capacity_bytes(),
            advice: "raise --cache-disk or, if its index is full, loader.disk_index_bytes; or request fewer columns, or unpin others"
                .into(),
        }
        };
        if job.footprint.snapshot_bytes > disk.capacity_bytes() {
            return Err(too_large(job.footprint.snapshot_bytes));
        }
        let blocks: Vec<u32> = job.rows.kept_blocks().collect();
        let ids = blocks.iter().map(|block| job.reader().block_ids().id(*block));
        let pins = Pins::new(disk.clone(), ids.collect());
        let mut pinned = LoadProgress { blocks: blocks.len() as u64, blocks_done: 0, bytes: 0 };
        let mut pinning = stream::iter(blocks)
            .map(|block| async move { (job.bytes_of(&[block]), self.windows.pin(job, block).await) })
            .buffer_unordered(self.config.concurrent_blocks.max(1));
        while let Some((bytes, has_room)) = pinning.next().await {
            if !has_room? {
                let left = job.footprint.snapshot_bytes - pinned.bytes;
                return Err(too_large(disk.pinned_bytes().saturating_add(left)));
            }
            pinned.blocks_done += 1;
            pinned.bytes += bytes;
            progress(pinned);
        }
        pins.keep();
        Ok(pinned)
    }

    /// Unpins the blocks that the job reads.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] without a disk tier.
    pub fn unpin(&self, job: &Job) -> Result<(), Error> {
        let disk = self.windows.columns().disk().ok_or_else(no_disk)?;
        for block in job.rows.kept_blocks() {
            disk.unpin(job.reader().block_ids().id(block));
        }
        Ok(())
    }

    /// Removes the blocks for which `picks` returns true from both tiers, pinned or not. Running streams load removed
    /// blocks again when they need them. Waits for the recovery of the disk tier. Returns the bytes freed in memory and on disk.
    pub async fn drop_cache(&self, picks: impl Fn(u128) -> bool) -> (u64, u64) {
        let memory = self.windows.memory().remove_where(|key| picks(key.block));
        let disk = match self.windows.columns().disk() {
            Some(disk) => disk.remove_where(picks).await,
            None => 0,
        };
        (memory, disk)
    }

    /// True once the disk tier has the columns of earlier processes; always true without a disk tier.
    pub fn is_recovered(&self) -> bool {
        self.windows.columns().disk().is_none_or(Disk::is_recovered)
    }

    /// Bytes of columns on disk, and the capacity in bytes; `None` without a disk tier. A capacity that is not configured is 0
    /// until the disk tier is recovered.
    pub fn disk_bytes(&self) -> Option<(u64, u64)> {
        self.windows.columns().disk().map(|disk| (disk.resident_bytes(), disk.capacity_bytes()))
    }

    /// Number of columns of blocks that are being read from disk, decoded, or written to disk.
    pub fn columns_in_flight(&self) -> usize {
        self.windows.columns().in_flight()
    }

    /// Bytes of memory that are reserved for windows and lookups.
    pub fn reserved_bytes(&self) -> u64 {
        self.budget().reserved_bytes()
    }

    /// Bytes of frames in memory.
    pub fn resident_bytes(&self) -> u64 {
        self.windows.memory().resident_bytes()
    }
}

/// Returns the blocks of a job in the order of its first epoch, until the frame of the next would exceed `room` bytes. O(blocks).
fn first_blocks(job: &Job, mut room: u64) -> Vec<u32> {
    let orders: Vec<_> = job.order.orders(job.train().epoch).collect();
    // The first windows of all partitions are needed first.
    let windows = 0..orders.iter().map(EpochOrder::windows).max().unwrap_or(0);
    let windows = windows.flat_map(|at| {
        orders.iter().filter(move |order| at < order.windows()).map(move |order| order.window(at))
    });
    let needed = windows.flat_map(|window| window.blocks).copied();
    let (mut fits, mut seen) = (Vec::new(), vec![false; job.snapshot().blocks().len()]);
    for block in needed.filter(|block| job.is_needed(*block)) {
        // A block can be in several partitions.
        if std::mem::replace(&mut seen[block as usize], true) {
            continue;
        }
        let bytes = job.bytes_of(&[block]);
        if bytes > room {
            break;
        }
        room -= bytes;
        fits.push(block);
    }
    fits
}

fn no_disk() -> Error {
    Error::invalid("pin", "this server has no disk cache; start it with --cache-disk")
}
