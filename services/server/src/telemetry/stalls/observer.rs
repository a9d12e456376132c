//! Samples sessions and stages once per second and emits events and metrics.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    thread::available_parallelism,
    time::{Duration, Instant},
};

use forebay_loader::{Loader, StageWork};
use forebay_stall::{Bottleneck, Load, Stage};
use forebay_storage::Snapshot;
use metrics_exporter_prometheus::PrometheusHandle;
use parking_lot::Mutex;

use super::{Facts, Judgement, demand::demand, gauges, summary};
use crate::{
    Settings,
    events::{Event, Events, Kind, Severity},
    registry::datasets::Datasets,
    samples::Samples,
    services::Services,
    sessions::{Session, Sessions},
    telemetry::metric_readout::MetricReadout,
};

/// Time between two observations.
const INTERVAL: Duration = Duration::from_secs(1);

/// Observer of sessions and stages. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Observer {
    shared: Arc<Shared>,
}

struct Shared {
    sessions: Sessions,
    loader: Loader,
    datasets: Datasets,
    events: Events,
    /// Facts for advice, without the decoded bytes.
    facts: Facts,
    gpu_hour_cost: Option<f64>,
    /// Bytes per second that the network interface can send, if known.
    network_bandwidth: Option<f64>,
    /// Work of the stages, in the order of `Stage::ALL`.
    work: Mutex<Samples<[StageWork; Stage::ALL.len()]>>,
    recorder: PrometheusHandle,
}

/// State of the last observation, from which events are derived.
#[derive(Default)]
struct Previous {
    bottleneck: Option<Bottleneck>,
    sessions: HashMap<u64, PreviousSession>,
    /// Number of errors of the disk cache.
    cache_errors: f64,
}

#[derive(Default)]
struct PreviousSession {
    is_running: bool,
    is_skewed: bool,
}

impl Observer {
    pub(crate) fn new(settings: &Settings, services: &Services, recorder: PrometheusHandle) -> Self {
        let Services { sessions, loader, datasets, events, .. } = services.clone();
        let facts = Facts {
            cpu_threads: loader.cpu_threads(),
            cores: available_parallelism().map_or(1, usize::from),
            decoded_bytes: 0,
            memory_bytes: settings.cache_memory.0,
            disk_bytes: 0,
            concurrent_requests: settings.storage.concurrent_requests,
        };
        let work = Mutex::new(Samples::new(Instant::now(), work(&loader)));
        let gpu_hour_cost = settings.gpu_hour_cost;
        let network_bandwidth = settings.network_bandwidth.map(|bandwidth| bandwidth.0 as f64);
        let shared = Shared {
            sessions,
            loader,
            datasets,
            events,
            facts,
            gpu_hour_cost,
            network_bandwidth,
            work,
            recorder,
        };
        Self { shared: Arc::new(shared) }
    }

    /// Observes every second; never returns.
    pub(crate) async fn run(self) {
        let mut previous = Previous::default();
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            self.observe(&mut previous, Instant::now());
        }
    }

    /// Judges these sessions together.
    pub(crate) fn judge(&self, sessions: &[Arc<Session>], now: Instant) -> Judgement {
        Judgement::of(sessions, now, |dataset| self.shared.datasets.silence(dataset))
    }

    /// Returns the increase of a part of a stage's work per second, averaged over the last 10 seconds.
    pub(crate) fn stage_rate(&self, stage: Stage, part: impl Fn(&StageWork) -> f64) -> f64 {
        self.shared.work.lock().rate(|work| part(&work[stage as usize]))
    }

    /// Returns the load of the server, averaged over the last 10 seconds.
    fn load(&self) -> Load {
        let busy: f64 = [Stage::Decode, Stage::Gather]
            .map(|stage| self.stage_rate(stage, |work| work.busy.as_secs_f64()))
            .iter()
            .sum();
        let (sent, _) = self.shared.sessions.sent_per_second();
        Load {
            cpu: (busy / self.shared.facts.cpu_threads as f64).min(1.0),
            network: self.shared.network_bandwidth.map_or(0.0, |bandwidth| (sent / bandwidth).min(1.0)),
        }
    }

    /// Returns the facts that advice on these sessions depends on.
    pub(crate) fn facts(&self, sessions: &[Arc<Session>]) -> Facts {
        let disk_bytes = self.shared.loader.disk_bytes().map_or(0, |(_, capacity_bytes)| capacity_bytes);
        Facts { decoded_bytes: decoded_bytes(sessions), disk_bytes, ..self.shared.facts.clone() }
    }

    /// Returns the configured cost of one GPU hour, if any.
    pub(crate) fn gpu_hour_cost(&self) -> Option<f64> {
        self.shared.gpu_hour_cost
    }

    fn observe(&self, previous: &mut Previous, now: Instant) {
        self.shared.sessions.tick(now);
        self.shared.work.lock().sample(now, work(&self.shared.loader));
        let running = self.shared.sessions.list(false);
        let judgement = self.judge(&running, now);
        self.note_bottleneck(previous, &judgement);
        self.note_sessions(previous);
        self.note_cache_errors(previous);
        gauges::set(
            &self.shared.sessions,
            &running,
            &self.shared.loader,
            judgement.verdict.bottleneck,
            self.shared.gpu_hour_cost,
        );
        let demand = demand(&running, self.load(), now);
        self.shared.sessions.set_demand(demand);
        metrics::gauge!("forebay_wanted_servers").set(demand);
    }

    fn note_bottleneck(&self, previous: &mut Previous, judgement: &Judgement) {
        let verdict = &judgement.verdict;
        let is_known = !matches!(verdict.bottleneck, Bottleneck::Unknown | Bottleneck::Idle);
        if is_known && previous.bottleneck != Some(verdict.bottleneck) {
            previous.bottleneck = Some(verdict.bottleneck);
            self.shared.events.note(Event::new(Kind::BottleneckChanged, &summary(judgement)));
        }
    }

    fn note_sessions(&self, previous: &mut Previous) {
        let sessions = self.shared.sessions.list(true);
        let ids: HashSet<u64> = sessions.iter().map(|session| session.id).collect();
        previous.sessions.retain(|id, _| ids.contains(id));
        for session in sessions {
            let is_new = !previous.sessions.contains_key(&session.id);
            let known = previous.sessions.entry(session.id).or_default();
            let note = |kind, message: &str| {
                let note = Event::new(kind, message).datasets(session.datasets());
                note.session(&format!("{:016x}", session.id))
            };
            let (is_running, trainer) = (session.is_running(), describe(&session));
            // A session that started and ended since the last observation gets both events.
            if is_running && !known.is_running || is_new {
                self.shared.events.note(note(Kind::SessionStarted, &format!("{trainer} started reading")));
            }
            if !is_running && (known.is_running || is_new) {
                let ended = match session.failure() {
                    Some(failure) => note(Kind::SessionFailed, &format!("{trainer} failed: {failure}"))
                        .severity(Severity::Warning),
                    None => {
                        let batches = session.sent().batches;
                        note(Kind::SessionEnded, &format!("{trainer} ended after {batches} batches"))
                    }
                };
                self.shared.events.note(ended);
            }
            known.is_running = is_running;
            let skew = session.skew();
            if skew.is_skewed() && !known.is_skewed {
                known.is_skewed = true;
                let message = format!(
                    "batch means of '{}' have {:.1} times the standard deviation of shuffled rows; shuffle the data",
                    session.train.label_column,
                    skew.std_ratio().unwrap_or(0.0)
                );
                self.shared.events.note(note(Kind::LabelSkew, &message));
            }
        }
    }

    /// Emits an event for new errors of the disk cache, which the cache itself counts and logs.
    fn note_cache_errors(&self, previous: &mut Previous) {
        if self.shared.loader.disk_bytes().is_none() {
            return;
        }
        let errors = MetricReadout::read(&self.shared.recorder).disk_cache_errors();
        if errors > previous.cache_errors {
            let message = format!(
                "{} new errors in the disk cache: damaged values, failed reads or failed writes",
                errors - previous.cache_errors
            );
            self.shared.events.note(Event::new(Kind::CacheError, &message));
        }
        previous.cache_errors = errors;
    }
}

/// Decoded size of the columns that the sessions read, in bytes. A column that several of them read counts once.
fn decoded_bytes(sessions: &[Arc<Session>]) -> u64 {
    let mut read: HashMap<String, (Arc<Snapshot>, Vec<bool>)> = HashMap::new();
    for job in sessions.iter().filter_map(|session| session.job()) {
        for (dataset, snapshot, columns) in job.columns_read() {
            let none = || (Arc::clone(snapshot), vec![false; snapshot.schema().fields().len()]);
            let (_, is_read) = read.entry(dataset.to_owned()).or_insert_with(none);
            for column in columns {
                // Snapshots of one dataset can have different numbers of columns.
                if let Some(is_read) = is_read.get_mut(*column) {
                    *is_read = true;
                }
            }
        }
    }
    let mut sum = 0_u64;
    for (snapshot, is_read) in read.values() {
        let columns = (0..is_read.len()).filter(|column| is_read[*column]);
        sum = columns.map(|column| snapshot.column_decoded_bytes(column)).fold(sum, u64::saturating_add);
    }
    sum
}

/// Work of the stages since the start.
fn work(loader: &Loader) -> [StageWork; Stage::ALL.len()] {
    Stage::ALL.map(|stage| loader.work(stage))
}

/// Describes the trainer of a session in an event.
fn describe(session: &Session) -> String {
    let train = &session.train;
    let job =
        if train.job_name.is_empty() { "a trainer".to_owned() } else { format!("job '{}'", train.job_name) };
    format!("{job}, rank {} of {}", train.rank(), train.world_size.unwrap_or(1))
}
