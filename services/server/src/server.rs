//! The server: builds its parts, serves, and drains.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use futures::future::BoxFuture;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::task::JoinSet;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{
    Address, Settings,
    cache_dir::{self, CacheDir},
    connections::{Places, Protocol},
    events::{Event, Kind},
    flight, http,
    http_runtime::HttpRuntime,
    idle::idle,
    listeners::Listeners,
    readiness,
    services::Services,
    stalls::Observer,
    telemetry,
};

/// A running server. Dropping it stops listening; [`drain`](Self::drain) also ends its streams.
pub struct Server {
    grpc: Address,
    http: Address,
    drain_delay: Duration,
    grace_period: Duration,
    services: Services,
    /// Open gRPC connections.
    connections: Places,
    exit_when_idle: Option<Duration>,
    /// Ends `serving` once its connections have sent their data.
    stop: CancellationToken,
    serving: Option<AbortOnDropHandle<()>>,
    tasks: JoinSet<()>,
    _http_runtime: HttpRuntime,
    _cache_dir: Arc<CacheDir>,
}

/// Maximum size of a health check over the HTTP port, in bytes: the name of a service.
const MAX_HEALTH_BYTES: usize = 4096;
/// Time for the last bytes of a drained server to be sent, and for idle connections to close.
const FLUSH_TIME: Duration = Duration::from_millis(500);
/// Time to flush final events to subscribers.
const SUBSCRIBER_FLUSH_TIME: Duration = Duration::from_millis(50);
/// Maximum time to export the last spans, within the grace period.
const TRACES_FLUSH_TIME: Duration = Duration::from_secs(2);
/// Interval at which the metrics recorder is cleaned up.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

impl Server {
    /// Locks the cache directory, binds the ports and starts to open the datasets.
    ///
    /// # Errors
    /// If a setting is invalid, another server uses the directory, or a port is taken.
    pub fn start(settings: Settings) -> BoxFuture<'static, anyhow::Result<Self>> {
        Box::pin(Self::start_inner(settings))
    }

    async fn start_inner(settings: Settings) -> anyhow::Result<Self> {
        settings.check()?;
        let cache_dir = Arc::new(cache_dir::take(&settings)?);
        let recorder = telemetry::recorder::install()?;
        let mut tasks = JoinSet::new();
        let services = Services::build(&settings, &mut tasks).await?;
        let http_runtime = HttpRuntime::start()?;
        let listeners =
            Listeners::bind(&settings, services.datasets.holder_key(), http_runtime.handle()).await?;
        let (grpc, http) = (listeners.grpc.address().clone(), listeners.http.address().clone());
        services.start(&settings, &mut tasks);
        tasks.spawn(Arc::clone(&cache_dir).watch(services.events.clone()));
        listeners.watch_credentials(&settings, &services.events, &mut tasks);
        tasks.spawn(keep_up(recorder.clone()));
        tasks.spawn(telemetry::event_loop_delay::measure());

        let (health, health_service) = tonic_health::server::health_reporter();
        let mut reporter = readiness::Reporter::new(services.clone(), health, settings.tokens.is_none());
        reporter.report().await;
        tasks.spawn(reporter.run());
        let context = flight::Context { services: services.clone() };
        let subscribers = Arc::new(http::Subscribers::new());
        let observer = Observer::new(&settings, &services, recorder.clone());
        tasks.spawn(observer.clone().run());
        let host_check = http::HostCheck::new(&settings.allowed_hosts, settings.tokens.is_some());
        let state = http::Context {
            services: services.clone(),
            observer,
            authenticator: listeners.authenticator.clone(),
            subscribers,
            recorder,
            location: grpc.location(listeners.tls.is_some()),
            started: SystemTime::now(),
        };

        let Listeners { grpc: grpc_connections, http: http_connections, authenticator, .. } = listeners;
        let stop = CancellationToken::new();
        let http_health = health_service.clone().max_decoding_message_size(MAX_HEALTH_BYTES);
        let router = flight::router(context, authenticator, health_service)?;
        let limits = Arc::clone(&services.limits);
        let connections = grpc_connections.places().clone();
        let serving = grpc_connections.serve(Protocol::Grpc, router, Arc::clone(&limits), stop.clone());
        let serving = Some(AbortOnDropHandle::new(tokio::spawn(serving)));
        let http_router = http::router(Arc::new(state), host_check);
        let http_router = http_router.route_service("/grpc.health.v1.Health/Check", http_health);
        // Probes are answered until the process ends.
        let serving_http =
            http_connections.serve(Protocol::Http, http_router, limits, CancellationToken::new());
        tasks.spawn_on(serving_http, http_runtime.handle());
        tracing::info!(%grpc, %http, "listening");
        Ok(Self {
            grpc,
            http,
            drain_delay: settings.drain_delay,
            grace_period: settings.grace_period,
            services,
            connections,
            exit_when_idle: settings.exit_when_idle,
            stop,
            serving,
            tasks,
            _http_runtime: http_runtime,
            _cache_dir: cache_dir,
        })
    }

    /// Listen address of gRPC.
    pub fn grpc(&self) -> &Address {
        &self.grpc
    }

    /// Listen address of HTTP.
    pub fn http(&self) -> &Address {
        &self.http
    }

    /// One line of JSON with the listen addresses and the process id, for the parent process.
    pub fn ready_line(&self) -> String {
        let line = serde_json::json!({
            "grpc": self.grpc.to_string(), "http": self.http.to_string(), "pid": std::process::id(),
        });
        line.to_string()
    }

    /// Serves until SIGTERM, SIGINT or the end of the time without a connection (`exit_when_idle`), then drains.
    ///
    /// # Errors
    /// If the signal handlers can't be installed, or a background task panics. The server drains then too: without the task it would continue
    /// incompletely, for example without forming batches of a queue.
    pub async fn run_until_signal(mut self) -> anyhow::Result<()> {
        use tokio::signal::unix::{SignalKind, signal};
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut tasks = std::mem::take(&mut self.tasks);
        let mut outcome = Ok(());
        tokio::select! {
            _ = terminate.recv() => tracing::info!("received SIGTERM"),
            _ = interrupt.recv() => tracing::info!("received SIGINT"),
            time = self.unused() => tracing::info!("no connection for {}", humantime::format_duration(time)),
            () = panicked(&mut tasks) => {
                let message = "a background task panicked, which is a bug; the message of the panic is in the log";
                tracing::error!("{message}; the server stops, so that it can be started again");
                outcome = Err(anyhow::anyhow!(message));
            }
        }
        tokio::select! {
            () = self.drain() => {}
            _ = interrupt.recv() => tracing::warn!("received SIGINT again, stopping at once"),
        }
        outcome
    }

    /// Reports that the server is not ready, and rejects new calls after `drain_delay`. Waits up to the grace period for running
    /// streams, ends the remaining ones with `UNAVAILABLE`, and stops. Takes less than a second in addition to the delay if no
    /// stream is running.
    pub async fn drain(mut self) {
        self.services.drain.leave();
        tokio::time::sleep(self.drain_delay).await;
        let began = Instant::now();
        let Services { sessions, events, drain, queues, jobs, traces, .. } = &self.services;
        let (streams, grace) = (sessions.streams(), humantime::format_duration(self.grace_period));
        let message = format!("server is stopping; {streams} running streams have {grace} to finish");
        events.note(Event::new(Kind::Draining, &message));
        drain.drain();
        queues.drain();
        let finished = tokio::time::timeout(self.grace_period, self.none_running()).await.is_ok();
        if !finished {
            tracing::warn!(
                streams = sessions.streams(),
                "grace period expired; ending streams with UNAVAILABLE"
            );
            drain.interrupt();
            drop(tokio::time::timeout(FLUSH_TIME, sessions.none_running()).await);
        }
        drop(tokio::time::timeout(FLUSH_TIME, jobs.written()).await);
        self.stop.cancel();
        if let Some(serving) = self.serving.take() {
            drop(tokio::time::timeout(FLUSH_TIME, serving).await);
        }
        // Subscribers receive the event before their connections are closed.
        drop(tokio::time::timeout(FLUSH_TIME, self.services.callers.none_subscribed()).await);
        tokio::time::sleep(SUBSCRIBER_FLUSH_TIME).await;
        let left = self.grace_period.saturating_sub(began.elapsed());
        traces.flush(left.clamp(FLUSH_TIME, TRACES_FLUSH_TIME)).await;
        tracing::info!(finished, "stopped");
    }

    /// Waits until no connection was open for `exit_when_idle`, which is returned.
    async fn unused(&self) -> Duration {
        let Some(timeout) = self.exit_when_idle else { return std::future::pending().await };
        idle(&self.connections, timeout).await;
        timeout
    }

    /// Waits until no stream and no call is running.
    async fn none_running(&self) {
        self.services.sessions.none_running().await;
        self.services.callers.none_running().await;
    }
}

/// Waits until one of the tasks panics.
async fn panicked(tasks: &mut JoinSet<()>) {
    while let Some(ended) = tasks.join_next().await {
        if ended.is_err_and(|error| error.is_panic()) {
            return;
        }
    }
    std::future::pending::<()>().await;
}

/// Drains the histograms of the recorder, which otherwise keep every sample until the next scrape.
async fn keep_up(recorder: PrometheusHandle) {
    loop {
        tokio::time::sleep(UPKEEP_INTERVAL).await;
        recorder.run_upkeep();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_background_task_that_panics_is_noticed_and_others_may_end() {
        let mut tasks = JoinSet::new();
        tasks.spawn(async {});
        tasks.spawn(std::future::pending()).abort();
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert!(panicked(&mut tasks).now_or_never().is_none());
        assert!(tasks.is_empty(), "the tasks that ended are not kept");
        tasks.spawn(std::future::pending());
        tasks.spawn(async { panic!("hidden") });
        panicked(&mut tasks).await;
    }
}
