//! Sessions of trainers with open batch streams, and their time accounts.

mod session;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use dashmap::DashMap;
use forebay_loader::{FinishedBatch, Job};
use forebay_proto::v1::{ReportRequest, Train};
use forebay_stall::{Bucket, Buckets, History, Interval, Moments};
use parking_lot::Mutex;
use tokio::sync::watch;
use xxhash_rust::xxh3::xxh3_64;

use crate::{callers::Charge, samples::Samples};

use session::Sent;
pub(crate) use session::{Begin, KEPT_SECONDS, Session, WINDOW};

/// Time after which a session without a stream is removed.
const REMOVED_AFTER: Duration = Duration::from_secs(60);
/// Maximum number of sessions without a stream; those that ended first are removed.
const MAX_ENDED: usize = 1000;

/// Registry of sessions and their streams. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Sessions {
    shared: Arc<Shared>,
}

struct Shared {
    /// Sessions by id, including those that ended recently.
    sessions: DashMap<u64, Arc<Session>>,
    count: watch::Sender<usize>,
    /// Bits of the demand of the trainers at the last observation.
    demand: AtomicU64,
    /// Batches sent to all trainers, counted when they are sent.
    sent: Mutex<Sent>,
    totals: Mutex<Totals>,
}

/// Totals over all sessions, including removed ones.
struct Totals {
    /// Number of streams opened since the start.
    begun: u64,
    history: History,
    by_dataset: BTreeMap<String, Buckets>,
    trainers: BTreeMap<String, Activities>,
    /// Time in which reporting trainers did not compute.
    idle: Duration,
    sent: Samples<Sent>,
}

/// Time reported by trainers, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Activities {
    pub(crate) wait: f64,
    pub(crate) compute: f64,
    pub(crate) copy: f64,
    /// Busy time of GPUs, from reports with a GPU utilization.
    pub(crate) gpu_busy: f64,
    /// Idle time of GPUs, from reports with a GPU utilization.
    pub(crate) gpu_idle: f64,
}

/// An open stream; dropping it ends the stream.
pub(crate) struct Running {
    pub(crate) session: Arc<Session>,
    /// Records work for the stream.
    pub(crate) lane: forebay_stall::Lane,
    sessions: Sessions,
    _charge: Charge,
}

impl Sessions {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        let totals = Totals {
            begun: 0,
            history: History::new(now, KEPT_SECONDS),
            by_dataset: BTreeMap::new(),
            trainers: BTreeMap::new(),
            idle: Duration::ZERO,
            sent: Samples::new(now, Sent::default()),
        };
        let count = watch::Sender::new(0);
        let shared = Shared {
            sessions: DashMap::new(),
            count,
            demand: AtomicU64::new(0),
            sent: Mutex::new(Sent::default()),
            totals: Mutex::new(totals),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Opens a stream of `batches` batches of `job`, which is charged with `charge` until it ends. `trainer` is the id under which the
    /// client reports, 0 if it does not report.
    pub(crate) fn enter(
        &self,
        train: Train,
        (batches, job): (u64, Weak<Job>),
        trainer: u64,
        charge: Charge,
    ) -> Running {
        self.count(|count| *count += 1);
        let now = Instant::now();
        let number = {
            let mut totals = self.shared.totals.lock();
            totals.begun += 1;
            totals.begun
        };
        let id = match trainer {
            0 => xxh3_64(format!("stream {number} of {}", std::process::id()).as_bytes()),
            trainer => session_id(trainer, &train.dataset),
        };
        let due = (train.epoch, train.start_step);
        let begin = Begin { id, trainer, train, now };
        let session =
            Arc::clone(&self.shared.sessions.entry(id).or_insert_with(|| Arc::new(Session::new(begin))));
        let lane = session.enter(now, due, batches, job);
        Running { session, lane, sessions: self.clone(), _charge: charge }
    }

    /// Returns the sessions with open streams, oldest first; with `ended`, also recently ended ones.
    pub(crate) fn list(&self, ended: bool) -> Vec<Arc<Session>> {
        let sessions = self.shared.sessions.iter().map(|entry| Arc::clone(entry.value()));
        let mut sessions: Vec<_> = sessions.filter(|session| ended || session.is_running()).collect();
        sessions.sort_by_key(|session| (session.started, session.id));
        sessions
    }

    /// Returns the session with this id.
    pub(crate) fn get(&self, id: u64) -> Option<Arc<Session>> {
        self.shared.sessions.get(&id).map(|session| Arc::clone(&session))
    }

    /// Returns the number of open streams.
    pub(crate) fn streams(&self) -> usize {
        *self.shared.count.borrow()
    }

    /// Sets the demand of the trainers, in servers at full load.
    pub(crate) fn set_demand(&self, demand: f64) {
        self.shared.demand.store(demand.to_bits(), Ordering::Relaxed);
    }

    /// Returns the demand of the trainers at the last observation, in servers at full load; 0 before the first one.
    pub(crate) fn demand(&self) -> f64 {
        f64::from_bits(self.shared.demand.load(Ordering::Relaxed))
    }

    /// Records a report of a client, and returns its session.
    pub(crate) fn reported(&self, report: &ReportRequest) -> Option<Arc<Session>> {
        if report.trainer == 0 {
            return None;
        }
        let session = self.get(session_id(report.trainer, &report.dataset))?;
        let now = Instant::now();
        let (from, settled, credible) = session.report(now, report);
        let mut totals = self.shared.totals.lock();
        totals.settle(&session.train.dataset, from, now, &settled);
        let trainers = totals.trainers.entry(report.dataset.clone()).or_default();
        trainers.wait += report.wait_seconds * credible;
        trainers.compute += report.compute_seconds * credible;
        trainers.copy += report.copy_seconds * credible;
        if let Some(share) = report.gpu_utilization {
            trainers.gpu_busy += report.seconds * credible * share;
            trainers.gpu_idle += report.seconds * credible * (1.0 - share);
        }
        Some(session)
    }

    /// Settles time that no report settles, and removes ended sessions. Call about once per second.
    pub(crate) fn tick(&self, now: Instant) {
        let sessions = self.list(true);
        for session in &sessions {
            let (from, settled) = session.tick(now);
            self.shared.totals.lock().settle(&session.train.dataset, from, now, &settled);
        }
        let sent = *self.shared.sent.lock();
        self.shared.totals.lock().sent.sample(now, sent);
        let mut ended: Vec<_> =
            sessions.iter().filter_map(|session| Some((session.ended()?, session.id))).collect();
        ended.sort_unstable_by(|one, other| other.cmp(one));
        let is_old = |(at, (ended, _)): &(usize, &(Instant, u64))| {
            *at >= MAX_ENDED || now.saturating_duration_since(*ended) > REMOVED_AFTER
        };
        for (_, (_, id)) in ended.iter().enumerate().filter(is_old) {
            // A session may have continued in the meantime.
            self.shared.sessions.remove_if(id, |_, session| session.ended().is_some());
        }
    }

    /// Returns the time of all sessions in the last seconds.
    pub(crate) fn history(&self, now: Instant, seconds: usize) -> Vec<Interval> {
        self.shared.totals.lock().history.before(now, seconds)
    }

    /// Returns the time of sessions by dataset, since the start.
    pub(crate) fn by_dataset(&self) -> BTreeMap<String, Buckets> {
        self.shared.totals.lock().by_dataset.clone()
    }

    /// Returns the time reported by clients by dataset, since the start.
    pub(crate) fn activities(&self) -> BTreeMap<String, Activities> {
        self.shared.totals.lock().trainers.clone()
    }

    /// Returns the time in which reporting trainers did not compute, since the start.
    pub(crate) fn idle(&self) -> Duration {
        self.shared.totals.lock().idle
    }

    /// Returns the bytes and rows per second sent to all trainers.
    pub(crate) fn sent_per_second(&self) -> (f64, f64) {
        let totals = self.shared.totals.lock();
        (totals.sent.rate(|sent| sent.bytes as f64), totals.sent.rate(|sent| sent.rows as f64))
    }

    /// Waits until no stream is open.
    pub(crate) async fn none_running(&self) {
        // The sender lives as long as `self`, so this returns only when the count is 0.
        drop(self.shared.count.subscribe().wait_for(|count| *count == 0).await);
    }

    /// Changes the number of open streams. If two streams end at the same time, the gauge shows the later count.
    fn count(&self, change: impl FnOnce(&mut usize)) {
        self.shared.count.send_modify(|count| {
            change(count);
            metrics::gauge!("forebay_streams").set(*count as f64);
        });
    }
}

/// Derives the session id. A trainer that reads two datasets has two sessions.
fn session_id(trainer: u64, dataset: &str) -> u64 {
    xxh3_64(format!("trainer {trainer:016x} of {dataset}").as_bytes())
}

impl Totals {
    fn settle(&mut self, dataset: &str, from: Instant, to: Instant, settled: &Buckets) {
        if settled.sum().is_zero() {
            return;
        }
        self.history.add(from, to, settled);
        *self.by_dataset.entry(dataset.to_owned()).or_default() += *settled;
        if settled[Bucket::ComputeOrNetwork].is_zero() {
            self.idle += settled.sum().saturating_sub(settled[Bucket::Compute]);
        }
    }
}

impl Running {
    /// Records that a batch was passed to the transport; `due` is the epoch and step of the next one.
    pub(crate) fn batch_sent(&self, made: &FinishedBatch, due: (u64, u64)) {
        self.lane.batch_sent(due);
        let sent = Sent { batches: 1, rows: made.batch.rows, bytes: made.batch.body.len() as u64 };
        let at = (made.metadata.epoch, made.metadata.step);
        self.count(sent, at, made.label.as_ref());
    }

    /// Counts batches up to epoch and step `at`.
    fn count(&self, sent: Sent, at: (u64, u64), label: Option<&Moments>) {
        self.session.count(sent, at, label);
        *self.sessions.shared.sent.lock() += sent;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.lane.leave();
        self.session.leave(Instant::now());
        self.sessions.count(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests;
