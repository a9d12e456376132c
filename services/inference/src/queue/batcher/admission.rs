//! Room of the queue for a tenant, and the predicted time until an answer.

use std::time::Duration;

use forebay_loader::Tenant;

use super::{
    Batcher, Worker,
    cohort::{Cohort, Totals},
};
use crate::queue::{Class, Priority, QueueConfig, Time};

/// Increase of the caution factor per request that expires although its prediction was in time.
///
/// A queue that is as long as its deadlines allow misses many of them when a worker slows down for a moment. The caution
/// factor shortens the queue after such misses.
const CAUTION_PER_EXPIRY: f64 = 0.02;
/// Decrease of the caution factor per answered request.
const CAUTION_PER_ANSWER: f64 = CAUTION_PER_EXPIRY / 100.0;
const MAX_CAUTION: f64 = 8.0;
/// Half-life of the part of the caution factor above 1, in seconds, so that past misses do not refuse requests permanently.
const CAUTION_HALF_LIFE_SECONDS: f64 = 1.0;
/// Maximum of a tenant's queued requests and rows, as a multiple of the room that is left.
const MAX_QUEUED_PER_FREE: usize = 7;

impl Batcher {
    /// Returns true if the queue has room for a request of `class`. Requests of low priority do not count for one of normal priority,
    /// because they make room for it. A tenant with queued requests may have up to seven times the
    /// room that is left, so a single one leaves an eighth, and several ones get equal parts. This is the dynamic threshold of
    /// shared-memory switches (Choudhury and Hahne, 1998).
    pub(super) fn has_room(&self, Class { tenant, priority }: Class, rows: u64) -> bool {
        let QueueConfig { max_queue_requests, max_queue_rows, .. } = self.config;
        let (queued_requests, queued_rows) = match priority {
            Priority::Normal => (self.of(priority).requests, self.of(priority).rows),
            Priority::Low => (self.queued.len(), self.queued_rows()),
        };
        let free_requests = max_queue_requests.saturating_sub(queued_requests);
        let free_rows = max_queue_rows.saturating_sub(queued_rows);
        if free_requests == 0 || rows > free_rows {
            return false;
        }
        let (own_requests, own_rows) = self.of(priority).turns.of(tenant);
        let most_requests = (free_requests - 1).saturating_mul(MAX_QUEUED_PER_FREE);
        let most_rows = (free_rows - rows).saturating_mul(MAX_QUEUED_PER_FREE as u64);
        let has_share = own_requests < most_requests && own_rows + rows <= most_rows;
        tenant == Tenant::SERVER || own_requests == 0 || has_share
    }

    /// Predicts the time until all queued requests of normal priority are answered, and another one of one row.
    pub(super) fn predict(&self, now: Time) -> Option<Duration> {
        let caution = self.caution_at(now, Tenant::SERVER);
        let Totals { rows, bytes } = self.cohorts.of(Cohort::Shared, Priority::Normal);
        let others = self.time_of_others(Cohort::Shared, Priority::Normal);
        self.time_until(now, rows + 1, bytes, others, caution)
    }

    /// Predicts the time until the answer to a request of `class` that arrives now. `None` without workers or before the first
    /// computed batch.
    pub(super) fn predict_for(
        &self,
        Class { tenant, priority }: Class,
        now: Time,
        rows: u64,
        bytes: u64,
    ) -> Option<Duration> {
        let queued = self.of(priority);
        let mut rows_before = queued.turns.rows_before(tenant, rows);
        let mut bytes_before = match rows_before == queued.rows {
            true => queued.bytes,
            false => (queued.bytes as f64 * rows_before as f64 / queued.rows.max(1) as f64) as u64,
        };
        let (mut all_rows, mut all_bytes) = (queued.rows, queued.bytes);
        if priority == Priority::Low {
            let Totals { rows, bytes } = self.normal();
            (rows_before, bytes_before) = (rows_before + rows, bytes_before + bytes);
            (all_rows, all_bytes) = (all_rows + rows, all_bytes + bytes);
        }
        // The requests before this one are taken to be in cohorts as all queued ones are.
        let cohort = self.cohort_of(now, tenant);
        let own = self.cohorts.of(cohort, priority);
        let share = |before: u64, own: u64, all: u64| match before == all || own == all {
            true => before.min(own),
            false => (before as f64 * own as f64 / all as f64) as u64,
        };
        let before = if all_rows == 0 { 0.0 } else { rows_before as f64 / all_rows as f64 };
        let others = before * self.time_of_others(cohort, priority);
        let own_rows = share(rows_before, own.rows, all_rows);
        let own_bytes = share(bytes_before, own.bytes, all_bytes);
        self.time_until(now, own_rows + rows, own_bytes + bytes, others, self.caution_at(now, tenant))
    }

    /// Totals of the queued requests of normal priority.
    fn normal(&self) -> Totals {
        let queued = self.of(Priority::Normal);
        Totals { rows: queued.rows, bytes: queued.bytes }
    }

    /// Predicts the time that workers take for the queued requests of all cohorts but `cohort`, which are sent before or with requests
    /// of `priority`, in seconds. Each cohort has batches of its own.
    fn time_of_others(&self, cohort: Cohort, priority: Priority) -> f64 {
        let times = self.cohorts.others(cohort, priority).map(|Totals { rows, bytes }| {
            let (full, last) = self.batch_times(rows, bytes);
            full + last
        });
        times.sum()
    }

    /// Predicts the time until `rows` rows of `bytes` bytes are answered, if workers take `others` seconds for what else is queued.
    fn time_until(&self, now: Time, rows: u64, bytes: u64, others: f64, caution: f64) -> Option<Duration> {
        let workers = self.healthy(now).count();
        if workers == 0 || self.model.observations() == 0 {
            return None;
        }
        let left = |worker: &Worker| {
            worker.batches.back().map_or(Duration::ZERO, |(_, end)| end.saturating_sub(now))
        };
        let busy: f64 = self.healthy(now).map(|(_, worker)| left(worker).as_secs_f64()).sum();
        let (before, after) = self.batch_times(rows, bytes);
        let seconds = caution * ((busy + others + before) / workers as f64 + after);
        Duration::try_from_secs_f64(seconds).ok()?.checked_add(self.margin())
    }

    /// Predicts the times of the batches of `rows` rows of `bytes` bytes, in seconds: of all but the last one together, and of the last
    /// one. While requests are queued, batches have their maximum size.
    fn batch_times(&self, rows: u64, bytes: u64) -> (f64, f64) {
        let QueueConfig { max_batch_rows, max_batch_bytes, .. } = self.config;
        let batches =
            (rows as f64 / max_batch_rows as f64).max(bytes as f64 / max_batch_bytes as f64).max(1.0);
        let (full, last) = (batches.floor(), batches.fract());
        let part = |share: f64| {
            self.time((rows as f64 / batches * share) as u64, (bytes as f64 / batches * share) as u64)
        };
        if last > 0.0 { (full * part(1.0), part(last)) } else { ((full - 1.0) * part(1.0), part(1.0)) }
    }

    /// Time until the answer to a request that nothing delays.
    pub(super) fn alone(&self, rows: u64, bytes: u64) -> Duration {
        let takes = Duration::try_from_secs_f64(self.time(rows, bytes)).unwrap_or(Duration::MAX);
        takes.saturating_add(self.margin())
    }

    /// Number of rows that workers compute in the time of a batch of `rows` rows if they are in batches of the usual size. At least
    /// `rows`.
    pub(super) fn worth_rows(&self, rows: u64, bytes: u64) -> u64 {
        let usual = (self.shared_rows as u64).max(rows);
        let usual_bytes = bytes as f64 / rows.max(1) as f64 * usual as f64;
        let part = self.time(rows, bytes) / self.time(usual, usual_bytes as u64);
        // Not a number before the first computed batch.
        ((part * usual as f64) as u64).clamp(rows, usual)
    }

    fn time(&self, rows: u64, bytes: u64) -> f64 {
        self.model.predict(self.config.padded_rows(rows), bytes).as_secs_f64()
    }

    /// Factor on predictions at admission.
    fn caution_at(&self, now: Time, tenant: Tenant) -> f64 {
        let Some((above_one, since)) = self.caution.get(&tenant.id()) else { return 1.0 };
        let half_lives = now.saturating_sub(*since).as_secs_f64() / CAUTION_HALF_LIFE_SECONDS;
        1.0 + above_one * 0.5f64.powf(half_lives)
    }

    /// Records that a request of `tenant` expired although its prediction was in time.
    pub(super) fn more_caution(&mut self, now: Time, tenant: Tenant) {
        self.add_caution(now, tenant, CAUTION_PER_EXPIRY);
    }

    /// Records that a request of `tenant` was answered.
    pub(super) fn less_caution(&mut self, now: Time, tenant: Tenant) {
        self.add_caution(now, tenant, -CAUTION_PER_ANSWER);
    }

    /// Changes the caution factor of `tenant`.
    fn add_caution(&mut self, now: Time, tenant: Tenant, change: f64) {
        let caution = (self.caution_at(now, tenant) + change).clamp(1.0, MAX_CAUTION);
        if caution > 1.0 {
            self.caution.insert(tenant.id(), (caution - 1.0, now));
        } else {
            self.caution.remove(&tenant.id());
        }
    }

    /// Safety margin of predictions.
    pub(super) fn margin(&self) -> Duration {
        2 * self.model.error()
    }
}
