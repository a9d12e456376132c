//! Accounting of one trainer's time: every instant is charged to one bucket.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use crate::bucket::{Bucket, Buckets, Stage};

/// Time without a report after which a trainer counts as not reporting. Until then, observed time stays unsettled and the
/// next report settles it.
const SILENT_AFTER: Duration = Duration::from_secs(5);

/// Activity of a trainer since its last report, as measured by its client.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Report {
    /// Seconds since the last report.
    pub seconds: f64,
    /// Seconds spent waiting for a batch, a part of `seconds`.
    pub wait_seconds: f64,
}

/// Charges the time of a trainer's streams.
///
/// The server observes whether the transport requests the next batch, and which stages work for that batch:
/// 1. No request: the trainer computes, or a sent batch is in transit ([`Bucket::ComputeOrNetwork`]).
/// 2. A request, and stages at work: the time is charged to the last of these stages in processing order.
/// 3. A request, and no stage at work: [`Bucket::Queued`].
///
/// Reports take precedence over observations. Time in which the trainer does not wait is [`Bucket::Compute`], regardless of
/// the work on the server. Wait time is distributed over the stages in proportion to the observed times; the part that
/// exceeds the observed wait is charged to [`Bucket::Network`].
///
/// With several lanes, the lane whose next batch has the smallest epoch and step is charged. Time without lanes is not
/// charged.
#[derive(Debug)]
pub struct Clock {
    /// Time up to which everything is charged.
    charged: Instant,
    lanes: BTreeMap<u64, LaneState>,
    /// Times observed by the server since the last settlement.
    observed: Buckets,
    settled_at: Instant,
    reports: bool,
    /// Fraction of the time spent waiting, from the last report.
    wait_fraction: Option<f64>,
    settled: Buckets,
}

/// State of one stream.
#[derive(Debug, Clone, Copy, Default)]
struct LaneState {
    /// Epoch and step of the next batch.
    due: (u64, u64),
    is_requested: bool,
    /// Number of operations in progress, by stage.
    work: [u32; Stage::ALL.len()],
}

impl Clock {
    /// Creates a clock that starts at `now`; `reports` is true if the trainer will [report](Self::report).
    pub fn new(now: Instant, reports: bool) -> Self {
        Self {
            charged: now,
            lanes: BTreeMap::new(),
            observed: Buckets::default(),
            settled_at: now,
            reports,
            wait_fraction: None,
            settled: Buckets::default(),
        }
    }

    /// Adds a stream whose first batch has the epoch and step `due`.
    pub fn enter(&mut self, now: Instant, lane: u64, due: (u64, u64)) {
        self.charge(now);
        self.lanes.insert(lane, LaneState { due, ..LaneState::default() });
    }

    /// Removes a stream.
    pub fn leave(&mut self, now: Instant, lane: u64) {
        self.charge(now);
        self.lanes.remove(&lane);
    }

    /// Records that the transport requests the next batch.
    pub fn batch_requested(&mut self, now: Instant, lane: u64) {
        self.change(now, lane, |lane| lane.is_requested = true);
    }

    /// Records that the requested batch was sent; `due` is the epoch and step of the next batch.
    pub fn batch_sent(&mut self, now: Instant, lane: u64, due: (u64, u64)) {
        self.change(now, lane, |lane| {
            lane.is_requested = false;
            lane.due = due;
        });
    }

    /// Records that an operation of `stage` begins for a stream.
    pub fn begin(&mut self, now: Instant, lane: u64, stage: Stage) {
        self.change(now, lane, |lane| lane.work[stage as usize] += 1);
    }

    /// Records that an operation of `stage` has ended.
    pub fn end(&mut self, now: Instant, lane: u64, stage: Stage) {
        self.change(now, lane, |lane| {
            let work = &mut lane.work[stage as usize];
            *work = work.saturating_sub(1);
        });
    }

    /// Settles the time since the last report by the trainer's report, and returns the settled time.
    ///
    /// A report with a duration that is not finite or not positive is ignored.
    pub fn report(&mut self, now: Instant, report: Report) -> Buckets {
        self.charge(now);
        if report.seconds.is_finite() && report.seconds > 0.0 && report.wait_seconds.is_finite() {
            self.reports = true;
            self.wait_fraction = Some((report.wait_seconds / report.seconds).clamp(0.0, 1.0));
        }
        self.settle(now, self.wait_fraction)
    }

    /// Settles time that no report will settle, and returns the settled time. Call about once per second.
    pub fn tick(&mut self, now: Instant) -> Buckets {
        self.charge(now);
        if self.lanes.is_empty() {
            return self.settle(now, self.wait_fraction);
        }
        let silent = now.saturating_duration_since(self.settled_at) > SILENT_AFTER;
        if self.reports && !silent {
            return Buckets::default();
        }
        if silent {
            self.wait_fraction = None;
        }
        self.settle(now, None)
    }

    /// Returns all time up to `now`. Unsettled time is split by the last report.
    pub fn total(&self, now: Instant) -> Buckets {
        let mut total = self.settled;
        let mut observed = self.observed;
        if let Some(bucket) = self.bucket() {
            observed[bucket] += now.saturating_duration_since(self.charged);
        }
        total += split(&observed, self.wait_fraction);
        total
    }

    /// True if the trainer reports.
    pub fn reports(&self) -> bool {
        self.wait_fraction.is_some()
    }

    /// Returns the number of streams.
    pub fn lanes(&self) -> usize {
        self.lanes.len()
    }

    fn change(&mut self, now: Instant, lane: u64, change: impl FnOnce(&mut LaneState)) {
        self.charge(now);
        // Work may end after its stream has.
        if let Some(lane) = self.lanes.get_mut(&lane) {
            change(lane);
        }
    }

    fn charge(&mut self, now: Instant) {
        // Events of different threads arrive only approximately in order.
        let Some(elapsed) = now.checked_duration_since(self.charged) else { return };
        if let Some(bucket) = self.bucket() {
            self.observed[bucket] += elapsed;
        }
        self.charged = now;
    }

    /// Returns the bucket of the current instant by observation alone.
    fn bucket(&self) -> Option<Bucket> {
        let due = self.lanes.values().min_by_key(|lane| lane.due)?;
        if !due.is_requested {
            return Some(Bucket::ComputeOrNetwork);
        }
        let at_work = |stage: &Stage| due.work[*stage as usize] > 0;
        Some(Stage::ALL.into_iter().rev().find(at_work).map_or(Bucket::Queued, Stage::bucket))
    }

    fn settle(&mut self, now: Instant, wait_fraction: Option<f64>) -> Buckets {
        let settled = split(&std::mem::take(&mut self.observed), wait_fraction);
        self.settled_at = now;
        self.settled += settled;
        settled
    }
}

/// Splits observed time by the reported fraction of wait time.
fn split(observed: &Buckets, wait_fraction: Option<f64>) -> Buckets {
    let Some(wait_fraction) = wait_fraction else { return *observed };
    let wall = observed.sum();
    let wait = wall.mul_f64(wait_fraction).min(wall);
    let upstream = observed.sum_of(Bucket::UPSTREAM);
    let mut reported = Buckets::default();
    let scale = if upstream.is_zero() { 0.0 } else { (wait.as_secs_f64() / upstream.as_secs_f64()).min(1.0) };
    for bucket in Bucket::UPSTREAM {
        reported[bucket] = observed[bucket].mul_f64(scale);
    }
    reported[Bucket::Network] = wait.saturating_sub(upstream);
    // The remainder, rounding included, so that the sum is preserved.
    reported[Bucket::Compute] = wall.saturating_sub(reported.sum());
    reported
}

#[cfg(test)]
mod tests;
