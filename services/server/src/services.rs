//! State that gRPC and HTTP share, built from the settings before a port is bound.

use std::sync::Arc;

use anyhow::Context;
use forebay_cache::{DiskConfig, Recovery};
use forebay_loader::{Loader, Pool, Scheduling, StoredValues};
use forebay_storage::{Location, State};
use tokio::task::JoinSet;

use crate::{
    Settings,
    callers::Callers,
    drain::Drain,
    events::Events,
    explainer::Explainer,
    members::Members,
    registry::{
        datasets::Datasets,
        jobs::{Jobs, Notes},
        online::OnlineDatasets,
        queues::Queues,
        values::Values,
    },
    sessions::Sessions,
    settings::{Limits, RunningSettings},
    traces::Traces,
};

/// State that gRPC and HTTP share. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Services {
    pub(crate) datasets: Datasets,
    pub(crate) loader: Loader,
    pub(crate) online: OnlineDatasets,
    pub(crate) queues: Queues,
    pub(crate) sessions: Sessions,
    pub(crate) callers: Callers,
    pub(crate) members: Members,
    pub(crate) jobs: Notes,
    pub(crate) values: Values,
    pub(crate) explainer: Explainer,
    pub(crate) events: Events,
    pub(crate) traces: Traces,
    pub(crate) drain: Drain,
    pub(crate) limits: Arc<Limits>,
    /// Settings with which the server was started.
    pub(crate) settings: Arc<RunningSettings>,
}

impl Services {
    /// Opens the state and the caches, begins to recover the disk cache, and starts the CPU threads. `tasks`, which aborts its tasks when it is dropped,
    /// receives the background work, except opening the datasets.
    ///
    /// # Errors
    /// If a setting is invalid, the caches can't be opened, or threads can't be started.
    pub(crate) async fn build(settings: &Settings, tasks: &mut JoinSet<()>) -> anyhow::Result<Self> {
        let state = Location::parse(&settings.state_url(), &settings.storage).context("state")?;
        let state = State::open(state, Some(settings.cache_dir.join("footers")), &settings.storage);
        let pool = Pool::new(settings.cpu_threads, settings.cpu_scheduling)
            .context("can't start the CPU threads")?;
        let (loader, recovery) = open_loader(settings, pool.clone()).await?;
        if let Some(recovery) = recovery {
            tasks.spawn(recovery.run_in_background());
        }
        loader.reserve_for_lookups(settings.lookup_memory_bytes()).context("lookup_memory")?;
        let warmed = loader.clone();
        tokio::spawn(async move { warmed.warm_up().await });

        let limits = Arc::new(settings.limits.clone());
        let records = Jobs::new(&state, limits.max_jobs);
        let stored_values = StoredValues::new(&state);
        let values = Values::new(&state, records.clone(), stored_values.clone());
        tasks.spawn(values.clone().run());
        let loader = loader.with_values(stored_values);
        let (jobs, write_jobs) = Notes::new(records.clone());
        tasks.spawn(write_jobs);
        let events = Events::new(limits.max_events);
        let (sessions, drain) = (Sessions::new(), Drain::default());
        let members = Members::new(settings, &state, &sessions, &drain, events.clone()).await?;
        let state = state.charged_to(loader.budget().clone());
        let datasets = Datasets::new(settings, state, &pool, events.clone())?;
        let explainer =
            Explainer::new(datasets.clone(), loader.clone(), pool.clone(), records, Arc::clone(&limits));
        let lookup_pool = Pool::new(settings.lookup_threads, Scheduling::Normal)
            .context("can't start the lookup threads")?;
        let online = OnlineDatasets::new(settings, &loader, &(pool, lookup_pool), events.clone());
        let queues = Queues::new(settings)?;
        Ok(Self {
            datasets,
            loader,
            online,
            queues,
            sessions,
            members,
            callers: Callers::new(Arc::clone(&limits)),
            jobs,
            values,
            explainer,
            events,
            traces: Traces::start(&settings.traces)?,
            drain,
            limits,
            settings: Arc::new(RunningSettings::new(settings)?),
        })
    }

    /// Starts to open the datasets and lookup indexes, and to form batches of the queues.
    pub(crate) fn start(&self, settings: &Settings, tasks: &mut JoinSet<()>) {
        for name in settings.datasets.keys() {
            tasks.spawn(self.datasets.clone().run(name.clone()));
        }
        for (name, spec) in &settings.online {
            let (online, datasets) = (self.online.clone(), self.datasets.clone());
            let pinned = spec.snapshot.clone();
            tasks.spawn(online.run(datasets, name.clone(), pinned, self.limits.max_open_backoff));
        }
        tasks.spawn(self.members.clone().run());
        for queue in self.queues.all() {
            tasks.spawn(queue.clone().run());
        }
    }
}

/// Opens the caches on a blocking thread. The columns of an earlier server are left to the returned recovery, so that they do not
/// delay the ports.
async fn open_loader(settings: &Settings, pool: Pool) -> anyhow::Result<(Loader, Option<Recovery>)> {
    let settings = settings.clone();
    let opened = tokio::task::spawn_blocking(move || {
        let (memory_bytes, disk_bytes) = (settings.cache_memory.0, settings.cache_disk.map(|size| size.0));
        let (directory, config) = (settings.cache_dir, settings.loader);
        let disk = DiskConfig {
            capacity_bytes: disk_bytes,
            max_index_bytes: config.disk_index_bytes(memory_bytes),
            max_write_queue_bytes: config.disk_write_queue_bytes(memory_bytes),
            read_timeout: config.disk_read_timeout,
            // A disk that hangs leaves threads for everything else.
            concurrent_reads: (settings.blocking_threads / 4).max(1),
            ..DiskConfig::default()
        };
        let disk = (disk_bytes != Some(0)).then_some((&*directory, disk));
        Loader::open_unrecovered(memory_bytes, disk, config, pool)
    });
    opened.await?.context("can't open the disk cache")
}
