//! One simulated run.

use std::{
    cell::{Cell, RefCell},
    fmt,
    rc::Rc,
    sync::{Arc, Mutex},
    time::Duration,
};

use forebay_cache::{DiskConfig, Files};
use forebay_loader::{Batches, Config, DiskWrites, Error, Loader, Pool, Purpose};
use forebay_proto::v1::Train;
use forebay_storage::Reader;
use object_store::{ObjectStoreExt, memory::InMemory};
use tempfile::TempDir;
use tokio::{
    task::LocalSet,
    time::{Instant, sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{
    disk::{DiskFaults, DiskTimes, FaultyFiles},
    requests::{Expected, ROWS, digest, encoded, expected, file_count, new_store, path_of, reader, request},
    store::FaultyStore,
};

/// Virtual time in which a run has to end.
const PATIENCE: Duration = Duration::from_secs(30 * 24 * 3600);

/// Events of a run, in order.
pub(crate) struct Run {
    pub(crate) trace: Vec<String>,
    batches: u64,
    errors: u64,
    restarts: u64,
    cancelled: u64,
    changed: u64,
    /// Requests to the store that hung.
    hung: u64,
    disk: DiskFaults,
    /// Maximum number of bytes over the memory budget.
    over_bytes: u64,
    /// Maximum of the same, in thousandths of the budget.
    over_thousandths: u64,
}

/// Sums over all runs.
#[derive(Default)]
pub(crate) struct Totals {
    batches: u64,
    errors: u64,
    restarts: u64,
    cancelled: u64,
    changed: u64,
    hung: u64,
    disk: DiskFaults,
    over_bytes: u64,
    over_thousandths: u64,
}

impl Totals {
    pub(crate) fn add(&mut self, run: &Run) {
        self.batches += run.batches;
        self.errors += run.errors;
        self.restarts += run.restarts;
        self.cancelled += run.cancelled;
        self.changed += run.changed;
        self.hung += run.hung;
        self.disk.add(run.disk);
        self.over_bytes = self.over_bytes.max(run.over_bytes);
        self.over_thousandths = self.over_thousandths.max(run.over_thousandths);
    }

    /// True if every kind of fault has occurred.
    pub(crate) fn has_all_faults(&self) -> bool {
        let Self { errors, restarts, cancelled, changed, hung, disk, .. } = self;
        [errors, restarts, cancelled, changed, hung].iter().all(|count| **count > 0) && disk.are_complete()
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { batches, errors, restarts, cancelled, changed, hung, disk, over_bytes, over_thousandths } =
            self;
        write!(
            f,
            "{batches} batches, {errors} streams with an error, {cancelled} cancelled, {restarts} restarts, \
             {changed} streams ended by a changed file, {hung} requests to the store hung, {disk}, at most {over_bytes} bytes and \
             {over_thousandths} thousandths over the memory budget"
        )
    }
}

/// State that all simulated consumers share.
struct World {
    store: Arc<FaultyStore>,
    reader: Reader,
    limits: Limits,
    disk: Option<SimulatedDisk>,
    /// The server's loader; `None` while it restarts.
    loader: RefCell<Option<Loader>>,
    /// Number of restarts, and a token that the next one cancels.
    restarts: RefCell<(u64, CancellationToken)>,
    has_changed_file: Cell<bool>,
    /// True after the last consumer.
    has_ended: Cell<bool>,
    run: RefCell<Run>,
    started: Instant,
}

/// Folder of the disk cache and its faults, which outlive a restart.
struct SimulatedDisk {
    folder: TempDir,
    files: Arc<FaultyFiles>,
    /// True if streams run while a restarted loader recovers the files of the earlier one.
    recovers_in_background: bool,
    recovery: RefCell<Option<AbortOnDropHandle<()>>>,
}

impl SimulatedDisk {
    fn new(seed: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let files = Arc::new(FaultyFiles::new(folder.path(), seed));
        Self { folder, files, recovers_in_background: seed.is_multiple_of(2), recovery: RefCell::default() }
    }

    /// Starts the faults. All blocking work of the run is work of the disk.
    fn activate(&self, seed: u64) {
        self.files.activate();
        let (mut times, files) = (DiskTimes::new(seed), Arc::clone(&self.files));
        forebay_cache::simulate_blocking_work(move || times.next(&files));
    }
}

/// Limits of the server.
#[derive(Clone)]
struct Limits {
    memory_bytes: u64,
    disk: Option<DiskConfig>,
    workers: usize,
    config: Config,
    seed: u64,
}

/// A request of the run, with what it delivers.
struct Requested {
    name: usize,
    train: Train,
    expected: Arc<Expected>,
}

/// Runs the simulation of `seed`.
///
/// # Panics
/// Panics if a promise is broken.
pub(crate) fn run(seed: u64) -> Run {
    forebay_cache::run_blocking_work_in_order();
    let mut random = fastrand::Rng::with_seed(seed);
    let jobs: Vec<_> = (0..random.usize(1..=3))
        .map(|name| {
            let train = request(&mut random);
            Requested { name, expected: expected(&train), train }
        })
        .collect();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let local = LocalSet::new();
    runtime.block_on(local.run_until(async {
        let simulated = timeout(PATIENCE, simulate(seed, random, jobs)).await;
        simulated.unwrap_or_else(|_| panic!("seed {seed}: a stream makes no progress"))
    }))
}

async fn simulate(seed: u64, mut random: fastrand::Rng, jobs: Vec<Requested>) -> Run {
    let inner = new_store().await;
    let store = Arc::new(FaultyStore::new(Arc::clone(&inner), random.u64(..)));
    let reader = reader(store.clone(), forebay_storage::Config::default()).await;
    let limits = limits(&mut random, &jobs);
    let disk = limits.disk.is_some().then(|| SimulatedDisk::new(random.u64(..)));
    let world = Rc::new(World {
        store,
        reader,
        limits,
        disk,
        loader: RefCell::default(),
        restarts: RefCell::default(),
        has_changed_file: Cell::default(),
        has_ended: Cell::default(),
        run: RefCell::new(Run {
            trace: Vec::new(),
            batches: 0,
            errors: 0,
            restarts: 0,
            cancelled: 0,
            changed: 0,
            hung: 0,
            disk: DiskFaults::default(),
            over_bytes: 0,
            over_thousandths: 0,
        }),
        started: Instant::now(),
    });
    world.start(seed).await;
    world.store.activate();
    if let Some(disk) = &world.disk {
        disk.activate(random.u64(..));
    }
    for job in &jobs {
        world.note(&format!("job {}: {:?}", job.name, job.train));
    }
    let limits = world.limits.clone();
    world.note(&format!("memory {}, disk {:?}, {:?}", limits.memory_bytes, limits.disk, limits.config));
    let mut consumers = Vec::new();
    for job in jobs {
        let job = Rc::new(job);
        let lanes = job.train.lanes() as u32;
        for stream in 0..job.expected.streams.len() {
            let random = random.fork();
            let consumer = Consumer {
                world: Rc::clone(&world),
                job: Rc::clone(&job),
                stream,
                rank: stream as u32 / lanes,
                lane: stream as u32 % lanes,
                random,
                done: 0,
            };
            consumers.push(tokio::task::spawn_local(consumer.consume()));
        }
    }
    let events = tokio::task::spawn_local(events(Rc::clone(&world), inner, random));
    for consumer in consumers {
        consumer.await.unwrap();
    }
    world.has_ended.set(true);
    events.await.unwrap();
    world.check_released(seed).await;
    let world = Rc::into_inner(world).expect("all consumers have ended");
    let World { run, store, disk, .. } = world;
    let disk = disk.map(|disk| disk.files.faults()).unwrap_or_default();
    Run { hung: store.hung().into(), disk, ..run.into_inner() }
}

/// Random limits under which the jobs are admitted.
fn limits(random: &mut fastrand::Rng, jobs: &[Requested]) -> Limits {
    let largest = jobs.iter().map(|job| job.expected.window_bytes).max().unwrap();
    let memory_bytes = match random.u32(..5) {
        0 => largest,
        1 => largest + largest / 10,
        2 => largest * 3 / 2,
        3 => largest * 4,
        _ => 1 << 30,
    };
    let disk_bytes = [None, Some(1 << 14), Some(1 << 17), Some(1 << 26)][random.usize(..4)];
    let disk = disk_bytes.map(|disk_bytes| DiskConfig {
        capacity_bytes: Some(disk_bytes),
        max_write_queue_bytes: [1 << 13, 1 << 28][random.usize(..2)],
        concurrent_reads: [1, 16][random.usize(..2)],
        ..DiskConfig::default()
    });
    let config = Config {
        decode_bytes: [None, Some(1), Some(1 << 14)][random.usize(..3)],
        concurrent_blocks: [1, 3, 64][random.usize(..3)],
        prefetch_bytes: [1, 1 << 12, 1 << 20][random.usize(..3)],
        window_prefetch_bytes: [0, 1 << 14, 1 << 20][random.usize(..3)],
        slow_consumer_timeout: Duration::from_millis([1, 100, 1000][random.usize(..3)]),
        disk_writes: [DiskWrites::Needed, DiskWrites::Always][random.usize(..2)],
        decode_rows: [7, 64, 4096][random.usize(..3)],
        ..Config::default()
    };
    Limits {
        memory_bytes: memory_bytes.max(1),
        disk,
        workers: random.usize(1..=3),
        config,
        seed: random.u64(..),
    }
}

/// Restarts and changes of files at random times.
async fn events(world: Rc<World>, inner: Arc<InMemory>, mut random: fastrand::Rng) {
    while !world.has_ended.get() {
        sleep(Duration::from_millis(random.u64(1..5000))).await;
        match random.u32(..30) {
            0..3 => world.restart().await,
            3 if !world.has_changed_file.get() => {
                let file = random.usize(..file_count());
                world.note(&format!("file {file} changes"));
                world.has_changed_file.set(true);
                let rows = ROWS + 100..ROWS + 100 + random.i64(1..300);
                inner.put(&path_of(file), encoded(rows).into()).await.unwrap();
            }
            _ => {}
        }
    }
}

impl World {
    fn note(&self, event: &str) {
        let at = self.started.elapsed().as_micros();
        let event = format!("{at} {event}");
        if std::env::var_os("FOREBAY_SIMULATION_TRACE").is_some() {
            println!("{event}");
        }
        self.run.borrow_mut().trace.push(event);
    }

    /// Starts a loader. Waits until an earlier one has released the directory.
    async fn start(&self, seed: u64) {
        let Limits { memory_bytes, disk: disk_config, workers, config, seed: of_pool } = self.limits.clone();
        let random = Mutex::new(fastrand::Rng::with_seed(of_pool ^ self.restarts.borrow().0));
        let duration = move || {
            let mut random = random.lock().unwrap();
            match random.u32(..300) {
                0 => Duration::from_secs(random.u64(1..30)),
                1..200 => Duration::from_micros(random.u64(..50)),
                _ => Duration::from_millis(random.u64(..80)),
            }
        };
        let pool = Pool::simulated(workers, duration);
        let (Some(disk), Some(disk_config)) = (&self.disk, disk_config) else {
            self.loader.replace(Some(Loader::new(memory_bytes, config, pool)));
            return;
        };
        // Operations that hang hold the folder. Some wait for others.
        for _ in 0..100_000 {
            let folder = Some((disk.folder.path(), disk_config.clone()));
            let files = Arc::clone(&disk.files) as Arc<dyn Files>;
            match Loader::open_over(files, memory_bytes, folder, config.clone(), pool.clone()) {
                Err(forebay_cache::Error::InUse { .. }) => sleep(Duration::from_millis(500)).await,
                opened => {
                    let (loader, recovery) = opened.unwrap();
                    self.loader.replace(Some(loader));
                    match (recovery, disk.recovers_in_background) {
                        (Some(recovery), true) => {
                            let recovering = tokio::spawn(recovery.run_in_background());
                            disk.recovery.replace(Some(AbortOnDropHandle::new(recovering)));
                        }
                        (Some(recovery), false) => recovery.run(),
                        (None, _) => {}
                    }
                    return;
                }
            }
        }
        panic!("seed {seed}: an earlier loader was not dropped");
    }

    async fn restart(&self) {
        self.note("restart");
        self.run.borrow_mut().restarts += 1;
        self.loader.replace(None);
        if let Some(disk) = &self.disk {
            disk.recovery.take();
        }
        let (count, running) = self.restarts.take();
        self.restarts.replace((count + 1, CancellationToken::new()));
        running.cancel();
        self.start(0).await;
        self.note("restarted");
    }

    async fn loader(&self) -> Loader {
        loop {
            if let Some(loader) = self.loader.borrow().as_ref() {
                return loader.clone();
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Checks the memory budget.
    fn check_budget(&self, loader: &Loader) {
        let Limits { memory_bytes, .. } = self.limits;
        let (reserved, resident) = (loader.reserved_bytes(), loader.resident_bytes());
        // Footers give the size of encoded strings and lists, which can be smaller than that of the values. The blocks of this
        // dataset have a few kilobytes, so that this part is large in relation to a small budget. The summary of all seeds
        // has the maximum: 41 kB, or half of the smallest budgets.
        let most = memory_bytes + memory_bytes / 4 + (64 << 10);
        assert!(reserved <= most, "{reserved} bytes are reserved of {memory_bytes}");
        assert!(resident <= most, "{resident} bytes are resident of {memory_bytes}");
        let over_bytes = reserved.max(resident).saturating_sub(memory_bytes);
        let mut run = self.run.borrow_mut();
        run.over_bytes = run.over_bytes.max(over_bytes);
        run.over_thousandths = run.over_thousandths.max(over_bytes * 1000 / memory_bytes);
    }

    /// Checks that nothing is held after the last stream.
    async fn check_released(&self, seed: u64) {
        let loader = self.loader().await;
        // Aborted tasks and operations that have started end later.
        sleep(Duration::from_secs(3600)).await;
        let waiting = loader.waiting();
        let in_flight = Purpose::ALL.map(|purpose| loader.reads_in_flight(purpose));
        let held = (loader.reserved_bytes(), waiting.reads, waiting.decodes, waiting.gathers, in_flight);
        assert_eq!(
            held,
            (0, 0, 0, 0, [0; 4]),
            "seed {seed}: reserved bytes, waiting operations and reads in flight"
        );
    }
}

/// Consumer of one rank and lane.
struct Consumer {
    world: Rc<World>,
    job: Rc<Requested>,
    stream: usize,
    rank: u32,
    lane: u32,
    random: fastrand::Rng,
    /// Number of batches that were taken.
    done: usize,
}

/// Reason for the end of a stream.
enum Ended {
    Finished,
    Again,
    FileChanged,
}

impl Consumer {
    async fn consume(mut self) {
        let all = self.job.expected.streams[self.stream].len();
        for attempt in 0.. {
            assert!(attempt < 5000, "{}: no progress after batch {} of {all}", self.name(), self.done);
            let loader = self.world.loader().await;
            match self.stream(&loader).await {
                Ok(Ended::Finished) => {
                    assert_eq!(self.done, all, "{} ended early", self.name());
                    self.note("finished");
                    return;
                }
                Ok(Ended::Again) => {}
                Ok(Ended::FileChanged) => {
                    self.world.run.borrow_mut().changed += 1;
                    self.note("ended by a changed file");
                    return;
                }
                Err(error) => {
                    self.world.run.borrow_mut().errors += 1;
                    self.note(&format!("{error}"));
                    let injected = self.world.store.errors() > 0 && error.to_string().contains("injected");
                    assert!(injected, "{}: {error:?}", self.name());
                    drop(loader);
                    sleep(Duration::from_millis(self.random.u64(..2000))).await;
                }
            }
        }
    }

    /// Streams from the first batch that was not taken.
    async fn stream(&mut self, loader: &Loader) -> Result<Ended, Error> {
        match self.try_stream(loader).await {
            Err(error) if self.is_by_change(&error) => Ok(Ended::FileChanged),
            ended => ended,
        }
    }

    async fn try_stream(&mut self, loader: &Loader) -> Result<Ended, Error> {
        let restarted = self.world.restarts.borrow().1.clone();
        let Some(train) = self.remaining(loader).await? else { return Ok(Ended::Finished) };
        let readers = vec![self.world.reader.clone(); train.mix.len()];
        let job = loader.job(train, self.world.reader.clone(), readers).await?;
        let mut batches = loader.batches(job, self.rank, self.lane);
        self.take_all(loader, &mut batches, &restarted).await
    }

    async fn take_all(
        &mut self,
        loader: &Loader,
        batches: &mut Batches,
        restarted: &CancellationToken,
    ) -> Result<Ended, Error> {
        loop {
            let next = tokio::select! {
                biased;
                () = restarted.cancelled() => return Ok(Ended::Again),
                next = batches.next() => next,
            };
            let Some(batch) = next else { return Ok(Ended::Finished) };
            let (metadata, batch) = batch?;
            let digest = digest(&metadata, &batch);
            let expected = self.job.expected.streams[self.stream].get(self.done);
            assert_eq!(Some(&digest), expected, "{}: batch {} has other bytes", self.name(), self.done);
            self.note(&format!("batch {} {digest:x}", self.done));
            self.world.run.borrow_mut().batches += 1;
            self.done += 1;
            self.world.check_budget(loader);
            let pause = match self.random.u32(..40) {
                0 => Duration::from_secs(self.random.u64(1..60)),
                1..10 => Duration::from_millis(self.random.u64(1..30)),
                _ => Duration::ZERO,
            };
            if !pause.is_zero() {
                sleep(pause).await;
            }
            if self.random.u32(..60) == 0 {
                self.world.run.borrow_mut().cancelled += 1;
                self.note("cancels");
                return Ok(Ended::Again);
            }
        }
    }

    /// Request of the batches that were not taken yet; `None` if there are none.
    async fn remaining(&self, loader: &Loader) -> Result<Option<Train>, Error> {
        let train = &self.job.train;
        if self.done == 0 {
            return Ok(Some(train.clone()));
        }
        let readers = vec![self.world.reader.clone(); train.mix.len()];
        let steps = loader.job(train.clone(), self.world.reader.clone(), readers).await?.steps();
        let step = self.done as u64 * train.lanes();
        let (epoch, start_step) = (step / steps, step % steps);
        let Some(epochs) = train.epochs.unwrap_or(1).checked_sub(epoch).filter(|epochs| *epochs > 0) else {
            return Ok(None);
        };
        Ok(Some(Train { epoch: train.epoch + epoch, epochs: Some(epochs), start_step, ..train.clone() }))
    }

    fn is_by_change(&self, error: &Error) -> bool {
        let changed = matches!(error, Error::Storage(forebay_storage::Error::Changed { .. }));
        changed && self.world.has_changed_file.get()
    }

    fn name(&self) -> String {
        format!("job {} rank {} lane {}", self.job.name, self.rank, self.lane)
    }

    fn note(&self, event: &str) {
        self.world.note(&format!("{} {event}", self.name()));
    }
}
