//! Workers whose failures are their own, and tenants whose requests fail.
//!
//! A failed batch is no evidence: its worker or one of its requests can be the cause. Its requests therefore have a *trial*. If all of
//! them are answered by other workers, the failure was that of the worker. If one of them fails alone, it was that of the request. If one
//! leaves unanswered, before the batch fails or later, there is no result. The tenant of that request is then suspected, and treated as the cause
//! after three such failures in succession, until one of its requests is answered.

#![deny(clippy::disallowed_methods, clippy::iter_over_hash_type)] // The clock is an argument; order is deterministic.

use std::time::Duration;

use forebay_loader::Tenant;

use super::{
    Batcher, InFlight, Worker,
    cohort::Cohort,
    trial::{Apart, Suspicion, Trial, UNSHARED},
};
use crate::queue::{BatchId, RequestId, Time, WorkerId};

/// Number of its own failures in succession after which a worker is suspended.
const MAX_STRIKES: u32 = 3;
/// Time of the first suspension of a worker. Each further one without a computed batch in between takes twice as long.
const FIRST_SUSPENSION: Duration = Duration::from_secs(1);
const MAX_SUSPENSION: Duration = Duration::from_secs(60);

impl Batcher {
    /// Returns the workers that were suspended since the last call, each with the time for which it receives no batches.
    pub fn suspended(&mut self) -> Vec<(WorkerId, Duration)> {
        std::mem::take(&mut self.newly_suspended)
    }

    /// Returns the earliest time at which a suspension ends.
    pub(super) fn next_probe(&self, now: Time) -> Option<Time> {
        let ends = self.workers.values().filter_map(|worker| worker.record.suspended_until);
        ends.filter(|until| now < *until).min()
    }

    /// Workers that are not overdue and not suspended.
    pub(super) fn healthy(&self, now: Time) -> impl Iterator<Item = (&WorkerId, &Worker)> {
        self.workers
            .iter()
            .filter(move |(_, worker)| !worker.is_overdue() && !worker.record.is_suspended(now))
    }

    /// Workers that can receive batches: those that are neither overdue nor suspended. If all workers are suspended, those that are not overdue.
    /// None if some are suspended and all others overdue: an overdue worker may only be slow, but a suspended one fails requests.
    pub(super) fn usable(&self, now: Time) -> impl Iterator<Item = (&WorkerId, &Worker)> {
        let all_suspended = self.workers.values().all(|worker| worker.record.is_suspended(now));
        self.workers.iter().filter(move |(_, worker)| {
            let gives_way = !all_suspended && worker.record.is_suspended(now);
            !worker.is_overdue() && !gives_way
        })
    }

    /// Records that a request failed alone at `worker`. Returns true if the request gets another attempt. It gets none unless another worker is
    /// trusted. After a failure at a trusted worker it gets one, and a failure at a worker that is not trusted does not count. While all
    /// other trusted workers are overdue, the attempt is at `worker`.
    pub(super) fn tries_again(&mut self, worker: WorkerId, id: RequestId) -> bool {
        let mut others = self.workers.iter().filter(|(other, _)| **other != worker);
        if !others.any(|(_, other)| other.record.is_trusted()) {
            return false;
        }
        if !self.workers.get(&worker).is_some_and(|own| own.record.is_trusted()) {
            return true;
        }
        let Some(request) = self.requests.get_mut(&id) else { return false };
        !std::mem::replace(&mut request.has_failed_alone, true)
    }

    /// Begins the trial of the requests of a failed batch, except those that have one already. A batch that a request has left has no trial.
    pub(super) fn begin_trial(&mut self, now: Time, worker: WorkerId, batch: BatchId, flight: &InFlight) {
        let mut open = 0;
        for id in flight.requests.iter().filter(|_| flight.left.is_empty()) {
            if let Some(request) = self.requests.get_mut(id).filter(|request| request.trial.is_none()) {
                request.trial = Some(batch);
                open += 1;
            }
        }
        for tenant in &flight.left {
            self.suspect_tenant(now, *tenant);
        }
        if open > 0 {
            self.trials.insert(batch, Trial { worker, open, is_answered_by_another: false });
        }
        // It was sent this batch to find out whether it works again.
        let on_probation =
            |worker: &&mut Worker| !worker.record.is_trusted() && !worker.record.is_suspended(now);
        if let Some(failed) = self.workers.get_mut(&worker).filter(on_probation) {
            if !flight.is_shared {
                // One of its requests is more likely to be the cause. The time stays the same.
                failed.record.suspensions = failed.record.suspensions.saturating_sub(1);
            }
            self.suspend(now, worker);
        }
    }

    /// Ends the trial of a request that `worker` answered. If it is the last one of its batch, the failure was that of the worker.
    pub(super) fn acquit(&mut self, now: Time, worker: WorkerId, id: RequestId) {
        let Some(batch) = self.requests.get_mut(&id).and_then(|request| request.trial.take()) else { return };
        let Some(trial) = self.trials.get_mut(&batch) else { return };
        trial.open -= 1;
        trial.is_answered_by_another |= worker != trial.worker;
        if trial.open == 0
            && let Some(trial) = self.trials.remove(&batch)
            && trial.is_answered_by_another
        {
            self.strike(now, trial.worker);
        }
    }

    /// Records that a request failed alone: its worker is not to blame, and the requests of its tenant share no batches for a while.
    pub(super) fn convict(&mut self, now: Time, id: RequestId) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        let tenant = request.tenant;
        if let Some(batch) = request.trial.take() {
            self.trials.remove(&batch);
        }
        self.set_apart(now, tenant, false);
    }

    /// Suspects the tenant of a request if the trial of the request is still open. Called before the request is withdrawn or expires.
    pub(super) fn suspect(&mut self, now: Time, id: RequestId) {
        let Some(request) = self.requests.get(&id) else { return };
        let is_open = request.trial.is_some_and(|batch| self.trials.contains_key(&batch));
        if is_open {
            self.suspect_tenant(now, request.tenant);
        }
    }

    /// Records that a batch failed, and that a request of `tenant` left it without an outcome: a tenant could withdraw each failing request before it
    /// fails alone. After three such batches, each less than a minute after the one before, it is set apart. Its other requests show that it
    /// is not to blame: none of them has been answered in the meantime.
    fn suspect_tenant(&mut self, now: Time, tenant: Tenant) {
        let last = self.suspicions.get(&tenant.id());
        let last = last.filter(|last| now < last.at.saturating_add(UNSHARED));
        let batches = last.map_or(0, |last| last.batches) + 1;
        self.suspicions.insert(tenant.id(), Suspicion { batches, at: now });
        if batches >= MAX_STRIKES {
            self.set_apart(now, tenant, true);
        }
    }

    /// Records that a request of a tenant was answered.
    pub(super) fn trust(&mut self, tenant: Tenant) {
        self.suspicions.remove(&tenant.id());
        if self.unshared.get(&tenant.id()).is_some_and(|apart| apart.is_suspected) {
            self.unshared.remove(&tenant.id());
        }
    }

    /// Lets the requests of a tenant share no batches for a while.
    fn set_apart(&mut self, now: Time, tenant: Tenant, is_suspected: bool) {
        if tenant == Tenant::SERVER {
            return; // Without tokens, all callers are one tenant.
        }
        let is_convicted = |apart: &Apart| !apart.is_suspected && now < apart.until;
        let is_suspected = is_suspected && !self.unshared.get(&tenant.id()).is_some_and(is_convicted);
        self.unshared.insert(tenant.id(), Apart { until: now.saturating_add(UNSHARED), is_suspected });
        let shared: Vec<RequestId> = self.cohorts.order(Cohort::Shared).map(|(.., id)| id).collect();
        for id in shared {
            if self.requests.get(&id).is_some_and(|request| request.tenant.id() == tenant.id()) {
                self.move_to(id, Cohort::Tenant(tenant.id()));
            }
        }
    }

    /// Cohort of a new request of `tenant`.
    pub(super) fn cohort_of(&self, now: Time, tenant: Tenant) -> Cohort {
        match self.unshared.get(&tenant.id()) {
            Some(apart) if now < apart.until => Cohort::Tenant(tenant.id()),
            _ => Cohort::Shared,
        }
    }

    /// Counts a failure that was the worker's own. It is suspended only if another worker can do its work.
    fn strike(&mut self, now: Time, worker: WorkerId) {
        let can_replace = |other: &Worker| other.record.is_trusted() && !other.is_overdue();
        let has_other = self.workers.iter().any(|(id, other)| *id != worker && can_replace(other));
        let Some(record) = self.workers.get_mut(&worker).map(|worker| &mut worker.record) else { return };
        record.strikes = record.strikes.saturating_add(1);
        if record.strikes >= MAX_STRIKES && record.is_trusted() && has_other {
            self.suspend(now, worker);
        }
    }

    pub(super) fn suspend(&mut self, now: Time, worker: WorkerId) {
        let Some(record) = self.workers.get_mut(&worker).map(|worker| &mut worker.record) else { return };
        let time = FIRST_SUSPENSION.saturating_mul(1 << record.suspensions.min(16)).min(MAX_SUSPENSION);
        record.suspensions = record.suspensions.saturating_add(1);
        record.suspended_until = Some(now.saturating_add(time));
        self.newly_suspended.push((worker, time));
    }
}
