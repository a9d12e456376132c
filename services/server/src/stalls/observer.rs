//! Looks once a second at what the trainers and the stages do.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::available_parallelism,
    time::{Duration, Instant},
};

use forebay_loader::Loader;
use forebay_stall::{Buckets, Evidence, Limit, Verdict, judge};
use metrics_exporter_prometheus::PrometheusHandle;

use super::{Facts, Pipeline, StageAnswer, VerdictAnswer, gauges, words::sentence};
use crate::{
    Settings,
    datasets::{Datasets, Phase},
    door::Access,
    events::{Events, Kind, Note, Severity},
    ops::Measured,
    sessions::{Session, Sessions, WINDOW},
};

/// Between two looks.
const INTERVAL: Duration = Duration::from_secs(1);

/// Where the stall is. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Observer {
    shared: Arc<Shared>,
}

struct Shared {
    sessions: Sessions,
    loader: Loader,
    datasets: Datasets,
    events: Events,
    /// All but the decoded bytes.
    facts: Facts,
    gpu_hour_cost: Option<f64>,
    pipeline: Mutex<Pipeline>,
    recorder: PrometheusHandle,
}

/// What was told of before.
#[derive(Default)]
struct Told {
    limit: Option<Limit>,
    sessions: HashMap<u64, ToldSession>,
    /// What went wrong with the cache's disk.
    cache_errors: f64,
}

#[derive(Default)]
struct ToldSession {
    is_running: bool,
    is_skewed: bool,
}

impl Observer {
    pub(crate) fn new(
        settings: &Settings,
        sessions: Sessions,
        loader: Loader,
        datasets: Datasets,
        events: Events,
        recorder: PrometheusHandle,
    ) -> Self {
        let facts = Facts {
            cpu_threads: loader.cpu_threads(),
            cores: available_parallelism().map_or(1, usize::from),
            decoded_bytes: 0,
            memory_bytes: settings.cache_memory.0,
            disk_bytes: loader.disk_bytes().map_or(0, |(_, capacity)| capacity),
            concurrent_requests: settings.storage.concurrent_requests,
        };
        let (gpu_hour_cost, pipeline) = (settings.gpu_hour_cost, Mutex::new(Pipeline::new()));
        let shared = Shared { sessions, loader, datasets, events, facts, gpu_hour_cost, pipeline, recorder };
        Self { shared: Arc::new(shared) }
    }

    /// Looks every second; never returns.
    pub(crate) async fn tend(self) {
        let mut told = Told::default();
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            self.look(&mut told, Instant::now());
        }
    }

    /// What holds these trainers back, and by which time that is judged.
    pub(crate) fn judge(sessions: &[Arc<Session>], now: Instant) -> (Verdict, Buckets) {
        let (mut recent, mut before, mut batches) = (Buckets::default(), Buckets::default(), 0);
        for session in sessions {
            let windows = session.windows(now);
            recent += windows.0;
            before += windows.1;
            batches += session.recent_batches();
        }
        let evidence = Evidence { recent, before, window: WINDOW, sessions: sessions.len(), batches };
        recent += before;
        (judge(&evidence), recent)
    }

    /// ... for people.
    pub(crate) fn verdict(&self, sessions: &[Arc<Session>], now: Instant) -> VerdictAnswer {
        let (verdict, judged) = Self::judge(sessions, now);
        VerdictAnswer::new(&verdict, &judged, sessions.len(), &self.facts())
    }

    /// The stages, the store's end first; `limit` is what trainers wait for.
    pub(crate) fn stages(&self, limit: Limit) -> Vec<StageAnswer> {
        self.pipeline().stages(&self.shared.loader, &self.shared.sessions, limit)
    }

    /// What there is to turn.
    pub(crate) fn facts(&self) -> Facts {
        let open = self.shared.datasets.list(&Access::everything()).into_iter();
        let bytes = open.map(|dataset| match dataset.phase {
            Phase::Open(reader) => reader.snapshot().uncompressed_bytes(),
            Phase::Opening { .. } | Phase::Failed(_) => 0,
        });
        Facts { decoded_bytes: bytes.sum(), ..self.shared.facts.clone() }
    }

    /// What an hour of a GPU costs, if the operator said so.
    pub(crate) fn gpu_hour_cost(&self) -> Option<f64> {
        self.shared.gpu_hour_cost
    }

    fn pipeline(&self) -> MutexGuard<'_, Pipeline> {
        self.shared.pipeline.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look(&self, told: &mut Told, now: Instant) {
        self.shared.sessions.tick(now);
        self.pipeline().note(now, &self.shared.loader);
        let running = self.shared.sessions.list(false);
        let (verdict, _) = Self::judge(&running, now);
        self.tell_of_verdict(told, &verdict, running.len());
        self.tell_of_sessions(told);
        self.tell_of_cache(told);
        gauges::set(
            &self.shared.sessions,
            &running,
            &self.shared.loader,
            verdict.limit,
            self.shared.gpu_hour_cost,
        );
    }

    fn tell_of_verdict(&self, told: &mut Told, verdict: &Verdict, sessions: usize) {
        let is_news =
            !matches!(verdict.limit, Limit::Unknown | Limit::Idle) && told.limit != Some(verdict.limit);
        if is_news {
            told.limit = Some(verdict.limit);
            self.shared.events.note(Note::new(Kind::VerdictChanged, &sentence(verdict, sessions)));
        }
    }

    fn tell_of_sessions(&self, told: &mut Told) {
        let sessions = self.shared.sessions.list(true);
        told.sessions.retain(|id, _| sessions.iter().any(|session| session.id == *id));
        for session in sessions {
            let is_new = !told.sessions.contains_key(&session.id);
            let known = told.sessions.entry(session.id).or_default();
            let note = |kind, words: &str| {
                let note = Note::new(kind, words).dataset(&session.train.dataset);
                note.session(&format!("{:016x}", session.id))
            };
            let (is_running, who) = (session.is_running(), who(&session));
            // One that has come and gone since the last look did both.
            if is_running && !known.is_running || is_new {
                self.shared.events.note(note(Kind::SessionStarted, &format!("{who} began to read")));
            }
            if !is_running && (known.is_running || is_new) {
                let ended = match session.failure() {
                    Some(words) => {
                        note(Kind::SessionFailed, &format!("{who}: {words}")).severity(Severity::Warning)
                    }
                    None => {
                        let batches = session.sent().batches;
                        note(Kind::SessionEnded, &format!("{who} has got {batches} batches"))
                    }
                };
                self.shared.events.note(ended);
            }
            known.is_running = is_running;
            let skew = session.skew();
            if skew.is_skewed() && !known.is_skewed {
                known.is_skewed = true;
                let words = format!(
                    "the mean of '{}' varies {:.1} times as much from batch to batch as that of shuffled rows would",
                    session.train.label,
                    skew.spread().unwrap_or(0.0)
                );
                self.shared.events.note(note(Kind::LabelSkew, &words));
            }
        }
    }

    /// The cache counts and logs what is wrong with its disk; here people hear of it.
    fn tell_of_cache(&self, told: &mut Told) {
        if self.shared.facts.disk_bytes == 0 {
            return;
        }
        let errors = Measured::of(&self.shared.recorder).cache_errors();
        if errors > told.cache_errors {
            let words = format!(
                "{} more values on the cache's disk were damaged or could not be read or written",
                errors - told.cache_errors
            );
            self.shared.events.note(Note::new(Kind::CacheTrouble, &words));
        }
        told.cache_errors = errors;
    }
}

/// A trainer, for a person.
fn who(session: &Session) -> String {
    let train = &session.train;
    let job = if train.job.is_empty() { "a trainer".to_owned() } else { format!("job '{}'", train.job) };
    format!("{job}, rank {} of {}", train.rank(), train.world_size.unwrap_or(1))
}
