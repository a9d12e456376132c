//! Decisions of a queue: admission, closing of batches, expiry and retries. Pure: no clock, no threads, no payloads.

#![deny(clippy::disallowed_methods, clippy::iter_over_hash_type)] // The clock is an argument; order is deterministic.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    time::Duration,
};

use forebay_loader::Tenant;

use super::{
    BatchId, Class, CostModel, Decision, Load, Priority, QueueConfig, Refusal, RequestId, Time, WorkerId,
    arrivals::Arrivals,
};
use cohort::{Cohort, Cohorts, Place};
use trial::{Apart, Record, Suspicion, Trial, UNSHARED};
use turns::Turns;

/// Delay of timers for which the decisions allow.
const TIMER_SLACK: Duration = Duration::from_millis(1);
/// Maximum time from the arrival of a request to its deadline. A longer timeout is shortened to it.
const MAX_TIMEOUT: Duration = Duration::from_secs(3600);

/// State and decisions of a queue.
///
/// Batches consist of whole requests. Requests of low priority are sent after those of normal priority. The requests of one tenant
/// and priority are sent in the order of arrival; tenants share the workers by weight. A worker that is free, or is predicted to be free once a batch is
/// gathered, receives the next batch as soon as a [`CloseReason`](super::CloseReason) holds.
///
/// The requests of a failed batch are tried again apart from others: split by tenant, then into halves. A request fails if it fails
/// alone, and then its tenant shares no batches for a while. A worker whose batches other workers can compute is suspended.
#[derive(Debug, Default)]
pub struct Batcher {
    config: QueueConfig,
    model: CostModel,
    /// Moving average of the seconds from the closing of a batch until it is sent to its worker.
    gather_seconds: f64,
    /// Moving average of the rows of a batch of requests that share batches; 0 before the first.
    shared_rows: f64,
    /// Part of the caution factor above 1 of each tenant whose requests expired, and the time when it was set. It decays from then
    /// on.
    caution: BTreeMap<u64, (f64, Time)>,
    /// All unanswered requests.
    requests: HashMap<RequestId, Request>,
    /// Queued requests in the order of service: by priority and turn.
    queued: BTreeSet<Place>,
    /// Queued requests by the batches that they may be in.
    cohorts: Cohorts,
    /// Tenants whose requests share no batches, by their ids.
    unshared: BTreeMap<u64, Apart>,
    /// Tenants that may withdraw failing requests, by their ids.
    suspicions: BTreeMap<u64, Suspicion>,
    /// Trials of the requests of failed batches.
    trials: BTreeMap<BatchId, Trial>,
    newly_suspended: Vec<(WorkerId, Duration)>,
    newly_answering: Vec<(WorkerId, Duration)>,
    /// Totals of the queued requests of normal and of low priority.
    queues: [Queued; 2],
    /// Deadlines of all unanswered requests.
    deadlines: BTreeSet<(Time, RequestId)>,
    /// Times at which the queued requests were queued.
    queued_since: BTreeSet<(Time, RequestId)>,
    /// While there is no worker: all unanswered requests, each with the time until which it waits for one.
    unserved: BTreeSet<(Time, RequestId)>,
    workers: BTreeMap<WorkerId, Worker>,
    in_flight: BTreeMap<BatchId, InFlight>,
    arrivals: Arrivals,
    draining: bool,
    next_request: u64,
    last_batch: u64,
    last_part: u64,
    next_worker: u64,
}

#[derive(Debug)]
struct Request {
    tenant: Tenant,
    priority: Priority,
    /// Place in the order of service among the requests of its priority.
    turn: u64,
    rows: u64,
    bytes: u64,
    arrived: Time,
    deadline: Time,
    /// Time at which the request was last queued.
    queued_at: Time,
    /// Time until which the request waits for a worker, if there was none since it arrived.
    unserved_at: Option<Time>,
    /// Number of batches with the request that were sent to a worker, or failed before.
    attempts: u32,
    /// Number of batches with the request at workers that are not overdue.
    flights: u32,
    /// Requests with which it may share a batch.
    cohort: Cohort,
    /// Failed batch whose cause the request may be.
    trial: Option<BatchId>,
    /// Last batch with the request.
    last_batch: Option<BatchId>,
    /// True if a batch with only this request has failed at a trusted worker.
    has_failed_alone: bool,
    /// True if the request was admitted by its prediction, false if because the queue was idle.
    was_predicted: bool,
}

/// The queued requests of one priority.
#[derive(Debug, Default)]
struct Queued {
    turns: Turns,
    requests: usize,
    rows: u64,
    bytes: u64,
}

#[derive(Debug)]
struct Worker {
    credits: u64,
    /// Batches in flight, oldest first, each with its predicted completion time.
    batches: VecDeque<(BatchId, Time)>,
    /// Time of the last reply, or of the connection.
    last_reply: Time,
    /// Number of computed batches.
    completed: u64,
    /// Time since which the batch that made the worker overdue has been waiting for its reply; `None` while the worker is not overdue.
    silent_since: Option<Time>,
    record: Record,
}

impl Worker {
    fn is_overdue(&self) -> bool {
        self.silent_since.is_some()
    }
}

#[derive(Debug)]
struct InFlight {
    requests: Vec<RequestId>,
    padded_rows: u64,
    bytes: u64,
    closed_at: Time,
    is_gathered: bool,
    /// True if its worker is overdue.
    is_overdue: bool,
    /// True if its requests are of tenants that share batches, and of no failed batch.
    is_shared: bool,
    /// Tenants of the requests that left while this was their last batch.
    left: Vec<Tenant>,
}

impl Request {
    /// Place of the request, with the id `id`, in the order of service.
    fn place(&self, id: RequestId) -> Place {
        (self.priority, self.turn, id)
    }
}

/// The earlier of two times.
fn earliest(one: Option<Time>, other: Time) -> Option<Time> {
    Some(one.map_or(other, |one| one.min(other)))
}

impl Batcher {
    /// Creates an empty queue without workers.
    pub fn new(config: QueueConfig) -> Self {
        Self { config, ..Self::default() }
    }

    /// Admits a request of [`Tenant::SERVER`], like [`admit_for`](Self::admit_for).
    ///
    /// # Errors
    /// The reason why the request is not admitted.
    pub fn admit(
        &mut self,
        now: Time,
        rows: u64,
        bytes: u64,
        timeout: Option<Duration>,
    ) -> Result<RequestId, Refusal> {
        self.admit_for(Tenant::SERVER.into(), now, (rows, bytes), timeout)
    }

    /// Admits a request of `class` with a deadline of `timeout` after `now`, by default `default_timeout`. `rows` and `bytes` are
    /// those of the request.
    ///
    /// A tenant cannot use up `max_queue_requests` and `max_queue_rows`: room is left for others, except with
    /// [`Tenant::SERVER`]. Requests of low priority take no room from others: call [`displaced`](Self::displaced) afterwards.
    ///
    /// A request that meets an empty queue and a free worker is admitted whatever its prediction, so that a wrong model is
    /// corrected by a measurement.
    ///
    /// # Errors
    /// The reason why the request is not admitted.
    pub fn admit_for(
        &mut self,
        class: Class,
        now: Time,
        (rows, bytes): (u64, u64),
        timeout: Option<Duration>,
    ) -> Result<RequestId, Refusal> {
        let QueueConfig { max_batch_rows, max_batch_bytes, default_timeout, max_predicted_wait, .. } =
            self.config;
        if self.draining {
            return Err(Refusal::Draining);
        }
        if rows == 0 {
            return Err(Refusal::Empty);
        }
        if rows > max_batch_rows {
            return Err(Refusal::Rows { limit: max_batch_rows });
        }
        if bytes > max_batch_bytes {
            return Err(Refusal::Bytes { limit: max_batch_bytes });
        }
        let timeout = timeout.unwrap_or(default_timeout).min(MAX_TIMEOUT);
        let was_predicted = !self.is_idle(now);
        if was_predicted {
            let predicted = self.predict_for(class, now, rows, bytes);
            let limit = timeout.min(max_predicted_wait);
            // Other requests that no queue could answer are no demand.
            if self.alone(rows, bytes) <= limit {
                self.arrivals.offered(now);
            }
            if let Some(predicted) = predicted.filter(|predicted| *predicted > limit) {
                return Err(Refusal::Late { predicted, limit });
            }
            if !self.has_room(class, rows) {
                let retry_after = predicted.unwrap_or(default_timeout) / 2;
                return Err(Refusal::Full { retry_after });
            }
        } else {
            self.arrivals.offered(now);
        }
        self.arrivals.admitted(now);
        self.unshared.retain(|_, apart| now < apart.until);
        self.suspicions.retain(|_, suspicion| now < suspicion.at.saturating_add(UNSHARED));
        let id = RequestId(self.next_request);
        self.next_request += 1;
        let deadline = now.saturating_add(timeout);
        let Class { tenant, priority } = class;
        let request = Request {
            tenant,
            priority,
            turn: self.of_mut(priority).turns.take(tenant, rows),
            rows,
            bytes,
            arrived: now,
            deadline,
            queued_at: now,
            unserved_at: None,
            attempts: 0,
            flights: 0,
            cohort: self.cohort_of(now, tenant),
            trial: None,
            last_batch: None,
            has_failed_alone: false,
            was_predicted,
        };
        self.requests.insert(id, request);
        self.deadlines.insert((deadline, id));
        self.enqueue(now, id);
        if self.workers.is_empty() {
            self.await_worker(now, id);
        }
        Ok(id)
    }

    /// Removes and returns requests of low priority, the last of the order of service first, while more requests or rows are queued
    /// than the settings allow.
    pub fn displaced(&mut self) -> Vec<RequestId> {
        let mut displaced = Vec::new();
        while self.queued.len() > self.config.max_queue_requests
            || self.queued_rows() > self.config.max_queue_rows
        {
            let Some(id) = self.displaceable().next() else { break };
            self.displace(id);
            displaced.push(id);
        }
        displaced
    }

    /// Removes a request of low priority that makes room for another one.
    pub fn displace(&mut self, id: RequestId) {
        self.remove(id);
    }

    /// Queued requests of low priority, the last of the order of service first.
    pub fn displaceable(&self) -> impl Iterator<Item = RequestId> {
        let low = self.queued.iter().rev().take_while(|(priority, ..)| *priority == Priority::Low);
        low.map(|(.., id)| *id)
    }

    /// Withdraws the request that was admitted last, because the queue has no memory for it.
    pub fn withdraw(&mut self, id: RequestId) {
        self.arrivals.withdraw();
        self.remove(id);
    }

    /// Removes a request whose caller no longer waits. If a worker has the request already, it still computes its rows.
    pub fn cancel(&mut self, now: Time, id: RequestId) {
        self.leave(now, id);
    }

    /// Removes a request that is not answered because it has no more time, or its caller does not wait. It may be the cause of a batch that has
    /// failed, or is going to.
    fn leave(&mut self, now: Time, id: RequestId) {
        self.suspect(now, id);
        if let Some(request) = self.requests.get(&id)
            && let Some(flight) = request.last_batch.and_then(|batch| self.in_flight.get_mut(&batch))
            && !flight.left.contains(&request.tenant)
        {
            flight.left.push(request.tenant);
        }
        self.remove(id);
    }

    /// Removes and returns the requests whose deadline has passed, and those that were queued for `max_time_in_queue`.
    pub fn expire(&mut self, now: Time) -> Vec<RequestId> {
        let mut expired = Vec::new();
        while let Some(&(deadline, id)) = self.deadlines.first()
            && deadline <= now
        {
            // Requests of low priority expire because others overtake them.
            let counts = |request: &&Request| request.was_predicted && request.priority == Priority::Normal;
            let request = self.requests.get(&id).filter(counts);
            if !self.workers.is_empty()
                && let Some(tenant) = request.map(|request| request.tenant)
            {
                self.more_caution(now, tenant);
            }
            self.leave(now, id);
            expired.push(id);
        }
        while let Some(&(since, id)) = self.queued_since.first()
            && since.saturating_add(self.config.max_time_in_queue) <= now
        {
            self.leave(now, id);
            expired.push(id);
        }
        expired
    }

    /// Removes and returns the requests for which there was no worker in half of their time, each with the number of workers that have
    /// received it. The other half suffices to ask another server for one that no worker has received.
    pub fn unserved(&mut self, now: Time) -> Vec<(RequestId, u32)> {
        let mut unserved = Vec::new();
        while let Some(&(until, id)) = self.unserved.first()
            && until <= now
        {
            let attempts = self.requests.get(&id).map_or(0, |request| request.attempts);
            self.remove(id);
            unserved.push((id, attempts));
        }
        unserved
    }

    /// Notes that a request waits for a worker from `now` on.
    fn await_worker(&mut self, now: Time, id: RequestId) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        let until = now.saturating_add(request.deadline.saturating_sub(now) / 2);
        request.unserved_at = Some(until);
        self.unserved.insert((until, id));
    }

    /// Adds a worker that may have `credits` batches at a time, limited to 1 to `max_credits`.
    pub fn add_worker(&mut self, now: Time, credits: u64) -> WorkerId {
        let id = WorkerId(self.next_worker);
        self.next_worker += 1;
        let credits = credits.clamp(1, self.config.max_credits);
        let batches = VecDeque::new();
        let record = Record::default();
        let worker = Worker { credits, batches, last_reply: now, completed: 0, silent_since: None, record };
        self.workers.insert(id, worker);
        self.unserved.clear();
        id
    }

    /// Returns the next action at `now`. Call [`expire`](Self::expire) first.
    pub fn next(&mut self, now: Time) -> Decision {
        if self.queued.is_empty() {
            return Decision::Wait(None);
        }
        let mut wait = self.next_probe(now);
        // No other cohort has more workers to choose from.
        match self.next_worker(now, Cohort::Shared) {
            None => return Decision::Wait(wait),
            Some((_, free)) if free > now => return Decision::Wait(earliest(wait, free)),
            Some(_) => {}
        }
        let (mut next, mut kept) = (None, Vec::new());
        for cohort in self.cohorts.heads() {
            let Some((worker, free)) = self.next_worker(now, cohort) else { continue };
            if kept.contains(&worker) {
                continue;
            }
            if free > now {
                wait = earliest(wait, free);
                continue;
            }
            let start = self
                .workers
                .get(&worker)
                .and_then(|worker| worker.batches.back())
                .map(|(_, end)| (*end).max(now));
            let prefix = self.prefix(cohort, start.unwrap_or(now));
            // A batch that could expire before a busy worker starts it stays queued until that worker is done. No other batch may
            // delay it there.
            if start.is_some_and(|start| start + self.margin() + TIMER_SLACK >= prefix.deadline) {
                kept.push(worker);
                continue;
            }
            match self.close_reason(now, &prefix) {
                Ok(reason) => {
                    next = Some((worker, prefix, reason));
                    break;
                }
                Err(at) => wait = earliest(wait, at),
            }
        }
        match next {
            Some((worker, prefix, reason)) => Decision::Send(self.close(now, worker, prefix, reason)),
            None => Decision::Wait(wait),
        }
    }

    /// Records that a batch was gathered and sent to its worker. This counts as an attempt.
    pub fn gathered(&mut self, now: Time, batch: BatchId) {
        let Some(flight) = self.in_flight.get_mut(&batch) else { return };
        flight.is_gathered = true;
        let took = now.saturating_sub(flight.closed_at).as_secs_f64();
        self.gather_seconds += (took - self.gather_seconds) / 8.0;
        for id in &flight.requests {
            if let Some(request) = self.requests.get_mut(id) {
                request.attempts += 1;
            }
        }
    }

    /// Returns true if at least one request of the batch is still waiting.
    pub fn has_waiting_requests(&self, batch: BatchId) -> bool {
        let flight = self.in_flight.get(&batch);
        flight.is_some_and(|flight| flight.requests.iter().any(|id| self.requests.contains_key(id)))
    }

    /// Records a worker's reply to a batch and returns the requests of the batch in order; requests that no longer wait are
    /// `None`.
    ///
    /// Returns `None` if the worker has no such batch.
    pub fn complete(
        &mut self,
        now: Time,
        worker: WorkerId,
        batch: BatchId,
    ) -> Option<Vec<Option<RequestId>>> {
        let (flight, started) = self.take_flight(now, worker, batch, None)?;
        if let Some(worker) = self.workers.get_mut(&worker) {
            worker.completed += 1;
            worker.record = Record::default();
        }
        self.model.observe(flight.padded_rows, flight.bytes, now.saturating_sub(started));
        self.predict_completions(now, worker);
        let mut answered = Vec::with_capacity(flight.requests.len());
        for id in flight.requests {
            let request = self.requests.get(&id).map(|request| (request.tenant, request.priority));
            self.acquit(now, worker, id);
            answered.push(self.remove(id).then_some(id));
            let Some((tenant, priority)) = request else { continue };
            self.trust(tenant);
            if priority == Priority::Normal {
                self.less_caution(now, tenant);
            }
        }
        Some(answered)
    }

    /// Returns the worker's oldest batch without a reply.
    pub fn oldest_batch(&self, worker: WorkerId) -> Option<BatchId> {
        self.workers.get(&worker)?.batches.front().map(|(batch, _)| *batch)
    }

    /// Replaces the settings. They apply to admitted requests, too.
    pub fn set_config(&mut self, config: QueueConfig) {
        self.config = config;
    }

    /// Stops admission and closes batches without further waiting.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// Returns the earliest time at which a request can expire, or has waited for a worker for too long.
    pub fn next_expiry(&self) -> Option<Time> {
        let deadline = self.deadlines.first().map(|(deadline, _)| *deadline);
        let queued =
            self.queued_since.first().map(|(since, _)| since.saturating_add(self.config.max_time_in_queue));
        let unserved = self.unserved.first().map(|(until, _)| *until);
        deadline.into_iter().chain(queued).chain(unserved).min()
    }

    /// Current settings.
    pub fn config(&self) -> &QueueConfig {
        &self.config
    }

    /// Cost model of the workers.
    pub fn model(&self) -> &CostModel {
        &self.model
    }

    /// Returns the load at `now`.
    pub fn load(&self, now: Time) -> Load {
        let (workers, overdue) = (self.healthy(now).count(), |worker: &&Worker| worker.is_overdue());
        let overdue_workers = self.workers.values().filter(overdue).count();
        Load {
            workers,
            overdue_workers,
            suspended_workers: self.workers.len() - overdue_workers - workers,
            queued_requests: self.queued.len(),
            queued_rows: self.queued_rows(),
            batches: self.in_flight.len(),
            requests_per_second: self.arrivals.rate(now),
            predicted_wait_seconds: self.predict(now).map(|time| time.as_secs_f64()),
        }
    }

    /// Returns the mean number of requests per second in about the last ten seconds, including those that were refused because the
    /// queue was too long.
    pub fn mean_arrival_rate(&self, now: Time) -> f64 {
        self.arrivals.mean_rate(now)
    }

    /// Returns true if the queue is empty and a worker is free.
    fn is_idle(&self, now: Time) -> bool {
        self.queued.is_empty() && self.healthy(now).any(|(_, worker)| worker.batches.is_empty())
    }

    /// Queued requests of a priority.
    fn of(&self, priority: Priority) -> &Queued {
        &self.queues[priority as usize]
    }

    fn of_mut(&mut self, priority: Priority) -> &mut Queued {
        &mut self.queues[priority as usize]
    }

    /// Number of queued rows.
    fn queued_rows(&self) -> u64 {
        self.queues.iter().map(|queued| queued.rows).sum()
    }

    fn enqueue(&mut self, now: Time, id: RequestId) {
        let Some(tenant) = self.requests.get(&id).map(|request| request.tenant) else { return };
        let cohort = self.cohort_of(now, tenant);
        if let Some(request) = self.requests.get_mut(&id)
            && self.queued.insert(request.place(id))
        {
            if !matches!(request.cohort, Cohort::Part { .. }) {
                request.cohort = cohort;
            }
            request.queued_at = now;
            self.queued_since.insert((now, id));
            self.cohorts.insert(request.cohort, request.place(id), request.rows, request.bytes);
            let queued = &mut self.queues[request.priority as usize];
            queued.turns.queued(request.tenant, request.rows);
            queued.requests += 1;
            queued.rows += request.rows;
            queued.bytes += request.bytes;
        }
    }

    fn dequeue(&mut self, id: RequestId) {
        if let Some(request) = self.requests.get(&id)
            && self.queued.remove(&request.place(id))
        {
            self.queued_since.remove(&(request.queued_at, id));
            self.cohorts.remove(request.cohort, request.place(id), request.rows, request.bytes);
            let queued = &mut self.queues[request.priority as usize];
            queued.turns.left(request.tenant, request.rows);
            queued.requests -= 1;
            queued.rows -= request.rows;
            queued.bytes -= request.bytes;
        }
    }

    /// Moves a request to another cohort.
    fn move_to(&mut self, id: RequestId, cohort: Cohort) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        let (place, rows, bytes) = (request.place(id), request.rows, request.bytes);
        let before = std::mem::replace(&mut request.cohort, cohort);
        if self.queued.contains(&place) {
            self.cohorts.remove(before, place, rows, bytes);
            self.cohorts.insert(cohort, place, rows, bytes);
        }
    }

    /// Removes a request. Returns false if it was not there.
    fn remove(&mut self, id: RequestId) -> bool {
        self.dequeue(id);
        let request = self.requests.remove(&id);
        if let Some(until) = request.as_ref().and_then(|request| request.unserved_at) {
            self.unserved.remove(&(until, id));
        }
        if let Some(request) = &request
            && request.attempts == 0
            && request.flights == 0
        {
            self.queues[request.priority as usize].turns.unused(request.tenant, request.rows);
        }
        // Without this outcome, the trial says nothing about the worker.
        if let Some(trial) = request.as_ref().and_then(|request| request.trial) {
            self.trials.remove(&trial);
        }
        request.is_some_and(|request| self.deadlines.remove(&(request.deadline, id)))
    }
}

mod admission;
mod closing;
mod cohort;
mod retries;
mod suspension;
#[cfg(test)]
mod tests;
mod trial;
mod turns;
mod unavailable;
