//! The trainers whose batch streams are running, and where their time goes.

mod rates;
mod session;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use dashmap::DashMap;
use forebay_loader::Made;
use forebay_proto::v1::{ReportRequest, Train};
use forebay_stall::{Bucket, Buckets, History, Interval};
use tokio::sync::watch;
use tonic::Status;
use xxhash_rust::xxh3::xxh3_64;

use rates::Rates;
pub(crate) use session::{Begin, Session, WINDOW};

/// How far back the buckets are kept, in seconds.
pub(crate) const KEPT_SECONDS: usize = 600;
/// A trainer without a stream is forgotten after this.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// The running streams of a server, bounded in number, by the trainers that have them. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Sessions {
    shared: Arc<Shared>,
}

struct Shared {
    /// Also those that ended a while ago.
    sessions: DashMap<u64, Arc<Session>>,
    max_streams: usize,
    count: watch::Sender<usize>,
    all: Mutex<All>,
}

/// What is added up over all trainers, those that are forgotten included.
struct All {
    /// So many streams were begun.
    begun: u64,
    history: History,
    by_dataset: BTreeMap<String, Buckets>,
    trainers: BTreeMap<String, Activities>,
    /// Time in which trainers that report did not compute.
    idle: Duration,
    batches: Rates,
}

/// Seconds, as trainers report them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Activities {
    pub(crate) wait: f64,
    pub(crate) compute: f64,
    pub(crate) copy: f64,
    /// Of the time whose reports say how busy a GPU was: what it was busy in, and the rest.
    pub(crate) gpu_busy: f64,
    pub(crate) gpu_idle: f64,
}

/// A stream's place among the running ones; dropping it ends the stream.
pub(crate) struct Running {
    session: Arc<Session>,
    lane: forebay_stall::Lane,
    sessions: Sessions,
}

impl Sessions {
    pub(crate) fn new(max_streams: usize) -> Self {
        let now = Instant::now();
        let all = All {
            begun: 0,
            history: History::new(now, KEPT_SECONDS),
            by_dataset: BTreeMap::new(),
            trainers: BTreeMap::new(),
            idle: Duration::ZERO,
            batches: Rates::new(now),
        };
        let count = watch::Sender::new(0);
        let shared = Shared { sessions: DashMap::new(), max_streams, count, all: Mutex::new(all) };
        Self { shared: Arc::new(shared) }
    }

    /// Enters a stream of `batches` batches; `trainer` is the id under which its trainer reports, 0 if it does not.
    pub(crate) fn enter(&self, train: Train, batches: u64, trainer: u64) -> Result<Running, Status> {
        let limit = self.shared.max_streams;
        let entered = self.shared.count.send_if_modified(|count| {
            let free = *count < limit;
            *count += usize::from(free);
            free
        });
        if !entered {
            return Err(Status::resource_exhausted(format!(
                "{limit} streams are running, which is limits.max_streams; end some or raise it"
            )));
        }
        let now = Instant::now();
        let number = {
            let mut all = self.all();
            all.begun += 1;
            all.begun
        };
        let id = match trainer {
            0 => xxh3_64(format!("stream {number} of {}", std::process::id()).as_bytes()),
            trainer => session_id(trainer, &train.dataset),
        };
        let due = (train.epoch, train.start_step);
        let begin = Begin { id, trainer, train, now };
        let session =
            Arc::clone(&self.shared.sessions.entry(id).or_insert_with(|| Arc::new(Session::new(begin))));
        let lane = session.enter(now, due, batches);
        self.gauge();
        Ok(Running { session, lane, sessions: self.clone() })
    }

    /// The trainers with running streams, the oldest first; with `ended`, also those without one that are remembered.
    pub(crate) fn list(&self, ended: bool) -> Vec<Arc<Session>> {
        let sessions = self.shared.sessions.iter().map(|entry| Arc::clone(entry.value()));
        let mut sessions: Vec<_> = sessions.filter(|session| ended || session.is_running()).collect();
        sessions.sort_by_key(|session| (session.started, session.id));
        sessions
    }

    /// The trainer of this id, if it is remembered.
    pub(crate) fn get(&self, id: u64) -> Option<Arc<Session>> {
        self.shared.sessions.get(&id).map(|session| Arc::clone(&session))
    }

    /// Streams that are running.
    pub(crate) fn streams(&self) -> usize {
        *self.shared.count.borrow()
    }

    /// Keeps what a trainer reports.
    pub(crate) fn reported(&self, report: &ReportRequest) {
        let Some(session) = self.get(session_id(report.trainer, &report.dataset)) else { return };
        if report.trainer == 0 {
            return;
        }
        let now = Instant::now();
        let (from, settled) = session.report(now, report);
        let mut all = self.all();
        all.settle(&session.train.dataset, from, now, &settled);
        let trainers = all.trainers.entry(report.dataset.clone()).or_default();
        trainers.wait += report.wait_seconds;
        trainers.compute += report.compute_seconds;
        trainers.copy += report.copy_seconds;
        if let Some(share) = report.gpu_utilization {
            trainers.gpu_busy += report.seconds * share;
            trainers.gpu_idle += report.seconds * (1.0 - share);
        }
    }

    /// Settles what no report settles, and forgets who ended long ago. To be called about once a second.
    pub(crate) fn tick(&self, now: Instant) {
        let sessions = self.list(true);
        let mut sent = rates::Sent::default();
        for session in &sessions {
            let (from, settled) = session.tick(now);
            self.all().settle(&session.train.dataset, from, now, &settled);
            sent += session.sent();
        }
        let mut all = self.all();
        all.batches.note_all(now, sent);
        drop(all);
        self.shared.sessions.retain(|_, session| !session.ended_before(now, FORGOTTEN_AFTER));
    }

    /// Where the time of all trainers went in the last seconds.
    pub(crate) fn history(&self, now: Instant, seconds: usize) -> Vec<Interval> {
        self.all().history.before(now, seconds)
    }

    /// Where the time of the trainers of each dataset went since the start.
    pub(crate) fn by_dataset(&self) -> BTreeMap<String, Buckets> {
        self.all().by_dataset.clone()
    }

    /// What they did in it, by their own word.
    pub(crate) fn activities(&self) -> BTreeMap<String, Activities> {
        self.all().trainers.clone()
    }

    /// Time in which trainers that report did not compute, since the start.
    pub(crate) fn idle(&self) -> Duration {
        self.all().idle
    }

    /// Bytes and rows a second that are sent to all trainers.
    pub(crate) fn sent_per_second(&self) -> (f64, f64) {
        let all = self.all();
        (all.batches.bytes_per_second(), all.batches.rows_per_second())
    }

    /// Waits until no stream is running.
    pub(crate) async fn none_running(&self) {
        // The sender lives as long as `self`, so this ends only when the count is 0.
        drop(self.shared.count.subscribe().wait_for(|count| *count == 0).await);
    }

    fn all(&self) -> MutexGuard<'_, All> {
        self.shared.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gauge(&self) {
        metrics::gauge!("forebay_streams").set(self.streams() as f64);
    }
}

/// Trainers choose their ids; one that reads two datasets has two sessions.
fn session_id(trainer: u64, dataset: &str) -> u64 {
    xxh3_64(format!("trainer {trainer:016x} of {dataset:?}").as_bytes())
}

impl All {
    fn settle(&mut self, dataset: &str, from: Instant, to: Instant, settled: &Buckets) {
        if settled.sum().is_zero() {
            return;
        }
        self.history.add(from, to, settled);
        *self.by_dataset.entry(dataset.to_owned()).or_default() += *settled;
        if settled[Bucket::Downstream].is_zero() {
            self.idle += settled.sum().saturating_sub(settled[Bucket::Consumer]);
        }
    }
}

impl Running {
    /// What is told of the work for it.
    pub(crate) fn lane(&self) -> &forebay_stall::Lane {
        &self.lane
    }

    /// Whose stream it is.
    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// The transport asks for its next batch.
    pub(crate) fn asks(&self) {
        self.lane.asks();
    }

    /// Counts a batch that is handed to the transport; the one after it is that of epoch and step `due`.
    pub(crate) fn sent(&self, made: &Made, due: (u64, u64)) {
        self.lane.served(due);
        self.session.count(made);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.lane.leave();
        self.session.leave(Instant::now());
        self.sessions.shared.count.send_modify(|count| *count -= 1);
        self.sessions.gauge();
    }
}
