//! One session: a trainer with its streams of one dataset.

use std::{
    ops::{AddAssign, Range},
    sync::{Arc, Weak},
    time::{Duration, Instant, SystemTime},
};

use forebay_loader::{Job, WindowLoad, WindowWait};
use forebay_proto::v1::{ReportRequest, Train};
use forebay_stall::{Buckets, History, Interval, Known, Lane, Moments, Report, Skew};
use parking_lot::Mutex;

use crate::{auth::Access, reads, samples::Samples};

/// Length of the kept history, in seconds.
pub(crate) const KEPT_SECONDS: usize = 600;
/// Length of each of the two windows that a verdict compares.
pub(crate) const WINDOW: Duration = Duration::from_secs(10);
/// Time that the reports of a session may cover in addition to the time since it began, because reports may arrive late, and the clock of a
/// client may be faster.
const REPORT_TOLERANCE: Duration = Duration::from_secs(5);
/// Time that is excluded from windows because it is not settled yet: clients report once per second.
const UNSETTLED: Duration = Duration::from_secs(2);

/// Returns the two windows, the newer one first.
fn windows(now: Instant) -> (Range<Instant>, Range<Instant>) {
    let ago = |time| now.checked_sub(time).unwrap_or(now);
    let middle = ago(UNSETTLED + WINDOW);
    (middle..ago(UNSETTLED), ago(UNSETTLED + WINDOW * 2)..middle)
}

/// Number of batches, and their rows and bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sent {
    pub(crate) batches: u64,
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
}

impl AddAssign for Sent {
    fn add_assign(&mut self, other: Self) {
        self.batches += other.batches;
        self.rows += other.rows;
        self.bytes += other.bytes;
    }
}

/// Initial values of a session.
pub(crate) struct Begin {
    pub(crate) id: u64,
    /// Id under which the client reports, 0 if it does not report.
    pub(crate) trainer: u64,
    pub(crate) train: Train,
    pub(crate) now: Instant,
}

/// A trainer with open streams, or with streams that ended recently.
pub(crate) struct Session {
    pub(crate) id: u64,
    /// Request of the first stream.
    pub(crate) train: Train,
    pub(crate) started: Instant,
    pub(crate) started_at: SystemTime,
    clock: forebay_stall::Session,
    state: Mutex<State>,
}

struct State {
    streams: usize,
    ended: Option<Instant>,
    failure: Option<String>,
    sent: Sent,
    /// Number of batches that the streams will send in total.
    batches_total: u64,
    /// Epoch and step of the latest batch.
    at: (u64, u64),
    report: Option<ReportRequest>,
    /// Time that the reports cover, in seconds: at most the time since the session began plus [`REPORT_TOLERANCE`].
    reported_seconds: f64,
    settled: Instant,
    history: History,
    samples: Samples<Sent>,
    skew: Skew,
    /// Windows for which the streams wait.
    waits: Vec<WindowWait>,
    /// Job of the newest stream, which owns it.
    job: Weak<Job>,
}

impl Session {
    pub(super) fn new(begin: Begin) -> Self {
        let Begin { id, trainer, train, now } = begin;
        let state = State {
            streams: 0,
            ended: None,
            failure: None,
            sent: Sent::default(),
            batches_total: 0,
            at: (train.epoch, train.start_step),
            report: None,
            reported_seconds: 0.0,
            settled: now,
            history: History::new(now, KEPT_SECONDS),
            samples: Samples::new(now, Sent::default()),
            skew: Skew::default(),
            waits: Vec::new(),
            job: Weak::new(),
        };
        Self {
            id,
            train,
            started: now,
            started_at: SystemTime::now(),
            clock: forebay_stall::Session::new(now, trainer != 0),
            state: Mutex::new(state),
        }
    }

    pub(super) fn enter(&self, now: Instant, due: (u64, u64), batches: u64, job: Weak<Job>) -> Lane {
        let mut state = self.state.lock();
        state.job = job;
        if state.streams == 0 {
            // No time was charged while no stream was open.
            state.settled = now;
        }
        state.streams += 1;
        state.ended = None;
        state.failure = None;
        // A reopened lane continues where it stopped.
        state.batches_total =
            batches + if state.streams == 1 { state.sent.batches } else { state.batches_total };
        drop(state);
        self.clock.enter(now, due)
    }

    /// Observes the windows for which an open stream waits.
    pub(crate) fn observe(&self, waits: WindowWait) {
        let of_streams = &mut self.state.lock().waits;
        of_streams.retain(|waits| !waits.is_over());
        of_streams.push(waits);
    }

    /// Returns the progress of the windows for which the streams wait; `None` if they wait for none.
    pub(crate) fn loading(&self) -> Option<WindowLoad> {
        WindowWait::progress(&self.state.lock().waits)
    }

    pub(super) fn leave(&self, now: Instant) {
        let mut state = self.state.lock();
        state.streams = state.streams.saturating_sub(1);
        if state.streams == 0 {
            state.ended = Some(now);
        }
    }

    /// Counts batches up to epoch and step `at`.
    pub(super) fn count(&self, sent: Sent, at: (u64, u64), label: Option<&Moments>) {
        let mut state = self.state.lock();
        state.sent += sent;
        state.at = state.at.max(at);
        if let Some(label) = label {
            state.skew.add(label);
        }
    }

    /// Sets the statistics of the label over the dataset.
    pub(crate) fn set_label_statistics(&self, label: Known) {
        self.state.lock().skew.set_known(label);
    }

    /// Settles time by a report of the client. Returns the settled time and its start, and the fraction of the reported time that can have
    /// passed: all reports together cover at most the time since the session began plus [`REPORT_TOLERANCE`].
    pub(super) fn report(&self, now: Instant, report: &ReportRequest) -> (Instant, Buckets, f64) {
        let measured = Report { seconds: report.seconds, wait_seconds: report.wait_seconds };
        let settled = self.clock.clock().report(now, measured);
        let mut state = self.state.lock();
        state.report = Some(report.clone());
        let passed = (now.saturating_duration_since(self.started) + REPORT_TOLERANCE).as_secs_f64();
        let rest = (passed - state.reported_seconds).max(0.0);
        let times = [report.wait_seconds, report.compute_seconds, report.copy_seconds];
        let covered = times.into_iter().fold(report.seconds, f64::max);
        let credible = (rest / covered.max(f64::MIN_POSITIVE)).min(1.0);
        state.reported_seconds += covered * credible;
        (state.settle(now, &settled), settled, credible)
    }

    pub(super) fn tick(&self, now: Instant) -> (Instant, Buckets) {
        let settled = self.clock.clock().tick(now);
        let mut state = self.state.lock();
        let sent = state.sent;
        state.samples.sample(now, sent);
        let from = if settled.sum().is_zero() { state.settled } else { state.settle(now, &settled) };
        (from, settled)
    }

    /// Names of the datasets; `dataset` of the request comes first.
    pub(crate) fn datasets(&self) -> impl Iterator<Item = &str> {
        reads::of_train(&self.train)
    }

    /// True if the caller may read all datasets of the session.
    pub(crate) fn is_visible_to(&self, access: &Access) -> bool {
        self.datasets().all(|dataset| access.may_read(dataset))
    }

    pub(crate) fn is_running(&self) -> bool {
        self.state.lock().ended.is_none()
    }

    /// Time at which the last stream ended, if none is open.
    pub(super) fn ended(&self) -> Option<Instant> {
        self.state.lock().ended
    }

    /// Returns the totals sent.
    pub(crate) fn sent(&self) -> Sent {
        self.state.lock().sent
    }

    /// Returns the number of batches that the streams will send in total, and epoch and step of the latest batch.
    pub(crate) fn progress(&self) -> (u64, (u64, u64)) {
        let state = self.state.lock();
        (state.batches_total, state.at)
    }

    /// Returns the time charged so far.
    pub(crate) fn seconds(&self, now: Instant) -> Buckets {
        self.clock.clock().total(now)
    }

    /// Returns the time charged in the last seconds.
    pub(crate) fn history(&self, now: Instant, seconds: usize) -> Vec<Interval> {
        self.state.lock().history.before(now, seconds)
    }

    /// Returns the last report of the client, unless it stopped reporting.
    pub(crate) fn last_report(&self) -> Option<ReportRequest> {
        let reports = self.clock.clock().reports();
        self.state.lock().report.clone().filter(|_| reports)
    }

    /// Returns batches, rows and bytes per second.
    pub(crate) fn rates(&self) -> (f64, f64, f64) {
        let state = self.state.lock();
        let rate = |total: fn(&Sent) -> u64| state.samples.rate(|sent| total(sent) as f64);
        (rate(|sent| sent.batches), rate(|sent| sent.rows), rate(|sent| sent.bytes))
    }

    /// Returns the approximate number of batches sent in the two windows.
    fn recent_batches(&self) -> u64 {
        let (batches, ..) = self.rates();
        let time = self.started.elapsed().min(WINDOW * 2).as_secs_f64();
        (batches * time) as u64
    }

    /// Returns the skew of the label.
    pub(crate) fn skew(&self) -> Skew {
        self.state.lock().skew
    }

    /// Returns the time in the two windows of the verdict, the newer one first.
    pub(crate) fn windows(&self, now: Instant) -> (Buckets, Buckets) {
        let (recent, before) = windows(now);
        let state = self.state.lock();
        let sum = |window: Range<Instant>| state.history.sum(window.start, window.end);
        (sum(recent), sum(before))
    }

    /// Records why a stream failed.
    pub(crate) fn failed(&self, reason: String) {
        self.state.lock().failure = Some(reason);
    }

    /// Returns why the last failed stream failed.
    pub(crate) fn failure(&self) -> Option<String> {
        self.state.lock().failure.clone()
    }

    /// Returns the time in the two windows of the verdict, the newer one first, and the approximate number of batches sent in them.
    pub(crate) fn evidence(&self, now: Instant) -> (Buckets, Buckets, u64) {
        let (recent, before) = self.windows(now);
        (recent, before, self.recent_batches())
    }

    /// Returns the job of the newest stream, while it is open.
    pub(crate) fn job(&self) -> Option<Arc<Job>> {
        self.state.lock().job.upgrade()
    }
}

impl State {
    /// Adds time settled up to `now` to the history, and returns its start.
    fn settle(&mut self, now: Instant, settled: &Buckets) -> Instant {
        let from = std::mem::replace(&mut self.settled, now);
        self.history.add(from, now, settled);
        from
    }
}
