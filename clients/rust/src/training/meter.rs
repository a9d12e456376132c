//! Time and data counters of a trainer.

use std::{
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use forebay_proto::v1::WindowLoad;
use parking_lot::Mutex;

use crate::batches::Item;

/// Counters of a training since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Number of delivered batches.
    pub batches: u64,
    /// Number of rows in the delivered batches.
    pub rows: u64,
    /// Size of the delivered batches in bytes.
    pub bytes: u64,
    /// Time that the trainer waited for batches.
    pub wait: Duration,
    /// Time between the delivery of a batch and the request for the next one, without `copy`.
    pub compute: Duration,
    /// Time of copies to a device that the trainer waited for.
    pub copy: Duration,
    /// Number of failed attempts after which a stream was resumed.
    pub retries: u64,
}

/// The failed attempts of a training. Cheap to clone.
#[derive(Clone)]
pub struct Failures(Arc<Meter>);

impl Failures {
    /// Returns the number of failed attempts; see [`Stats::retries`].
    pub fn count(&self) -> u64 {
        self.0.state.lock().stats.retries
    }

    /// Returns the error of the last failed attempt.
    pub fn last(&self) -> Option<String> {
        self.0.state.lock().last_failure.clone()
    }
}

/// Reads the counters of a training, also while a batch is awaited. Cheap to clone.
#[derive(Clone)]
pub struct Counters(Arc<Meter>);

impl Counters {
    /// Returns the counters of the training.
    pub fn stats(&self) -> Stats {
        self.0.stats()
    }
}

/// Receives the utilization of the trainer's device, from any thread. Does not keep the training alive.
#[derive(Clone)]
pub struct Utilization(Weak<Meter>);

impl Utilization {
    /// Records the utilization of the device, from 0 to 1. Other values are ignored. The value is part of the reports to the
    /// server for three seconds, unless a newer one replaces it. Returns false if the training has ended.
    pub fn set(&self, utilization: f64) -> bool {
        let Some(meter) = self.0.upgrade() else { return false };
        if (0.0..=1.0).contains(&utilization) {
            meter.state.lock().utilization = Some((utilization, Instant::now()));
        }
        true
    }
}

/// Reads what the server loads for a training, also while a batch is awaited. Cheap to clone.
#[derive(Clone)]
pub struct Loading(Arc<Meter>);

impl Loading {
    /// Returns the progress of the shuffle windows that the streams of the training wait for, as the server answered to the last report.
    /// `None` if the streams wait for none, if the last answer is older than three seconds or than the last batch, if the server is older
    /// than this client, and with [`Config::report`](crate::Config::report) off. It is the first window while [`Stats::batches`] is 0.
    pub fn get(&self) -> Option<WindowLoad> {
        let (loading, at) = self.0.state.lock().loading?;
        (at.elapsed() < LOADING_MAX_AGE).then_some(loading)
    }
}

/// Age from which an answer about loading is no longer returned.
const LOADING_MAX_AGE: Duration = Duration::from_secs(3);

/// Age from which a utilization is no longer reported.
const UTILIZATION_MAX_AGE: Duration = Duration::from_secs(3);

/// The counters of one training. A trainer writes them while other tasks read.
#[derive(Default)]
pub(super) struct Meter {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Counters of completed activities. The time of copies is also part of `compute`.
    stats: Stats,
    last_failure: Option<String>,
    /// Current activity of the trainer and its start; `None` before the first request and after the end.
    activity: Option<(Activity, Instant)>,
    /// Last recorded utilization and the time of the record.
    utilization: Option<(f64, Instant)>,
    /// Windows that the streams wait for, and the time of the answer that says so.
    loading: Option<(WindowLoad, Instant)>,
}

enum Activity {
    Waiting,
    Computing,
}

impl State {
    /// Returns the counters of completed activities.
    fn completed(&self) -> Stats {
        let Stats { compute, copy, .. } = self.stats;
        Stats { compute: compute.saturating_sub(copy), ..self.stats }
    }
}

impl Meter {
    /// Records that the trainer requested a batch at `at`, after computing for `computed` since the last one.
    pub(super) fn requested(&self, at: Instant, computed: Option<Duration>) {
        let mut state = self.state.lock();
        state.stats.compute += computed.unwrap_or_default();
        state.activity = Some((Activity::Waiting, at));
    }

    /// Records that the trainer received `batch` at `at`, after waiting for `waited`.
    pub(super) fn delivered(&self, at: Instant, waited: Duration, batch: &impl Item) {
        let ((rows, bytes), mut state) = (batch.rows_and_bytes(), self.state.lock());
        state.stats.batches += 1;
        state.stats.rows += rows;
        state.stats.bytes += bytes;
        state.stats.wait += waited;
        state.activity = Some((Activity::Computing, at));
        state.loading = None;
    }

    /// Records a copy to a device.
    pub(super) fn copied(&self, time: Duration) {
        let copy = &mut self.state.lock().stats.copy;
        *copy = copy.saturating_add(time);
    }

    /// Returns the utilization of the device, unless the last record is too old.
    pub(super) fn utilization(&self, now: Instant) -> Option<f64> {
        let (utilization, at) = self.state.lock().utilization?;
        (now.saturating_duration_since(at) < UTILIZATION_MAX_AGE).then_some(utilization)
    }

    /// Returns how long the trainer has waited for the batch that it waits for; zero if it waits for none.
    pub(super) fn waiting_for(&self, now: Instant) -> Duration {
        match self.state.lock().activity {
            Some((Activity::Waiting, since)) => now.saturating_duration_since(since),
            _ => Duration::ZERO,
        }
    }

    /// Records that the trainer receives no more batches.
    pub(super) fn ended(&self) {
        let mut state = self.state.lock();
        state.activity = None;
        state.loading = None;
    }

    /// Records the windows that the streams wait for, by an answer of the server to a report that was sent when `batches` batches had
    /// been delivered.
    pub(super) fn set_loading(&self, loading: Option<WindowLoad>, batches: u64) {
        let mut state = self.state.lock();
        // A batch that has been delivered since then is newer than the answer.
        let loading = loading.filter(|_| state.stats.batches == batches);
        state.loading = loading.map(|loading| (loading, Instant::now()));
    }

    /// Records a failed attempt.
    pub(super) fn failed(&self, error: String) {
        let mut state = self.state.lock();
        state.last_failure = Some(error);
        state.stats.retries += 1;
    }

    /// Returns the counters, including the current activity until `now`.
    pub(super) fn stats_until(&self, now: Instant) -> Stats {
        let state = self.state.lock();
        let mut stats = state.completed();
        match state.activity {
            Some((Activity::Waiting, since)) => stats.wait += now.saturating_duration_since(since),
            Some((Activity::Computing, since)) => stats.compute += now.saturating_duration_since(since),
            None => {}
        }
        stats
    }

    /// Returns the counters of completed activities.
    pub(super) fn stats(&self) -> Stats {
        self.state.lock().completed()
    }

    /// Returns a handle to the counters.
    pub(super) fn counters(self: &Arc<Self>) -> Counters {
        Counters(Arc::clone(self))
    }

    /// Returns a handle to the failed attempts.
    pub(super) fn failures(self: &Arc<Self>) -> Failures {
        Failures(Arc::clone(self))
    }

    /// Returns a handle to what the server loads.
    pub(super) fn loading(self: &Arc<Self>) -> Loading {
        Loading(Arc::clone(self))
    }

    /// Returns a handle that records the utilization of the device.
    pub(super) fn utilization_handle(self: &Arc<Self>) -> Utilization {
        Utilization(Arc::downgrade(self))
    }
}
