//! Time and data counters of a trainer.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

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
        self.0.retries.load(Ordering::Relaxed)
    }

    /// Returns the error of the last failed attempt.
    pub fn last(&self) -> Option<String> {
        self.0.last_failure.lock().clone()
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
            *meter.utilization.lock() = Some((utilization, Instant::now()));
        }
        true
    }
}

/// Age from which a utilization is no longer reported.
const UTILIZATION_MAX_AGE: Duration = Duration::from_secs(3);

/// The counters of one training. A trainer writes them while other tasks read.
#[derive(Default)]
pub(super) struct Meter {
    batches: AtomicU64,
    rows: AtomicU64,
    bytes: AtomicU64,
    wait_nanos: AtomicU64,
    /// Time of compute and copies.
    busy_nanos: AtomicU64,
    copy_nanos: AtomicU64,
    retries: AtomicU64,
    last_failure: Mutex<Option<String>>,
    /// Current activity of the trainer and its start; `None` before the first request and after the end.
    activity: Mutex<Option<(Activity, Instant)>>,
    /// Last recorded utilization and the time of the record.
    utilization: Mutex<Option<(f64, Instant)>>,
}

#[derive(Clone, Copy)]
enum Activity {
    Waiting,
    Computing,
}

impl Meter {
    /// Records that the trainer requested a batch at `at`, after computing for `computed` since the last one.
    pub(super) fn requested(&self, at: Instant, computed: Option<Duration>) {
        let mut activity = self.activity.lock();
        computed.into_iter().for_each(|time| add(&self.busy_nanos, time));
        *activity = Some((Activity::Waiting, at));
    }

    /// Records that the trainer received `batch` at `at`, after waiting for `waited`.
    pub(super) fn delivered(&self, at: Instant, waited: Duration, batch: &impl Item) {
        let mut activity = self.activity.lock();
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.rows.fetch_add(batch.rows(), Ordering::Relaxed);
        self.bytes.fetch_add(batch.len_bytes(), Ordering::Relaxed);
        add(&self.wait_nanos, waited);
        *activity = Some((Activity::Computing, at));
    }

    /// Records a copy to a device.
    pub(super) fn copied(&self, time: Duration) {
        add(&self.copy_nanos, time);
    }

    /// Returns the utilization of the device, unless the last record is too old.
    pub(super) fn utilization(&self, now: Instant) -> Option<f64> {
        let (utilization, at) = (*self.utilization.lock())?;
        (now.saturating_duration_since(at) < UTILIZATION_MAX_AGE).then_some(utilization)
    }

    /// Records that the trainer receives no more batches.
    pub(super) fn ended(&self) {
        *self.activity.lock() = None;
    }

    /// Records a failed attempt.
    pub(super) fn failed(&self, error: String) {
        *self.last_failure.lock() = Some(error);
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the counters, including the current activity until `now`.
    pub(super) fn stats_until(&self, now: Instant) -> Stats {
        let activity = self.activity.lock();
        let mut stats = self.stats();
        match *activity {
            Some((Activity::Waiting, since)) => stats.wait += now.saturating_duration_since(since),
            Some((Activity::Computing, since)) => stats.compute += now.saturating_duration_since(since),
            None => {}
        }
        stats
    }

    /// Returns the counters of completed activities.
    pub(super) fn stats(&self) -> Stats {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let time = |counter: &AtomicU64| Duration::from_nanos(count(counter));
        let copy = time(&self.copy_nanos);
        Stats {
            batches: count(&self.batches),
            rows: count(&self.rows),
            bytes: count(&self.bytes),
            wait: time(&self.wait_nanos),
            compute: time(&self.busy_nanos).saturating_sub(copy),
            copy,
            retries: count(&self.retries),
        }
    }

    /// Returns a handle to the failed attempts.
    pub(super) fn failures(self: &Arc<Self>) -> Failures {
        Failures(Arc::clone(self))
    }

    /// Returns a handle that records the utilization of the device.
    pub(super) fn utilization_handle(self: &Arc<Self>) -> Utilization {
        Utilization(Arc::downgrade(self))
    }
}

fn add(counter: &AtomicU64, time: Duration) {
    counter.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
}
