//! Closing of batches: which requests the next batch has, which worker receives it, and when.

#![deny(clippy::disallowed_methods, clippy::iter_over_hash_type)] // The clock is an argument; order is deterministic.

use std::time::Duration;

use super::{Batcher, InFlight, TIMER_SLACK, Worker};
use crate::queue::{BatchId, CloseReason, FormedBatch, Priority, QueueConfig, RequestId, Time, WorkerId};

/// The next batch, if it were closed now: the longest prefix of the queue that fits.
#[derive(Default)]
pub(super) struct Prefix {
    pub(super) count: usize,
    pub(super) rows: u64,
    pub(super) bytes: u64,
    pub(super) oldest: Time,
    pub(super) deadline: Time,
    /// True if one of the requests has normal priority.
    pub(super) is_urgent: bool,
    pub(super) full: Option<CloseReason>,
}

impl Batcher {
    /// Returns the worker that can receive the next batch first, and the time when it can.
    pub(super) fn next_worker(&self, now: Time) -> Option<(WorkerId, Time)> {
        let gather_time = Duration::try_from_secs_f64(self.gather_seconds).unwrap_or_default();
        let free = |(id, worker): (&WorkerId, &Worker)| {
            let Some((_, end)) = worker.batches.back() else {
                return Some((worker.last_completion, *id, now));
            };
            // A worker that is late receives no further batch until it replies: the batch might expire there.
            let credits = worker.credits.min(self.config.max_credits);
            let may = (worker.batches.len() as u64) < credits && *end + TIMER_SLACK >= now;
            may.then(|| (Time::MAX, *id, end.saturating_sub(gather_time).max(now)))
        };
        // Among free workers, the one that has been free the longest.
        let first =
            self.healthy().filter_map(free).min_by_key(|(free_since, id, at)| (*at, *free_since, *id));
        first.map(|(_, id, at)| (id, at))
    }

    /// The next batch of a worker that can start it at `start`.
    pub(super) fn prefix(&self, start: Time) -> Prefix {
        let QueueConfig { max_batch_rows, max_batch_bytes, .. } = self.config;
        let mut prefix = Prefix { oldest: Time::MAX, deadline: Time::MAX, ..Prefix::default() };
        for (priority, _, id) in &self.queued {
            let request = &self.requests[id];
            let (rows, bytes) = (prefix.rows + request.rows, prefix.bytes + request.bytes);
            if *priority == Priority::Low && prefix.is_urgent {
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
            if (prefix.full.is_some() || request.alone) && prefix.count > 0 {
                return prefix;
            }
            prefix.is_urgent |= *priority == Priority::Normal;
            prefix.oldest = prefix.oldest.min(request.arrived);
            prefix.deadline = prefix.deadline.min(request.deadline);
            (prefix.count, prefix.rows, prefix.bytes) = (prefix.count + 1, rows, bytes);
            if request.alone {
                prefix.full = Some(CloseReason::Alone);
                return prefix;
            }
        }
        if prefix.rows >= max_batch_rows {
            prefix.full = Some(CloseReason::Rows);
        } else if prefix.bytes >= max_batch_bytes {
            prefix.full = Some(CloseReason::Bytes);
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
            let pays = self.arrivals.pays_until(prefix.count, self.model.coefficients().fixed);
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
        prefix: &Prefix,
        close_reason: CloseReason,
    ) -> FormedBatch {
        let requests: Vec<RequestId> = self.queued.iter().map(|(.., id)| *id).take(prefix.count).collect();
        let mut previous_attempts = 0;
        for id in &requests {
            self.dequeue(*id);
            if let Some(request) = self.requests.get_mut(id) {
                request.flights += 1;
                self.queues[request.priority as usize].turns.sent(request.turn);
                previous_attempts = previous_attempts.max(request.attempts);
            }
        }
        self.last_batch += 1;
        let batch = BatchId(self.last_batch);
        let padded_rows = self.config.padded_rows(prefix.rows);
        let flight = InFlight {
            requests: requests.clone(),
            padded_rows,
            bytes: prefix.bytes,
            closed_at: now,
            is_gathered: false,
            is_overdue: false,
        };
        self.in_flight.insert(batch, flight);
        if let Some(worker) = self.workers.get_mut(&worker) {
            worker.batches.push_back((batch, now));
        }
        self.predict_completions(now, worker);
        FormedBatch {
            batch,
            worker,
            requests,
            rows: prefix.rows,
            padded_rows,
            close_reason,
            deadline: prefix.deadline,
            previous_attempts,
        }
    }

    /// Updates the predicted completion times of a worker's batches.
    pub(super) fn predict_completions(&mut self, now: Time, worker: WorkerId) {
        let Some(worker) = self.workers.get_mut(&worker) else { return };
        let mut free = now;
        for (at, (batch, end)) in worker.batches.iter_mut().enumerate() {
            if let Some(flight) = self.in_flight.get(batch) {
                // The worker started the first batch when it was closed, or when the previous one was completed.
                let started = if at == 0 { flight.closed_at.max(worker.last_completion) } else { free };
                *end = started.saturating_add(self.model.predict(flight.padded_rows, flight.bytes));
                free = *end;
            }
        }
    }
}
