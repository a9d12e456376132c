//! A simple implementation of the queue's rules: one list, scanned for each decision.

use super::super::*;
use crate::queue::{CloseReason, FormedBatch};

pub(super) struct Reference {
    config: QueueConfig,
    model: CostModel,
    gather_seconds: f64,
    caution: f64,
    cautious_since: Time,
    requests: Vec<Request>,
    workers: Vec<Working>,
    arrivals: Vec<Time>,
    batches: u64,
    joined: u64,
}

struct Request {
    priority: Priority,
    rows: u64,
    bytes: u64,
    arrived: Time,
    deadline: Time,
    attempts: u32,
    is_alive: bool,
    was_predicted: bool,
    /// Time since when the request is queued, if it is.
    queued: Option<Time>,
    alone: bool,
}

struct Working {
    id: WorkerId,
    credits: u64,
    since: Time,
    has: Vec<Given>,
    replies: u64,
    overdue: bool,
}

struct Given {
    batch: BatchId,
    requests: Vec<usize>,
    padded: u64,
    bytes: u64,
    at: Time,
    end: Time,
    sent: bool,
}

impl Reference {
    pub(super) fn new(config: QueueConfig) -> Self {
        Self {
            config,
            model: CostModel::default(),
            gather_seconds: 0.0,
            caution: 1.0,
            cautious_since: Time::ZERO,
            requests: vec![],
            workers: vec![],
            arrivals: vec![],
            batches: 1,
            joined: 0,
        }
    }

    fn queued(&self) -> Vec<usize> {
        let waits = |at: &usize| self.requests[*at].is_alive && self.requests[*at].queued.is_some();
        let mut queued: Vec<usize> = (0..self.requests.len()).filter(waits).collect();
        queued.sort_by_key(|at| self.requests[*at].priority);
        queued
    }

    /// Queued requests that precede or have this priority.
    fn queued_to(&self, priority: Priority) -> Vec<usize> {
        self.queued().into_iter().filter(|at| self.requests[*at].priority <= priority).collect()
    }

    pub(super) fn displaced(&mut self) -> Vec<RequestId> {
        let mut displaced = vec![];
        loop {
            let queued = self.queued();
            let rows: u64 = queued.iter().map(|at| self.requests[*at].rows).sum();
            if queued.len() <= self.config.max_queue_requests && rows <= self.config.max_queue_rows {
                return displaced;
            }
            match queued.last() {
                Some(last) if self.requests[*last].priority == Priority::Low => {
                    self.requests[*last].is_alive = false;
                    displaced.push(RequestId(*last as u64));
                }
                _ => return displaced,
            }
        }
    }

    pub(super) fn admit(
        &mut self,
        priority: Priority,
        now: Time,
        (rows, bytes): (u64, u64),
        timeout: Option<Duration>,
    ) -> Result<RequestId, Refusal> {
        self.arrivals.push(now);
        let config = self.config.clone();
        if rows > config.max_batch_rows {
            return Err(Refusal::Rows { limit: config.max_batch_rows });
        }
        if bytes > config.max_batch_bytes {
            return Err(Refusal::Bytes { limit: config.max_batch_bytes });
        }
        let timeout = timeout.unwrap_or(config.default_timeout);
        let queued = self.queued();
        let a_worker_is_free = self.workers.iter().any(|worker| worker.has.is_empty() && !worker.overdue);
        if !(queued.is_empty() && a_worker_is_free) {
            let predicted = self.predict(priority, now, rows, bytes);
            let limit = timeout.min(config.max_predicted_wait);
            match predicted {
                Some(predicted) if predicted > limit => return Err(Refusal::Late { predicted, limit }),
                _ => {}
            }
            let before = self.queued_to(priority);
            let waiting: u64 = before.iter().map(|at| self.requests[*at].rows).sum();
            if before.len() >= config.max_queue_requests || waiting + rows > config.max_queue_rows {
                return Err(Refusal::Full { retry_after: predicted.unwrap_or(config.default_timeout) / 2 });
            }
        }
        let deadline = now + timeout;
        self.requests.push(Request {
            priority,
            rows,
            bytes,
            arrived: now,
            deadline,
            attempts: 0,
            is_alive: true,
            was_predicted: !(queued.is_empty() && a_worker_is_free),
            queued: Some(now),
            alone: false,
        });
        Ok(RequestId(self.requests.len() as u64 - 1))
    }

    fn predict(&self, priority: Priority, now: Time, rows: u64, bytes: u64) -> Option<Duration> {
        let healthy: Vec<&Working> = self.workers.iter().filter(|worker| !worker.overdue).collect();
        if healthy.is_empty() || self.model.observations() == 0 {
            return None;
        }
        let mut busy = 0.0;
        for worker in &healthy {
            busy += worker.has.last().map_or(0.0, |last| last.end.saturating_sub(now).as_secs_f64());
        }
        let queued = self.queued_to(priority);
        let rows = rows + queued.iter().map(|at| self.requests[*at].rows).sum::<u64>();
        let bytes = bytes + queued.iter().map(|at| self.requests[*at].bytes).sum::<u64>();
        let (most_rows, most_bytes) = (self.config.max_batch_rows, self.config.max_batch_bytes);
        let time =
            |rows: u64, bytes: u64| self.model.predict(self.config.padded_rows(rows), bytes).as_secs_f64();
        let batches = (rows as f64 / most_rows as f64).max(bytes as f64 / most_bytes as f64).max(1.0);
        let part = |share: f64| {
            time((rows as f64 / batches * share) as u64, (bytes as f64 / batches * share) as u64)
        };
        // Full batches, then the remainder.
        let (mut left, mut before) = (batches, 0.0);
        while left > 1.0 {
            before += 1.0;
            left -= 1.0;
        }
        let seconds =
            self.caution_at(now) * ((busy + before * part(1.0)) / healthy.len() as f64 + part(left));
        Some(Duration::from_secs_f64(seconds) + 2 * self.model.error())
    }

    /// The part above 1 halves every second.
    fn caution_at(&self, now: Time) -> f64 {
        1.0 + (self.caution - 1.0) * 0.5f64.powf(now.saturating_sub(self.cautious_since).as_secs_f64())
    }

    pub(super) fn cancel(&mut self, id: RequestId) {
        if let Some(request) = self.requests.get_mut(id.0 as usize) {
            request.is_alive = false;
        }
    }

    pub(super) fn expire(&mut self, now: Time) -> Vec<RequestId> {
        let mut expired: Vec<(Time, usize)> = (0..self.requests.len())
            .filter(|at| self.requests[*at].is_alive && self.requests[*at].deadline <= now)
            .map(|at| (self.requests[at].deadline, at))
            .collect();
        expired.sort();
        for (_, at) in &expired {
            self.requests[*at].is_alive = false;
            let request = &self.requests[*at];
            if !self.workers.is_empty() && request.was_predicted && request.priority == Priority::Normal {
                self.caution = (self.caution_at(now) + 0.02).min(8.0);
                self.cautious_since = now;
            }
        }
        let mut waited: Vec<(Time, usize)> = self
            .queued()
            .into_iter()
            .map(|at| (self.requests[at].queued.unwrap(), at))
            .filter(|(since, _)| *since + self.config.max_time_in_queue <= now)
            .collect();
        waited.sort();
        for (since, at) in waited {
            self.requests[at].queued = None;
            self.requests[at].is_alive = false;
            expired.push((since, at));
        }
        expired.into_iter().map(|(_, at)| RequestId(at as u64)).collect()
    }

    /// True if a worker that is not overdue has the request.
    fn is_given(&self, request: usize) -> bool {
        let healthy = self.workers.iter().filter(|worker| !worker.overdue);
        healthy.flat_map(|worker| &worker.has).any(|given| given.requests.contains(&request))
    }

    pub(super) fn next_expiry(&self) -> Option<Time> {
        let alive = self.requests.iter().filter(|request| request.is_alive);
        let times = alive.map(|request| {
            let queued = request.queued.map_or(Time::MAX, |since| since + self.config.max_time_in_queue);
            request.deadline.min(queued)
        });
        times.min()
    }

    fn overdue_at(&self, worker: &Working) -> Option<Time> {
        let given = worker.has.first()?;
        let limit = if worker.replies < 3 {
            Duration::from_secs(300)
        } else {
            (10 * self.model.predict(given.padded, given.bytes)).max(Duration::from_secs(1))
        };
        Some(given.at.max(worker.since) + limit)
    }

    pub(super) fn suspend_overdue(&mut self, now: Time) -> Vec<WorkerId> {
        let mut found = vec![];
        for at in 0..self.workers.len() {
            if self.workers[at].overdue || self.overdue_at(&self.workers[at]).is_none_or(|due| due > now) {
                continue;
            }
            self.workers[at].overdue = true;
            found.push(self.workers[at].id);
            let batches: Vec<_> = self.workers[at].has.iter().map(|given| given.requests.clone()).collect();
            for requests in batches {
                for at in &requests {
                    let (is_given, most) = (self.is_given(*at), self.config.max_attempts);
                    let request = &mut self.requests[*at];
                    if !request.is_alive {
                        continue;
                    }
                    request.alone |= request.attempts >= most;
                    let stays = requests.len() == 1 && request.attempts >= most;
                    if request.queued.is_none() && !is_given && !stays {
                        request.queued = Some(now);
                    }
                }
            }
        }
        found.sort();
        found
    }

    pub(super) fn next_overdue(&self) -> Option<Time> {
        self.workers
            .iter()
            .filter(|worker| !worker.overdue)
            .filter_map(|worker| self.overdue_at(worker))
            .min()
    }

    pub(super) fn add_worker(&mut self, now: Time, credits: u64) -> WorkerId {
        let id = WorkerId(self.joined);
        self.joined += 1;
        let credits = credits.clamp(1, self.config.max_credits);
        self.workers.push(Working { id, credits, since: now, has: vec![], replies: 0, overdue: false });
        id
    }

    pub(super) fn remove_worker(&mut self, now: Time, worker: WorkerId) -> Vec<RequestId> {
        let Some(at) = self.workers.iter().position(|working| working.id == worker) else { return vec![] };
        let mut lost = vec![];
        for given in self.workers.remove(at).has {
            for at in given.requests.clone() {
                let is_given = self.is_given(at);
                let request = &mut self.requests[at];
                if request.attempts >= self.config.max_attempts {
                    request.alone = true;
                }
                if !request.is_alive || is_given || request.queued.is_some() {
                    continue;
                }
                if given.requests.len() == 1 && request.attempts >= self.config.max_attempts {
                    request.is_alive = false;
                    lost.push(RequestId(at as u64));
                } else {
                    request.queued = Some(now);
                }
            }
        }
        lost
    }

    pub(super) fn set_config(&mut self, config: QueueConfig) {
        self.config = config;
    }

    pub(super) fn gathered(&mut self, now: Time, batch: BatchId) {
        for given in self.workers.iter_mut().flat_map(|worker| &mut worker.has) {
            if given.batch == batch {
                given.sent = true;
                self.gather_seconds +=
                    (now.saturating_sub(given.at).as_secs_f64() - self.gather_seconds) / 8.0;
                given.requests.iter().for_each(|at| self.requests[*at].attempts += 1);
            }
        }
    }

    pub(super) fn complete(
        &mut self,
        now: Time,
        worker: WorkerId,
        batch: BatchId,
    ) -> Option<Vec<Option<RequestId>>> {
        let (given, begun) = self.take(now, worker, batch)?;
        self.model.observe(given.padded, given.bytes, now.saturating_sub(begun));
        self.foresee(now, worker);
        let answered = given.requests.iter().map(|at| {
            let was_alive = std::mem::replace(&mut self.requests[*at].is_alive, false);
            was_alive.then_some(RequestId(*at as u64))
        });
        let answered: Vec<_> = answered.collect();
        let is_normal = |id: &&RequestId| self.requests[id.0 as usize].priority == Priority::Normal;
        let count = answered.iter().flatten().filter(is_normal).count();
        self.caution = (self.caution_at(now) - 0.02 / 100.0 * count as f64).max(1.0);
        self.cautious_since = now;
        Some(answered)
    }

    pub(super) fn fail(&mut self, now: Time, worker: WorkerId, batch: BatchId) -> Option<Vec<RequestId>> {
        let (given, _) = self.take(now, worker, batch)?;
        self.foresee(now, worker);
        let mut failed = vec![];
        for at in given.requests.clone() {
            let is_given = self.is_given(at);
            let request = &mut self.requests[at];
            if !request.is_alive {
                continue;
            }
            request.attempts += u32::from(!given.sent);
            if request.attempts >= self.config.max_attempts {
                request.alone = true;
            }
            if is_given || request.queued.is_some() {
                continue;
            }
            if given.requests.len() == 1 {
                request.is_alive = false;
                failed.push(RequestId(at as u64));
            } else {
                request.queued = Some(now);
            }
        }
        Some(failed)
    }

    fn take(&mut self, now: Time, worker: WorkerId, batch: BatchId) -> Option<(Given, Time)> {
        let working = self.workers.iter_mut().find(|working| working.id == worker)?;
        let at = working.has.iter().position(|given| given.batch == batch)?;
        let given = working.has.remove(at);
        let begun = given.at.max(working.since);
        working.since = now;
        working.replies += 1;
        if working.overdue {
            working.overdue = false;
            for request in working.has.iter().flat_map(|given| &given.requests) {
                self.requests[*request].queued = None;
            }
        }
        Some((given, begun))
    }

    fn foresee(&mut self, now: Time, worker: WorkerId) {
        let Some(working) = self.workers.iter_mut().find(|working| working.id == worker) else { return };
        for at in 0..working.has.len() {
            let begun = if at == 0 { working.has[0].at.max(working.since) } else { working.has[at - 1].end };
            let given = &mut working.has[at];
            given.end = begun + self.model.predict(given.padded, given.bytes);
        }
        let _ = now;
    }

    pub(super) fn next(&mut self, now: Time) -> Decision {
        let queued = self.queued();
        if queued.is_empty() {
            return Decision::Wait(None);
        }
        // Free workers first, the longest idle of them; then workers that are about to be free.
        let healthy = || self.workers.iter().filter(|worker| !worker.overdue);
        let mut idle: Vec<&Working> = healthy().filter(|worker| worker.has.is_empty()).collect();
        idle.sort_by_key(|worker| (worker.since, worker.id));
        let gather_time = Duration::from_secs_f64(self.gather_seconds);
        let mut soon: Vec<(Time, WorkerId)> = healthy()
            .filter(|worker| {
                !worker.has.is_empty()
                    && (worker.has.len() as u64) < worker.credits.min(self.config.max_credits)
            })
            .filter_map(|worker| worker.has.last().map(|last| (last.end, worker.id)))
            .filter(|(end, _)| *end + Duration::from_millis(1) >= now)
            .map(|(end, id)| (end.saturating_sub(gather_time).max(now), id))
            .collect();
        soon.sort();
        let (at, worker) = match (idle.first(), soon.first()) {
            (Some(worker), _) => (now, worker.id),
            (None, Some(soon)) => *soon,
            (None, None) => return Decision::Wait(None),
        };
        if at > now {
            return Decision::Wait(Some(at));
        }
        let config = self.config.clone();
        let (mut rows, mut bytes, mut taken, mut full) = (0, 0, vec![], None);
        let start =
            self.workers.iter().find(|working| working.id == worker).and_then(|working| working.has.last());
        let start = start.map_or(now, |last| last.end.max(now));
        for at in queued {
            let request = &self.requests[at];
            let is_first_low = request.priority == Priority::Low
                && taken.iter().any(|at: &usize| self.requests[*at].priority == Priority::Normal);
            if is_first_low {
                let takes =
                    self.model.predict(config.padded_rows(rows + request.rows), bytes + request.bytes);
                let end = start + takes + 2 * self.model.error() + Duration::from_millis(1);
                let joined = taken.iter().map(|at| self.requests[*at].deadline).chain([request.deadline]);
                if joined.min().is_some_and(|deadline| end >= deadline) {
                    break;
                }
            }
            let close_reason = if rows + request.rows > config.max_batch_rows {
                Some(CloseReason::Rows)
            } else if bytes + request.bytes > config.max_batch_bytes {
                Some(CloseReason::Bytes)
            } else {
                None
            };
            if (close_reason.is_some() || request.alone) && !taken.is_empty() {
                full = close_reason;
                break;
            }
            rows += request.rows;
            bytes += request.bytes;
            taken.push(at);
            if request.alone {
                full = Some(CloseReason::Alone);
                break;
            }
        }
        if full.is_none() && rows >= config.max_batch_rows {
            full = Some(CloseReason::Rows);
        } else if full.is_none() && bytes >= config.max_batch_bytes {
            full = Some(CloseReason::Bytes);
        }
        let of_taken = |of: fn(&Request) -> Time| taken.iter().map(|at| of(&self.requests[*at])).min();
        let deadline = of_taken(|request| request.deadline).unwrap_or(Time::MAX);
        let oldest = of_taken(|request| request.arrived).unwrap_or(Time::MAX);
        let busy = self.workers.iter().find(|working| working.id == worker && !working.has.is_empty());
        if let Some(last) = busy.and_then(|working| working.has.last())
            && last.end.max(now) + 2 * self.model.error() + Duration::from_millis(1) >= deadline
        {
            return Decision::Wait(None);
        }
        let padded = config.padded_rows(rows);
        let takes = self.model.predict(padded, bytes);
        let urgent = deadline.saturating_sub(takes).saturating_sub(2 * self.model.error());
        let delayed = oldest + config.max_batch_delay;
        let pays = self.pays_until(taken.len());
        let close_reason = if let Some(full) = full {
            full
        } else if urgent <= now {
            CloseReason::Deadline
        } else if delayed <= now {
            CloseReason::Delay
        } else if config.eager_dispatch && pays <= now {
            CloseReason::Idle
        } else {
            let wait = urgent.min(delayed);
            return Decision::Wait(Some(if config.eager_dispatch { wait.min(pays) } else { wait }));
        };
        let batch = BatchId(self.batches);
        self.batches += 1;
        let attempts = taken.iter().map(|at| self.requests[*at].attempts).max().unwrap_or(0);
        for at in &taken {
            self.requests[*at].queued = None;
        }
        let requests = taken.iter().map(|at| RequestId(*at as u64)).collect();
        let given = Given { batch, requests: taken, padded, bytes, at: now, end: now, sent: false };
        if let Some(working) = self.workers.iter_mut().find(|working| working.id == worker) {
            working.has.push(given);
        }
        self.foresee(now, worker);
        Decision::Send(FormedBatch {
            batch,
            worker,
            requests,
            rows,
            padded_rows: padded,
            close_reason,
            deadline,
            previous_attempts: attempts,
        })
    }

    fn last(&self, count: usize) -> &[Time] {
        &self.arrivals[self.arrivals.len().saturating_sub(count)..]
    }

    fn pays_until(&self, waiting: usize) -> Time {
        let fixed = self.model.coefficients().fixed;
        let until = |last: &[Time]| {
            let (first, others) = last.split_first()?;
            Some(*first + Duration::from_secs_f64(others.len() as f64 * fixed / waiting as f64))
        };
        [self.last(4), self.last(32)].into_iter().filter_map(until).min().unwrap_or_default()
    }

    pub(super) fn load(&self, now: Time) -> Load {
        let queued = self.queued();
        let rate = |last: &[Time]| match last {
            [] => 0.0,
            [first, others @ ..] => others.len() as f64 / now.saturating_sub(*first).as_secs_f64().max(1e-6),
        };
        Load {
            workers: self.workers.iter().filter(|worker| !worker.overdue).count(),
            overdue_workers: self.workers.iter().filter(|worker| worker.overdue).count(),
            queued_requests: queued.len(),
            queued_rows: queued.iter().map(|at| self.requests[*at].rows).sum(),
            batches: self.workers.iter().map(|worker| worker.has.len()).sum(),
            requests_per_second: rate(self.last(4)).min(rate(self.last(32))),
            predicted_wait_seconds: self.predict(Priority::Normal, now, 1, 0).map(|time| time.as_secs_f64()),
        }
    }
}
