//! One trainer's time, every instant of it in one bucket.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use crate::{Bucket, Buckets, Stage};

/// What the server sees of a trainer that reports is settled by its next report; one that says nothing for so long is taken to
/// be silent.
const SILENT_AFTER: Duration = Duration::from_secs(5);

/// What a trainer says that it did since its last report.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Report {
    /// The time since then.
    pub seconds: f64,
    /// Of it, the time in which it waited for a batch.
    pub wait_seconds: f64,
}

/// Charges the time of a trainer's streams.
///
/// What a server sees is whether the transport asks for the batch that is due, and what is done for it meanwhile:
/// 1. it does not ask: the trainer computes, or what was sent is on its way: [`Bucket::Downstream`];
/// 2. it asks, and the most downstream stage at work for the batch is the one that it waits for;
/// 3. it asks, and nothing is at work: [`Bucket::Admission`].
///
/// What a trainer reports is taken at its word: time in which it does not wait is [`Bucket::Consumer`], whatever the server did
/// meanwhile. The time that it waits goes to the stages as the server saw them, and what they don't explain to the
/// [`Bucket::Network`].
///
/// Of several lanes, the one whose batch comes first in the order of steps counts. Time without any lane is not charged.
#[derive(Debug)]
pub struct Clock {
    /// Up to here all is charged.
    charged: Instant,
    lanes: BTreeMap<u64, LaneState>,
    /// As the server sees it, since the last settlement.
    seen: Buckets,
    settled_at: Instant,
    reports: bool,
    /// Part of the time that it waited, by its last report.
    wait_share: Option<f64>,
    settled: Buckets,
}

/// One stream.
#[derive(Debug, Clone, Copy, Default)]
struct LaneState {
    /// Epoch and step of the batch that is due.
    due: (u64, u64),
    asks: bool,
    /// What is being done for it, by stage.
    work: [u32; Stage::ALL.len()],
}

impl Clock {
    /// A clock that starts at `now`, of a trainer that [reports](Self::report) or doesn't.
    pub fn new(now: Instant, reports: bool) -> Self {
        Self {
            charged: now,
            lanes: BTreeMap::new(),
            seen: Buckets::default(),
            settled_at: now,
            reports,
            wait_share: None,
            settled: Buckets::default(),
        }
    }

    /// A stream begins, with the batch that is `due` first: its epoch and step.
    pub fn enter(&mut self, now: Instant, lane: u64, due: (u64, u64)) {
        self.charge(now);
        self.lanes.insert(lane, LaneState { due, ..LaneState::default() });
    }

    /// A stream has ended.
    pub fn leave(&mut self, now: Instant, lane: u64) {
        self.charge(now);
        self.lanes.remove(&lane);
    }

    /// The transport asks for the batch that is due.
    pub fn asks(&mut self, now: Instant, lane: u64) {
        self.change(now, lane, |lane| lane.asks = true);
    }

    /// It has got it; the next one is that of epoch and step `due`.
    pub fn served(&mut self, now: Instant, lane: u64, due: (u64, u64)) {
        self.change(now, lane, |lane| {
            lane.asks = false;
            lane.due = due;
        });
    }

    /// Something begins to be done for a stream.
    pub fn begin(&mut self, now: Instant, lane: u64, stage: Stage) {
        self.change(now, lane, |lane| lane.work[stage as usize] += 1);
    }

    /// ... and has ended.
    pub fn end(&mut self, now: Instant, lane: u64, stage: Stage) {
        self.change(now, lane, |lane| {
            let work = &mut lane.work[stage as usize];
            *work = work.saturating_sub(1);
        });
    }

    /// Takes the trainer's word for the time since its last report, and returns what was settled by it.
    pub fn report(&mut self, now: Instant, report: Report) -> Buckets {
        self.charge(now);
        if report.seconds.is_finite() && report.seconds > 0.0 && report.wait_seconds.is_finite() {
            self.reports = true;
            self.wait_share = Some((report.wait_seconds / report.seconds).clamp(0.0, 1.0));
        }
        self.settle(now, self.wait_share)
    }

    /// Settles what no report is going to settle, and returns it. To be called about once a second.
    pub fn tick(&mut self, now: Instant) -> Buckets {
        self.charge(now);
        if self.lanes.is_empty() {
            return self.settle(now, self.wait_share);
        }
        let silent = now.saturating_duration_since(self.settled_at) > SILENT_AFTER;
        if self.reports && !silent {
            return Buckets::default();
        }
        if silent {
            self.wait_share = None;
        }
        self.settle(now, None)
    }

    /// All the time so far. What is not settled yet is counted by the last report.
    pub fn total(&self, now: Instant) -> Buckets {
        let mut total = self.settled;
        let mut seen = self.seen;
        if let Some(bucket) = self.bucket() {
            seen[bucket] += now.saturating_duration_since(self.charged);
        }
        total += split(&seen, self.wait_share);
        total
    }

    /// Whether its trainer reports, as far as is known.
    pub fn reports(&self) -> bool {
        self.wait_share.is_some()
    }

    /// How many streams there are.
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
        // Threads tell of events in about their order.
        let Some(elapsed) = now.checked_duration_since(self.charged) else { return };
        if let Some(bucket) = self.bucket() {
            self.seen[bucket] += elapsed;
        }
        self.charged = now;
    }

    /// Where this instant goes, as the server sees it.
    fn bucket(&self) -> Option<Bucket> {
        let due = self.lanes.values().min_by_key(|lane| lane.due)?;
        if !due.asks {
            return Some(Bucket::Downstream);
        }
        let at_work = |stage: &Stage| due.work[*stage as usize] > 0;
        Some(Stage::ALL.into_iter().rev().find(at_work).map_or(Bucket::Admission, Stage::bucket))
    }

    fn settle(&mut self, now: Instant, wait_share: Option<f64>) -> Buckets {
        let settled = split(&std::mem::take(&mut self.seen), wait_share);
        self.settled_at = now;
        self.settled += settled;
        settled
    }
}

/// What the server has `seen`, by the word of a trainer that waited that share of the time.
fn split(seen: &Buckets, wait_share: Option<f64>) -> Buckets {
    let Some(wait_share) = wait_share else { return *seen };
    let wall = seen.sum();
    let wait = wall.mul_f64(wait_share).min(wall);
    let upstream = seen.sum_of(Bucket::UPSTREAM);
    let mut told = Buckets::default();
    let felt = if upstream.is_zero() { 0.0 } else { (wait.as_secs_f64() / upstream.as_secs_f64()).min(1.0) };
    for bucket in Bucket::UPSTREAM {
        told[bucket] = seen[bucket].mul_f64(felt);
    }
    told[Bucket::Network] = wait.saturating_sub(upstream);
    // What is left, rounding included, so that the sum stays what it was.
    told[Bucket::Consumer] = wall.saturating_sub(told.sum());
    told
}

#[cfg(test)]
mod tests;
