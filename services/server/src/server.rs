//! A running server: bound, serving, drained.

use std::{
    fs::{File, TryLockError},
    path::Path,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context, bail};
use arrow_flight::flight_service_server::FlightServiceServer;
use forebay_cache::DiskConfig;
use forebay_loader::{Loader, Pool};
use forebay_proto::v1::online_server::OnlineServer;
use forebay_storage::{Location, State};
use futures::future::BoxFuture;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tonic_health::{ServingStatus, server::HealthReporter};

use crate::{
    Address, Settings,
    connections::Connections,
    datasets::Datasets,
    door::{Acceptor, Door, Tls},
    events::{Events, Kind, Note},
    explain::Explainer,
    flight::{self, Flight, Guard, Unary},
    jobs::{Jobs, Notes},
    online::OnlineDatasets,
    ops,
    queues::Queues,
    sessions::Sessions,
    stalls::Observer,
    traces::Traces,
};

/// A server with its ports bound. Dropping it stops listening; to end the streams that run, too,
/// [drain](Self::drain) it.
pub struct Server {
    grpc: Address,
    http: Address,
    grace_period: Duration,
    guard: Guard,
    sessions: Sessions,
    notes: Notes,
    queues: Queues,
    live: Arc<ops::Live>,
    events: Events,
    traces: Traces,
    exchanges: Arc<Semaphore>,
    max_exchanges: u32,
    health: HealthReporter,
    /// Ends `serving` once its connections have sent what they have.
    stop: CancellationToken,
    serving: Option<AbortOnDropHandle<()>>,
    tasks: Vec<AbortOnDropHandle<()>>,
    _cache_dir: File,
}

/// How long the last bytes of a drained server may take to leave, and idle connections to close.
const FLUSH_TIME: Duration = Duration::from_millis(500);
/// How long the last words to those who listen may take to leave.
const LAST_WORDS_TIME: Duration = Duration::from_millis(50);
/// How long the collector may take for the last spans, and less if the grace period ends before.
const TRACES_FLUSH_TIME: Duration = Duration::from_secs(2);
/// How often the metrics recorder is tidied, scraped or not.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

impl Server {
    /// Locks the cache directory, binds the ports and starts to open the datasets.
    ///
    /// # Errors
    /// When a setting can't work, the directory is held by another server, or a port is taken.
    pub fn start(settings: Settings) -> BoxFuture<'static, anyhow::Result<Self>> {
        Box::pin(Self::start_inner(settings))
    }

    async fn start_inner(settings: Settings) -> anyhow::Result<Self> {
        settings.check()?;
        let cache_dir = lock(&settings.cache_dir)?;
        let recorder = ops::install_metrics()?;
        let state = Location::parse(&settings.state_url(), &settings.storage).context("state")?;
        let state = State::open(state, Some(settings.cache_dir.join("footers")), &settings.storage);
        let pool =
            Pool::new(settings.cpu_threads, settings.scheduling()).context("can't start the CPU threads")?;
        let loader = open_loader(&settings, pool.clone()).await?;
        loader.set_aside(settings.lookup_memory_bytes()).context("lookup_memory")?;
        let warmed = loader.clone();
        tokio::spawn(async move { warmed.warm_up().await });
        let jobs = Jobs::new(&state, settings.limits.max_jobs);
        let (notes, write_notes) = Notes::new(jobs.clone());
        let events = Events::new(settings.limits.max_events);
        let datasets = Datasets::new(&settings, state, events.clone())?;
        let limits = Arc::new(settings.limits.clone());
        let explainer =
            Explainer::new(datasets.clone(), loader.clone(), pool.clone(), jobs, Arc::clone(&limits));
        let lookups = Pool::new(settings.online_threads, forebay_loader::Scheduling::Normal)
            .context("can't start the threads of lookups")?;
        let online = OnlineDatasets::new(
            &settings.online,
            &settings.lookups,
            &loader,
            &(pool, lookups),
            &settings.cache_dir,
        );
        let queues = Queues::new(
            &settings.queues,
            settings.limits.max_pending_requests,
            settings.lookups.max_answer_bytes,
        )?;
        let sessions = Sessions::new(settings.limits.max_streams);
        let guard = Guard::default();
        let traces = Traces::start(&settings.traces)?;

        let door = Door::new(settings.tokens.as_deref(), settings.insecure).context("--tokens")?;
        let tls = settings.tls.as_ref().map(Tls::open).transpose().context("TLS")?.map(Arc::new);
        let listen = async |flag: &str, address: &Address| {
            let acceptor = tls.clone().map(Acceptor::new);
            let bound = address.bind().await.with_context(|| format!("{flag} {address}"))?;
            anyhow::Ok(Connections::new(bound, settings.limits.max_connections, acceptor)?)
        };
        let grpc = listen("--grpc", &settings.grpc).await?;
        let http = listen("--http", &Address::Tcp(settings.http)).await?;
        let (health, health_service) = tonic_health::server::health_reporter();
        health.set_serving::<FlightServiceServer<Flight>>().await;
        health.set_serving::<OnlineServer<Unary>>().await;

        let max_exchanges = u32::try_from(settings.limits.max_streams).unwrap_or(u32::MAX >> 3);
        let exchanges = Arc::new(Semaphore::new(max_exchanges as usize));
        let context = flight::Context {
            datasets: datasets.clone(),
            loader: loader.clone(),
            online: online.clone(),
            queues: queues.clone(),
            events: events.clone(),
            exchanges: Arc::clone(&exchanges),
            sessions: sessions.clone(),
            jobs: notes.clone(),
            limits,
            guard: guard.clone(),
            traces: traces.clone(),
        };
        let mut server = Self {
            grpc: grpc.address().clone(),
            http: http.address().clone(),
            grace_period: settings.grace_period,
            guard: guard.clone(),
            sessions: sessions.clone(),
            notes,
            queues: queues.clone(),
            live: Arc::new(ops::Live::new(settings.limits.max_live)),
            events: events.clone(),
            traces,
            exchanges,
            max_exchanges,
            health,
            stop: CancellationToken::new(),
            serving: None,
            tasks: Vec::new(),
            _cache_dir: cache_dir,
        };
        server.spawn(write_notes);
        for name in settings.datasets.keys() {
            server.spawn(datasets.clone().tend(name.clone(), settings.refresh_interval));
        }
        for name in online.names() {
            let tended =
                online.clone().tend(datasets.clone(), name.to_owned(), settings.limits.max_open_backoff);
            server.spawn(tended);
        }
        for queue in queues.all() {
            server.spawn(queue.clone().tend());
        }
        if let Some(tls) = &tls {
            server.spawn(Arc::clone(tls).watch(settings.reload_interval, events.clone()));
        }
        if let Some(tokens) = door.tokens() {
            server.spawn(tokens.watch(settings.reload_interval, events.clone()));
        }
        let router = flight::router(context, door.clone(), health_service)?;
        server.serving = Some(AbortOnDropHandle::new(tokio::spawn(serve_grpc(
            grpc,
            &settings,
            router,
            server.stop.clone(),
        ))));
        let upkept = recorder.clone();
        server.spawn(async move {
            // Histograms keep every sample until they are drained.
            loop {
                tokio::time::sleep(UPKEEP_INTERVAL).await;
                upkept.run_upkeep();
            }
        });
        let observer = Observer::new(
            &settings,
            sessions.clone(),
            loader.clone(),
            datasets.clone(),
            events.clone(),
            recorder.clone(),
        );
        server.spawn(observer.clone().tend());
        server.spawn(ops::measure_lag());
        let http_app = ops::router(ops::Ops {
            datasets,
            sessions,
            observer,
            loader,
            online,
            explainer,
            queues,
            events,
            guard,
            gate: ops::Gate::new(server.http.is_local(), settings.tokens.is_some()),
            door,
            live: Arc::clone(&server.live),
            recorder,
            grpc: server.grpc.clone(),
            tls: tls.is_some(),
            started: SystemTime::now(),
            explain_timeout: settings.limits.explain_timeout,
            max_request_bytes: settings.limits.max_request_bytes,
        });
        server.spawn(ops::serve(http, http_app, settings.limits.clone()));
        tracing::info!(grpc = %server.grpc, http = %server.http, "listening");
        Ok(server)
    }

    /// Where gRPC listens.
    pub fn grpc(&self) -> &Address {
        &self.grpc
    }

    /// Where HTTP listens.
    pub fn http(&self) -> &Address {
        &self.http
    }

    /// One line of JSON that says where the server listens, for whoever started it.
    pub fn ready_line(&self) -> String {
        let line = serde_json::json!({
            "grpc": self.grpc.to_string(), "http": self.http.to_string(), "pid": std::process::id(),
        });
        line.to_string()
    }

    /// Serves until SIGTERM or SIGINT, then drains.
    ///
    /// # Errors
    /// When the signals can't be listened for.
    pub async fn run_until_signal(self) -> anyhow::Result<()> {
        use tokio::signal::unix::{SignalKind, signal};
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        tokio::select! {
            _ = terminate.recv() => tracing::info!("SIGTERM"),
            _ = interrupt.recv() => tracing::info!("interrupted"),
        }
        tokio::select! {
            () = self.drain() => {}
            _ = interrupt.recv() => tracing::warn!("interrupted again, stopping at once"),
        }
        Ok(())
    }

    /// Lets nobody in, lets running streams finish within the grace period, hands over what is left
    /// (`UNAVAILABLE`: go on elsewhere), and stops. With no stream running it takes less than a second.
    pub async fn drain(mut self) {
        let began = Instant::now();
        let (streams, grace) = (self.sessions.streams(), humantime::format_duration(self.grace_period));
        let words = format!("the server stops; streams that may finish within {grace}: {streams}");
        self.events.note(Note::new(Kind::Draining, &words));
        self.guard.drain();
        self.queues.drain();
        self.health.set_not_serving::<FlightServiceServer<Flight>>().await;
        self.health.set_not_serving::<OnlineServer<Unary>>().await;
        self.health.set_service_status("", ServingStatus::NotServing).await;
        let finished = tokio::time::timeout(self.grace_period, self.none_running()).await.is_ok();
        if !finished {
            tracing::warn!(
                streams = self.sessions.streams(),
                "the grace period is over, handing streams over"
            );
            self.guard.hand_over();
            drop(tokio::time::timeout(FLUSH_TIME, self.sessions.none_running()).await);
        }
        drop(tokio::time::timeout(FLUSH_TIME, self.notes.written()).await);
        self.stop.cancel();
        if let Some(serving) = self.serving.take() {
            drop(tokio::time::timeout(FLUSH_TIME, serving).await);
        }
        // Listeners hear of it before they lose their connections.
        drop(tokio::time::timeout(FLUSH_TIME, self.live.none_left()).await);
        // What they were told last is on its way through their connections.
        tokio::time::sleep(LAST_WORDS_TIME).await;
        let left = self.grace_period.saturating_sub(began.elapsed());
        self.traces.flush(left.clamp(FLUSH_TIME, TRACES_FLUSH_TIME)).await;
        tracing::info!(finished, "stopped");
    }

    /// Waits until no batches are streamed and none are exchanged.
    async fn none_running(&self) {
        self.sessions.none_running().await;
        // It is closed to nobody: all permits are back once all exchanges have ended.
        drop(self.exchanges.acquire_many(self.max_exchanges).await);
    }

    fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.push(AbortOnDropHandle::new(tokio::spawn(task)));
    }
}

/// Opens the tiers; looking at what is on disk takes a while.
async fn open_loader(settings: &Settings, pool: Pool) -> anyhow::Result<Loader> {
    let (memory_bytes, disk_bytes) = (settings.cache_memory.0, settings.cache_disk_bytes());
    let (directory, config) = (settings.cache_dir.clone(), settings.loader.clone());
    let opened = tokio::task::spawn_blocking(move || {
        let disk = DiskConfig {
            capacity_bytes: disk_bytes,
            // What is written is still counted as being decoded, which bounds it.
            max_write_queue_bytes: u64::MAX,
            ..DiskConfig::default()
        };
        Loader::open(memory_bytes, (disk_bytes > 0).then_some((&*directory, disk)), config, pool)
    });
    opened.await?.context("the disk tier")
}

/// Holds the cache directory for this process.
fn lock(cache_dir: &Path) -> anyhow::Result<File> {
    std::fs::create_dir_all(cache_dir).with_context(|| format!("can't make {}", cache_dir.display()))?;
    let path = cache_dir.join("lock");
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.with_context(|| format!("can't open {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            bail!(
                "the cache directory {} is held by another server; give this one its own",
                cache_dir.display()
            )
        }
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("can't lock {}", path.display()))
        }
    }
}

fn serve_grpc(
    connections: Connections,
    settings: &Settings,
    router: axum::Router,
    stop: CancellationToken,
) -> impl Future<Output = ()> + Send + 'static + use<> {
    let limits = &settings.limits;
    let server = tonic::transport::Server::builder()
        .max_concurrent_streams(limits.max_calls_per_connection)
        .http2_keepalive_interval(Some(limits.keepalive_interval))
        .http2_keepalive_timeout(Some(limits.keepalive_timeout))
        .http2_max_header_list_size(16 << 10)
        .add_routes(router.into());
    async move {
        let connections = connections.into_stream();
        if let Err(error) = server.serve_with_incoming_shutdown(connections, stop.cancelled()).await {
            tracing::error!(%error, "the gRPC listener failed");
        }
    }
}
