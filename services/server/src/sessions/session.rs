//! One session: a trainer with its streams of one dataset.

use std::{
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant, SystemTime},
};

use forebay_loader::Made;
use forebay_proto::v1::{ReportRequest, Train};
use forebay_stall::{Buckets, Evidence, History, Interval, Known, Lane, Report, Skew, Verdict, judge};
use parking_lot::Mutex;

use super::rates::{Rates, Sent};

/// Length of the kept history, in seconds.
pub(crate) const KEPT_SECONDS: usize = 600;
/// Length of each of the two windows that a verdict compares.
pub(crate) const WINDOW: Duration = Duration::from_secs(10);
/// Time that is excluded from windows because it is not settled yet: clients report once per second.
const UNSETTLED: Duration = Duration::from_secs(2);

/// Returns the two windows, the newer one first.
fn windows(now: Instant) -> (Range<Instant>, Range<Instant>) {
    let ago = |time| now.checked_sub(time).unwrap_or(now);
    let middle = ago(UNSETTLED + WINDOW);
    (middle..ago(UNSETTLED), ago(UNSETTLED + WINDOW * 2)..middle)
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
    batches: AtomicU64,
    rows: AtomicU64,
    bytes: AtomicU64,
    state: Mutex<State>,
}

struct State {
    streams: usize,
    ended: Option<Instant>,
    failure: Option<String>,
    /// Number of batches that the streams will send in total.
    batches_total: u64,
    epoch: u64,
    step: u64,
    report: Option<ReportRequest>,
    settled: Instant,
    history: History,
    rates: Rates,
    skew: Skew,
}

impl Session {
    pub(super) fn new(begin: Begin) -> Self {
        let Begin { id, trainer, train, now } = begin;
        let state = State {
            streams: 0,
            ended: None,
            failure: None,
            batches_total: 0,
            epoch: train.epoch,
            step: train.start_step,
            report: None,
            settled: now,
            history: History::new(now, KEPT_SECONDS),
            rates: Rates::new(now),
            skew: Skew::default(),
        };
        Self {
            id,
            train,
            started: now,
            started_at: SystemTime::now(),
            clock: forebay_stall::Session::new(now, trainer != 0),
            batches: AtomicU64::new(0),
            rows: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            state: Mutex::new(state),
        }
    }

    pub(super) fn enter(&self, now: Instant, due: (u64, u64), batches: u64) -> Lane {
        let mut state = self.state.lock();
        if state.streams == 0 {
            // No time was charged while no stream was open.
            state.settled = now;
        }
        state.streams += 1;
        state.ended = None;
        state.failure = None;
        // A reopened lane continues where it stopped.
        let sent = self.batches.load(Ordering::Relaxed);
        state.batches_total = if state.streams == 1 { sent + batches } else { state.batches_total + batches };
        drop(state);
        self.clock.enter(now, due)
    }

    pub(super) fn leave(&self, now: Instant) {
        let mut state = self.state.lock();
        state.streams = state.streams.saturating_sub(1);
        if state.streams == 0 {
            state.ended = Some(now);
        }
    }

    pub(super) fn count(&self, made: &Made) {
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.rows.fetch_add(made.batch.rows, Ordering::Relaxed);
        self.bytes.fetch_add(made.batch.body.len() as u64, Ordering::Relaxed);
        let mut state = self.state.lock();
        let at = (made.metadata.epoch, made.metadata.step);
        if at > (state.epoch, state.step) {
            (state.epoch, state.step) = at;
        }
        if let Some(label) = &made.label {
            state.skew.add(label);
        }
    }

    /// Sets the statistics of the label over the dataset.
    pub(crate) fn set_label_statistics(&self, label: Known) {
        self.state.lock().skew.set_known(label);
    }

    /// Settles time by a report of the client. Returns the settled time and its start.
    pub(super) fn report(&self, now: Instant, report: &ReportRequest) -> (Instant, Buckets) {
        let measured = Report { seconds: report.seconds, wait_seconds: report.wait_seconds };
        let settled = self.clock.clock().report(now, measured);
        let mut state = self.state.lock();
        state.report = Some(report.clone());
        (state.settle(now, &settled), settled)
    }

    pub(super) fn tick(&self, now: Instant) -> (Instant, Buckets) {
        let settled = self.clock.clock().tick(now);
        let sent = self.sent();
        let mut state = self.state.lock();
        state.rates.sample(now, sent);
        let from = if settled.sum().is_zero() { state.settled } else { state.settle(now, &settled) };
        (from, settled)
    }

    pub(crate) fn is_running(&self) -> bool {
        self.state.lock().ended.is_none()
    }

    pub(super) fn ended_before(&self, now: Instant, time: Duration) -> bool {
        self.state.lock().ended.is_some_and(|ended| now.saturating_duration_since(ended) > time)
    }

    /// Returns the totals sent.
    pub(crate) fn sent(&self) -> Sent {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Sent { batches: count(&self.batches), rows: count(&self.rows), bytes: count(&self.bytes) }
    }

    /// Returns the number of batches that the streams will send in total.
    pub(crate) fn batches_total(&self) -> u64 {
        self.state.lock().batches_total
    }

    /// Returns epoch and step of the latest batch.
    pub(crate) fn at(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.epoch, state.step)
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
        let rates = &state.rates;
        (rates.batches_per_second(), rates.rows_per_second(), rates.bytes_per_second())
    }

    /// Returns the approximate number of batches sent in the two windows.
    pub(crate) fn recent_batches(&self) -> u64 {
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

    /// Returns the verdict and the time it was judged by.
    pub(crate) fn verdict(&self, now: Instant) -> (Verdict, Buckets) {
        let (batches, (recent, before)) = (self.recent_batches(), self.windows(now));
        let verdict = judge(&Evidence { recent, before, window: WINDOW, sessions: 1, batches });
        let mut both = recent;
        both += before;
        (verdict, both)
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
