//! Overdue workers, and requests of batches that were lost or failed.

#![deny(clippy::disallowed_methods, clippy::iter_over_hash_type)] // The clock is an argument; order is deterministic.

use std::{collections::BTreeMap, time::Duration};

use super::{Batcher, InFlight, Worker, cohort::Cohort};
use crate::queue::{BatchId, Cause, Priority, RequestId, Time, WorkerId};

/// A worker is overdue after this multiple of the predicted time of its batch, and at least after `MIN_OVERDUE`.
const OVERDUE_RATIO: u32 = 10;
pub(super) const MIN_OVERDUE: Duration = Duration::from_secs(1);
/// Number of batches after which a worker is expected to be as fast as predicted. Until then it may compile its model.
const FIRST_BATCHES: u64 = 3;
/// Time after which a worker is overdue with one of its first batches.
const FIRST_OVERDUE: Duration = Duration::from_secs(300);

impl Batcher {
    /// Marks workers whose batch is overdue. They receive no batches until they reply, and their requests are queued again, after
    /// `max_attempts` attempts apart from others. Requests that were alone in a batch then stay with their worker.
    /// Returns the workers.
    pub fn suspend_overdue(&mut self, now: Time) -> Vec<WorkerId> {
        let is_due = |(_, worker): &(&WorkerId, &Worker)| {
            !worker.is_overdue() && self.overdue_at(worker).is_some_and(|at| at <= now)
        };
        let overdue: Vec<WorkerId> = self.workers.iter().filter(is_due).map(|(id, _)| *id).collect();
        for id in &overdue {
            let Some(since) = self.workers.get(id).and_then(|worker| self.waits_since(worker)) else {
                continue;
            };
            let Some(worker) = self.workers.get_mut(id) else { continue };
            worker.silent_since = Some(since);
            let batches: Vec<BatchId> = worker.batches.iter().map(|(batch, _)| *batch).collect();
            for batch in batches {
                let Some(flight) = self.in_flight.get_mut(&batch) else { continue };
                flight.is_overdue = true;
                let requests = flight.requests.clone();
                self.land(&requests);
                self.try_again(now, &requests);
            }
        }
        overdue
    }

    /// Returns the earliest time at which a worker can become overdue.
    pub fn next_overdue(&self) -> Option<Time> {
        let workers = self.workers.values().filter(|worker| !worker.is_overdue());
        workers.filter_map(|worker| self.overdue_at(worker)).min()
    }

    /// Time at which the oldest batch of a worker is overdue.
    fn overdue_at(&self, worker: &Worker) -> Option<Time> {
        let (batch, _) = worker.batches.front()?;
        let flight = self.in_flight.get(batch)?;
        let predicted = self.model.predict(flight.padded_rows, flight.bytes);
        let limit = match worker.completed < FIRST_BATCHES {
            true => FIRST_OVERDUE,
            false => predicted.saturating_mul(OVERDUE_RATIO).max(MIN_OVERDUE),
        };
        Some(self.waits_since(worker)?.saturating_add(limit))
    }

    /// Time since which the oldest batch of a worker has been waiting for its reply; `None` if the worker has no batch.
    fn waits_since(&self, worker: &Worker) -> Option<Time> {
        let (batch, _) = worker.batches.front()?;
        Some(self.in_flight.get(batch)?.closed_at.max(worker.last_reply))
    }

    /// Removes a batch from its worker after a reply or a failure. Returns the batch and the time when the worker began to compute it.
    pub(super) fn take_flight(
        &mut self,
        now: Time,
        worker: WorkerId,
        batch: BatchId,
        failure: Option<Cause>,
    ) -> Option<(InFlight, Time)> {
        let id = worker;
        let worker = self.workers.get_mut(&id)?;
        let at = worker.batches.iter().position(|(id, _)| *id == batch)?;
        worker.batches.remove(at);
        let flight = self.in_flight.remove(&batch)?;
        let started = flight.closed_at.max(worker.last_reply);
        // A batch that fails before it is sent says nothing about the worker.
        let is_reply = flight.is_gathered || failure.is_none_or(|cause| cause == Cause::Worker);
        if is_reply {
            worker.last_reply = now;
        }
        // Without a reply, the worker is still overdue with its oldest batch, unless this was that batch.
        let silent_since = if is_reply || at == 0 { worker.silent_since.take() } else { None };
        if let Some(since) = silent_since {
            if is_reply {
                self.newly_answering.push((id, now.saturating_sub(since)));
            }
            // It is going to reply to its other batches as well.
            let batches: Vec<BatchId> = worker.batches.iter().map(|(batch, _)| *batch).collect();
            for batch in batches {
                let Some(flight) = self.in_flight.get_mut(&batch) else { continue };
                flight.is_overdue = false;
                for id in flight.requests.clone() {
                    self.dequeue(id);
                    if let Some(request) = self.requests.get_mut(&id) {
                        request.flights += 1;
                    }
                }
            }
        }
        if !flight.is_overdue {
            self.land(&flight.requests);
        }
        Some((flight, started))
    }

    /// Removes a worker. Its requests are queued again, after `max_attempts` attempts apart from others. A request that was alone in a
    /// batch then is removed and returned.
    pub fn remove_worker(&mut self, now: Time, worker: WorkerId) -> Vec<RequestId> {
        let Some(worker) = self.workers.remove(&worker) else { return Vec::new() };
        let flights = worker.batches.into_iter().filter_map(|(batch, _)| self.in_flight.remove(&batch));
        let flights: Vec<InFlight> = flights.collect();
        let mut lost = Vec::new();
        for flight in flights {
            if !flight.is_overdue {
                self.land(&flight.requests);
            }
            lost.extend(self.try_again(now, &flight.requests));
        }
        for id in &lost {
            self.convict(now, *id);
            self.remove(*id);
        }
        if self.workers.is_empty() {
            let waiting: Vec<RequestId> = self.deadlines.iter().map(|(_, id)| *id).collect();
            for id in waiting {
                self.await_worker(now, id);
            }
        }
        lost
    }

    /// Notes that a batch with these requests is no longer at a worker that is not overdue.
    pub(super) fn land(&mut self, requests: &[RequestId]) {
        for id in requests {
            if let Some(request) = self.requests.get_mut(id) {
                request.flights -= 1;
            }
        }
    }

    /// Queues the requests of a lost or overdue batch again unless they are queued or at another worker. Those with `max_attempts`
    /// attempts are sent apart from others: each tenant's, or each alone if all were of one tenant. Returns those that were alone in
    /// the batch and have as many attempts, which are not queued.
    fn try_again(&mut self, now: Time, requests: &[RequestId]) -> Vec<RequestId> {
        let max_attempts = self.config.max_attempts;
        let has_attempts =
            |id: &RequestId| self.requests.get(id).is_some_and(|request| request.attempts >= max_attempts);
        let suspects: Vec<RequestId> = requests.iter().filter(|id| has_attempts(id)).copied().collect();
        if let [alone] = requests
            && !suspects.is_empty()
        {
            return if self.is_in_another_place(*alone) { Vec::new() } else { suspects };
        }
        let classes = self.classes(&suspects);
        let parts = match classes.len() {
            1 => suspects.iter().map(|id| vec![*id]).collect(),
            _ => classes,
        };
        self.part(parts, None);
        for id in requests {
            if !self.is_in_another_place(*id) {
                self.enqueue(now, *id);
            }
        }
        Vec::new()
    }

    /// True if a request is queued or at a worker that is not overdue, or has ended.
    fn is_in_another_place(&self, id: RequestId) -> bool {
        self.requests
            .get(&id)
            .is_none_or(|request| request.flights > 0 || self.queued.contains(&request.place(id)))
    }

    /// Makes each of `parts` a cohort. Batches with their requests have failed at `failed_at`.
    fn part(&mut self, parts: Vec<Vec<RequestId>>, failed_at: Option<WorkerId>) {
        for part in parts {
            self.last_part += 1;
            for id in part {
                self.move_to(id, Cohort::Part { number: self.last_part, failed_at });
            }
        }
    }

    /// Divides requests by tenant and priority.
    fn classes(&self, requests: &[RequestId]) -> Vec<Vec<RequestId>> {
        let mut classes: BTreeMap<(u64, Priority), Vec<RequestId>> = BTreeMap::new();
        for id in requests {
            if let Some(request) = self.requests.get(id) {
                classes.entry((request.tenant.id(), request.priority)).or_default().push(*id);
            }
        }
        classes.into_values().collect()
    }

    /// Records that a batch failed. Its requests are queued again, apart from others: each tenant's or, if all are of one tenant, in two
    /// halves. A request that was alone in the batch is queued once more if the cause can be its worker and another worker is trusted.
    /// Otherwise it is removed and returned.
    ///
    /// Returns `None` if the worker has no such batch.
    pub fn fail(
        &mut self,
        now: Time,
        worker: WorkerId,
        batch: BatchId,
        cause: Cause,
    ) -> Option<Vec<RequestId>> {
        let (flight, _) = self.take_flight(now, worker, batch, Some(cause))?;
        self.predict_completions(now, worker);
        if !flight.is_gathered {
            for id in &flight.requests {
                if let Some(request) = self.requests.get_mut(id) {
                    request.attempts += 1;
                }
            }
        }
        if cause == Cause::Worker {
            self.begin_trial(now, worker, batch, &flight);
        }
        let again: Vec<RequestId> =
            flight.requests.iter().filter(|id| !self.is_in_another_place(**id)).copied().collect();
        let failed_at = (cause == Cause::Worker).then_some(worker);
        if let ([alone], [_]) = (again.as_slice(), flight.requests.as_slice())
            && (cause != Cause::Worker || !self.tries_again(worker, *alone))
        {
            let is_trusted = self.workers.get(&worker).is_some_and(|worker| worker.record.is_trusted());
            match cause {
                Cause::Worker if !is_trusted => {}
                Cause::Worker | Cause::Size => self.convict(now, *alone),
                // The lookup is the cause. It also fails for other tenants, so that setting this tenant apart would not help.
                Cause::Features => {}
            }
            self.remove(*alone);
            return Some(again);
        }
        let classes = self.classes(&again);
        let parts = match (classes.len(), again.len()) {
            (1, 2..) => {
                let (first, second) = again.split_at(again.len() / 2);
                vec![first.to_vec(), second.to_vec()]
            }
            _ => classes,
        };
        self.part(parts, failed_at);
        for id in again {
            self.enqueue(now, id);
        }
        Some(Vec::new())
    }
}
