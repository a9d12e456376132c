//! Where a trainer's time goes.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::batches::Item;

/// What a trainer was delivered, and what that took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Batches handed over.
    pub batches: u64,
    /// Their rows.
    pub rows: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
    /// Time in which the trainer waited for a batch.
    pub wait: Duration,
    /// Time between a batch and the demand for the next one, without copies.
    pub compute: Duration,
    /// Time of copies to a device that the trainer waited for.
    pub copy: Duration,
    /// Attempts that failed, and after which the stream went on, on another server maybe.
    pub retries: u64,
}

/// Attempts of a training that failed. Cheap to clone.
#[derive(Clone)]
pub struct Failures(pub(crate) Arc<Meter>);

impl Failures {
    /// How many so far; see [`Stats::retries`].
    pub fn count(&self) -> u64 {
        self.0.retries.load(Ordering::Relaxed)
    }

    /// How the last of them failed.
    pub fn last(&self) -> Option<String> {
        self.0.last_failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Takes how busy the device is that a trainer computes on, from any thread. It does not keep the training.
#[derive(Clone)]
pub struct Utilization(pub(crate) Weak<Meter>);

impl Utilization {
    /// Notes that `share` of the last moments, 0 to 1, something ran on the device; anything else is not noted. The server is told
    /// with the next report, and with those of the next three seconds if nothing newer comes. Returns whether the training still
    /// goes on.
    pub fn set(&self, share: f64) -> bool {
        let Some(meter) = self.0.upgrade() else { return false };
        if (0.0..=1.0).contains(&share) {
            *meter.utilization.lock().unwrap_or_else(PoisonError::into_inner) = Some((share, Instant::now()));
        }
        true
    }
}

/// So long a utilization is taken for one of now.
const UTILIZATION_HOLDS: Duration = Duration::from_secs(3);

/// Counts it, while another task reads.
#[derive(Default)]
pub(crate) struct Meter {
    batches: AtomicU64,
    rows: AtomicU64,
    bytes: AtomicU64,
    wait_nanos: AtomicU64,
    /// Computing and copying together.
    away_nanos: AtomicU64,
    copy_nanos: AtomicU64,
    retries: AtomicU64,
    last_failure: Mutex<Option<String>>,
    /// What the trainer does at this moment, and since when.
    now: Mutex<Option<(Doing, Instant)>>,
    /// The last one, and when it was noted.
    utilization: Mutex<Option<(f64, Instant)>>,
}

#[derive(Clone, Copy)]
enum Doing {
    Waiting,
    Computing,
}

impl Meter {
    /// The trainer asks for a batch, after it had computed since the last one.
    pub(crate) fn asked(&self, at: Instant, computed: Option<Duration>) {
        let mut now = self.now();
        computed.into_iter().for_each(|time| add(&self.away_nanos, time));
        *now = Some((Doing::Waiting, at));
    }

    /// It got one at `at`, after it had waited.
    pub(crate) fn handed_over(&self, at: Instant, waited: Duration, batch: &impl Item) {
        let mut now = self.now();
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.rows.fetch_add(batch.rows(), Ordering::Relaxed);
        self.bytes.fetch_add(batch.len_bytes(), Ordering::Relaxed);
        add(&self.wait_nanos, waited);
        *now = Some((Doing::Computing, at));
    }

    pub(crate) fn copied(&self, time: Duration) {
        add(&self.copy_nanos, time);
    }

    /// How busy the device is, if it was noted of late.
    pub(crate) fn utilization(&self, now: Instant) -> Option<f64> {
        let (share, at) = (*self.utilization.lock().unwrap_or_else(PoisonError::into_inner))?;
        (now.saturating_duration_since(at) < UTILIZATION_HOLDS).then_some(share)
    }

    /// It gets no more.
    pub(crate) fn ended(&self) {
        *self.now() = None;
    }

    pub(crate) fn failed(&self, words: String) {
        *self.last_failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(words);
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    /// As [`stats`](Self::stats), with the part of what goes on that lies before `now`.
    pub(crate) fn stats_until(&self, now: Instant) -> Stats {
        let doing = self.now();
        let mut stats = self.stats();
        match *doing {
            Some((Doing::Waiting, since)) => stats.wait += now.saturating_duration_since(since),
            Some((Doing::Computing, since)) => stats.compute += now.saturating_duration_since(since),
            None => {}
        }
        stats
    }

    fn now(&self) -> MutexGuard<'_, Option<(Doing, Instant)>> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn stats(&self) -> Stats {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let time = |counter: &AtomicU64| Duration::from_nanos(count(counter));
        let copy = time(&self.copy_nanos);
        Stats {
            batches: count(&self.batches),
            rows: count(&self.rows),
            bytes: count(&self.bytes),
            wait: time(&self.wait_nanos),
            compute: time(&self.away_nanos).saturating_sub(copy),
            copy,
            retries: count(&self.retries),
        }
    }
}

fn add(counter: &AtomicU64, time: Duration) {
    counter.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
}
