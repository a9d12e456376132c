//! Closing of batches: which requests the next batch has, which worker receives it, and when.

#![deny(clippy::disallowed_methods, clippy::iter_over_hash_type)] // The clock is an argument; order is deterministic.

use std::time::Duration;

use super::{Batcher, InFlight, TIMER_SLACK, Worker, cohort::Cohort, retries::MIN_OVERDUE};
use crate::queue::{BatchId, CloseReason, FormedBatch, Priority, QueueConfig, RequestId, Time, WorkerId};

/// The next batch of a cohort, if it were closed now: the longest prefix of its queue that fits.
pub(super) struct Prefix {
    pub(super) cohort: Cohort,
    pub(super) requests: Vec<RequestId>,
    pub(super) rows: u64,
    pub(super) bytes: u64,
    pub(super) oldest: Time,
    pub(super) deadline: Time,
    /// True if one of the requests has normal priority.
    pub(super) is_urgent: bool,
    pub(super) full: Option<CloseReason>,
}

impl Batcher {
    /// Returns the worker that can receive the next batch of a cohort first, and the time when it can.
    ///
    /// A failed batch goes to another worker than before, and not to one that is not trusted, as long as there is one. Another worker that is
    /// a second later than predicted is not waited for. Requests of a tenant that shares no batches go to a worker that is not trusted only if no
    /// other worker is free.
    pub(super) fn next_worker(&self, now: Time, cohort: Cohort) -> Option<(WorkerId, Time)> {
        let gather_time = Duration::try_from_secs_f64(self.gather_seconds).unwrap_or_default();
        let late_at = |worker: &Worker| worker.batches.back().map(|(_, end)| *end + MIN_OVERDUE);
        let is_late = |worker: &Worker| late_at(worker).is_some_and(|at| at <= now);
        let rank = |id: WorkerId, worker: &Worker| match cohort {
            Cohort::Shared | Cohort::Tenant(_) => 0,
            _ if !worker.record.is_trusted() => 2,
            _ => u8::from(cohort.failed_at() == Some(id) || is_late(worker)),
        };
        let best = self.usable(now).map(|(id, worker)| rank(*id, worker)).min()?;
        let free = |(id, worker): (&WorkerId, &Worker)| {
            let Some((_, end)) = worker.batches.back() else {
                return Some((worker.last_reply, *id, now));
            };
            // One batch finds out whether a suspended worker works again.
            let credits = if worker.record.is_trusted() { worker.credits } else { 1 };
            // A worker that is late receives no further batch until it replies: the batch might expire there.
            let credits = credits.min(self.config.max_credits);
            let may = (worker.batches.len() as u64) < credits && *end + TIMER_SLACK >= now;
            let at = match may {
                true => Some(end.saturating_sub(gather_time).max(now)),
                false if best == 0 && cohort.failed_at().is_some() => late_at(worker),
                false => None,
            };
            at.map(|at| (Time::MAX, *id, at))
        };
        // Among free workers, the one that has been free the longest.
        let ranked = self.usable(now).filter(|(id, worker)| rank(**id, worker) == best);
        let is_last = |id: WorkerId| cohort != Cohort::Shared && !self.workers[&id].record.is_trusted();
        let first =
            ranked.filter_map(free).min_by_key(|(free_since, id, at)| (*at, is_last(*id), *free_since, *id));
        first.map(|(_, id, at)| (id, at))
    }

    /// The next batch of a cohort for a worker that can start it at `start`.
    pub(super) fn prefix(&self, cohort: Cohort, start: Time) -> Prefix {
        let QueueConfig { max_batch_rows, max_batch_bytes, .. } = self.config;
        let mut prefix = Prefix {
            cohort,
            requests: Vec::new(),
            rows: 0,
            bytes: 0,
            oldest: Time::MAX,
            deadline: Time::MAX,
            is_urgent: false,
            full: None,
        };
        for (priority, _, id) in self.cohorts.order(cohort) {
            let request = &self.requests[&id];
            let (rows, bytes) = (prefix.rows + request.rows, prefix.bytes + request.bytes);
            if priority == Priority::Low && prefix.is_urgent {
                // It joins others only if all of them are in time with it.
                let takes = self.model.predict(self.config.padded_rows(rows), bytes);
                let end = start.saturating_add(takes).saturating_add(self.margin() + TIMER_SLACK);
                if end >= prefix.deadline.min(request.deadline) {
                    break;
                }
            }
            prefix.full = if rows > max_batch_rows {
                Some(CloseReason::Rows)
            } else {
                (bytes > max_batch_bytes).then_some(CloseReason::Bytes)
            };
            // A request that is too large, because it was admitted under other settings, forms a batch of its own.
            if prefix.full.is_some() && !prefix.requests.is_empty() {
                return prefix;
            }
            prefix.is_urgent |= priority == Priority::Normal;
            prefix.oldest = prefix.oldest.min(request.arrived);
            prefix.deadline = prefix.deadline.min(request.deadline);
            (prefix.rows, prefix.bytes) = (rows, bytes);
            prefix.requests.push(id);
        }
        if prefix.rows >= max_batch_rows {
            prefix.full = Some(CloseReason::Rows);
        } else if prefix.bytes >= max_batch_bytes {
            prefix.full = Some(CloseReason::Bytes);
        } else if cohort != Cohort::Shared {
            // No other request may join it but those of the same tenant, for which the others do not wait.
            prefix.full = Some(CloseReason::Alone);
        }
        prefix
    }

    /// Returns the reason to close the next batch now, or the time to check again.
    pub(super) fn close_reason(&self, now: Time, prefix: &Prefix) -> Result<CloseReason, Time> {
        if let Some(full) = prefix.full {
            return Ok(full);
        }
        if self.draining {
            return Ok(CloseReason::Drain);
        }
        let takes = self.model.predict(self.config.padded_rows(prefix.rows), prefix.bytes);
        let last = prefix.deadline.saturating_sub(takes).saturating_sub(self.margin());
        if last <= now {
            return Ok(CloseReason::Deadline);
        }
        let delayed = prefix.oldest.saturating_add(self.config.max_batch_delay);
        if delayed <= now {
            return Ok(CloseReason::Delay);
        }
        let mut at = last.min(delayed);
        if self.config.eager_dispatch {
            let pays = self.arrivals.pays_until(prefix.requests.len(), self.model.coefficients().fixed);
            if pays <= now {
                return Ok(CloseReason::Idle);
            }
            at = at.min(pays);
        }
        Err(at)
    }

    pub(super) fn close(
        &mut self,
        now: Time,
        worker: WorkerId,
        prefix: Prefix,
        close_reason: CloseReason,
    ) -> FormedBatch {
        let worth = self.worth_rows(prefix.rows, prefix.bytes);
        if prefix.cohort == Cohort::Shared {
            self.shared_rows += (prefix.rows as f64 - self.shared_rows) / 8.0;
        }
        let Prefix { cohort, requests, rows, bytes, deadline, .. } = prefix;
        let (mut previous_attempts, mut unpaid) = (0, worth - rows);
        self.last_batch += 1;
        let batch = BatchId(self.last_batch);
        for id in &requests {
            self.dequeue(*id);
            if let Some(request) = self.requests.get_mut(id) {
                request.flights += 1;
                request.last_batch = Some(batch);
                let turns = &mut self.queues[request.priority as usize].turns;
                turns.sent(request.turn);
                previous_attempts = previous_attempts.max(request.attempts);
                if cohort != Cohort::Shared {
                    // The tenant pays for small batches and for further attempts.
                    let again = if request.attempts > 0 { request.rows } else { 0 };
                    turns.charge(request.tenant, again + std::mem::take(&mut unpaid));
                }
            }
        }
        let padded_rows = self.config.padded_rows(rows);
        let flight = InFlight {
            requests: requests.clone(),
            padded_rows,
            bytes,
            closed_at: now,
            is_gathered: false,
            is_overdue: false,
            is_shared: cohort == Cohort::Shared,
            left: Vec::new(),
        };
        self.in_flight.insert(batch, flight);
        if let Some(worker) = self.workers.get_mut(&worker) {
            worker.batches.push_back((batch, now));
        }
        self.predict_completions(now, worker);
        FormedBatch { batch, worker, requests, rows, padded_rows, close_reason, deadline, previous_attempts }
    }

    /// Updates the predicted completion times of a worker's batches.
    pub(super) fn predict_completions(&mut self, now: Time, worker: WorkerId) {
        let Some(worker) = self.workers.get_mut(&worker) else { return };
        let mut free = now;
        for (at, (batch, end)) in worker.batches.iter_mut().enumerate() {
            if let Some(flight) = self.in_flight.get(batch) {
                // The worker started the first batch when it was closed, or when the previous one was completed.
                let started = if at == 0 { flight.closed_at.max(worker.last_reply) } else { free };
                *end = started.saturating_add(self.model.predict(flight.padded_rows, flight.bytes));
                free = *end;
            }
        }
    }
}
