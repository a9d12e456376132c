//! Overdue workers, and requests of batches that were lost or failed.

#![deny(clippy::disallowed_methods, clippy::iter_over_hash_type)] // The clock is an argument; order is deterministic.

use std::time::Duration;

use super::{Batcher, InFlight, Worker};
use crate::queue::{BatchId, RequestId, Time, WorkerId};

/// A worker is overdue after this multiple of the predicted time of its batch, and at least after `MIN_OVERDUE`.
const OVERDUE_RATIO: u32 = 10;
const MIN_OVERDUE: Duration = Duration::from_secs(1);
/// Number of batches after which a worker is expected to be as fast as predicted. Until then it may compile its model.
const FIRST_BATCHES: u64 = 3;
/// Time after which a worker is overdue with one of its first batches.
const FIRST_OVERDUE: Duration = Duration::from_secs(300);
impl Batcher {
    /// Marks workers whose batch is overdue. They receive no batches until they reply, and their requests are queued again, after
    /// `max_attempts` attempts each for a batch of its own. Requests that were alone in a batch then stay with their worker.
    /// Returns the workers.
    pub fn suspend_overdue(&mut self, now: Time) -> Vec<WorkerId> {
        let is_due = |(_, worker): &(&WorkerId, &Worker)| {
            !worker.is_overdue && self.overdue_at(worker).is_some_and(|at| at <= now)
        };
        let overdue: Vec<WorkerId> = self.workers.iter().filter(is_due).map(|(id, _)| *id).collect();
        for id in &overdue {
            let Some(worker) = self.workers.get_mut(id) else { continue };
            worker.is_overdue = true;
            let batches: Vec<BatchId> = worker.batches.iter().map(|(batch, _)| *batch).collect();
            for batch in batches {
                let Some(flight) = self.in_flight.get_mut(&batch) else { continue };
                flight.is_overdue = true;
                let requests = flight.requests.clone();
                self.land(&requests);
                self.try_again(now, &requests, self.config.max_attempts);
            }
        }
        overdue
    }

    /// Returns the earliest time at which a worker can become overdue.
    pub fn next_overdue(&self) -> Option<Time> {
        let workers = self.workers.values().filter(|worker| !worker.is_overdue);
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
        Some(flight.closed_at.max(worker.last_completion).saturating_add(limit))
    }

    /// Removes a worker. Its requests are queued again. After `max_attempts` attempts, a request is sent in a batch of its own,
    /// and if that one is lost, too, it is removed and returned.
    pub fn remove_worker(&mut self, now: Time, worker: WorkerId) -> Vec<RequestId> {
        let Some(worker) = self.workers.remove(&worker) else { return Vec::new() };
        let flights = worker.batches.into_iter().filter_map(|(batch, _)| self.in_flight.remove(&batch));
        let flights: Vec<InFlight> = flights.collect();
        let mut lost = Vec::new();
        for flight in flights {
            if !flight.is_overdue {
                self.land(&flight.requests);
            }
            lost.extend(self.try_again(now, &flight.requests, self.config.max_attempts));
        }
        for id in &lost {
            self.remove(*id);
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

    /// Queues the requests of a lost, failed or overdue batch again unless they are queued or at another worker. Returns those that
    /// were alone in the batch and have `max_attempts` attempts, which are not queued.
    fn try_again(&mut self, now: Time, requests: &[RequestId], max_attempts: u32) -> Vec<RequestId> {
        let mut given_up = Vec::new();
        for id in requests {
            let Some(request) = self.requests.get_mut(id) else { continue };
            request.alone |= request.attempts >= self.config.max_attempts;
            if request.flights > 0 || self.queued.contains(&(request.priority, request.turn, *id)) {
                continue;
            }
            if requests.len() == 1 && request.attempts >= max_attempts {
                given_up.push(*id);
            } else {
                self.enqueue(now, *id);
            }
        }
        given_up
    }

    /// Records that a batch failed. A request that was alone in it is removed and returned. The others are queued again; after
    /// `max_attempts` attempts, each in a batch of its own.
    ///
    /// Returns `None` if the worker has no such batch.
    pub fn fail(&mut self, now: Time, worker: WorkerId, batch: BatchId) -> Option<Vec<RequestId>> {
        let (flight, _) = self.replied(now, worker, batch)?;
        self.predict_completions(now, worker);
        if !flight.is_gathered {
            for id in &flight.requests {
                if let Some(request) = self.requests.get_mut(id) {
                    request.attempts += 1;
                }
            }
        }
        let failed = self.try_again(now, &flight.requests, 0);
        for id in &failed {
            self.remove(*id);
        }
        Some(failed)
    }
}
