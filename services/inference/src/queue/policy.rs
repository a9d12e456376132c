//! When a batch is closed, who is let in, and what becomes of what was not answered: decisions alone, without clock, thread or
//! data.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    time::Duration,
};

use serde::Serialize;
use utoipa::ToSchema;

use super::{CostModel, QueueConfig};

/// Since the queue began.
pub type Time = Duration;

/// A queue that is as long as its deadlines allow makes many late when its worker slows down for a moment: caution goes up with each
/// request that expires though it was expected to be in time, and down with each that is answered and with time.
const RAISE: f64 = 0.02;
const LOWER: f64 = RAISE / 100.0;
const MAX_CAUTION: f64 = 8.0;
/// What is above 1 is half as much after so many seconds: what was once is no reason to keep everybody out.
const CALM_SECONDS: f64 = 1.0;
/// Timers are late by up to this.
const TIMER_SLACK: Duration = Duration::from_millis(1);
/// No request waits longer, whatever it asks for.
const LONGEST: Duration = Duration::from_secs(3600);

/// A request, in the order of arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// A batch that was given to a worker, in the order in which that was done, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(pub u64);

/// A worker, in the order of coming.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(pub u64);

/// Why a batch was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reason {
    /// It has as many rows as it may.
    Rows,
    /// It has as many bytes as it may.
    Bytes,
    /// Its first request has waited for `max_queue_delay`.
    Delay,
    /// Waiting longer would be too late for one of its requests.
    Deadline,
    /// A worker is free, and waiting for more requests does not pay.
    Idle,
    /// The queue is being emptied.
    Drain,
}

impl Reason {
    /// As metrics and answers name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rows => "rows",
            Self::Bytes => "bytes",
            Self::Delay => "delay",
            Self::Deadline => "deadline",
            Self::Idle => "idle",
            Self::Drain => "drain",
        }
    }
}

/// Why a request is not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// It has no rows.
    Empty,
    /// It has more rows than a batch may have.
    Rows {
        /// `max_batch_rows`.
        limit: u64,
    },
    /// Its rows have more bytes than a batch may have.
    Bytes {
        /// `max_batch_bytes`.
        limit: u64,
    },
    /// It would be answered too late.
    Late {
        /// How long it would take.
        predicted: Duration,
        /// How long it may take.
        limit: Duration,
    },
    /// As many requests or rows wait as may.
    Full {
        /// After what time there is likely to be room.
        retry_after: Duration,
    },
    /// The queue takes nothing any more.
    Draining,
}

/// What is to be done now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Give this batch to its worker, then ask again.
    Batch(Formed),
    /// Ask again at this time, or when something has happened.
    Wait(Option<Time>),
}

/// A batch that is closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Formed {
    /// Names it.
    pub batch: BatchId,
    /// To whom it goes.
    pub worker: WorkerId,
    /// In the order of arrival.
    pub requests: Vec<RequestId>,
    /// Rows of the requests.
    pub rows: u64,
    /// With those that pad it.
    pub padded: u64,
    /// Why it was closed.
    pub reason: Reason,
    /// When the most urgent of its requests expires.
    pub deadline: Time,
    /// How often the request that was given away most often was given to a worker before.
    pub attempts: u32,
}

/// The state of a queue.
///
/// Requests are taken in the order of arrival and never cut. A worker that is free, or is expected to be by the time a batch is
/// gathered, gets the next ones as soon as one of the [`Reason`]s holds.
#[derive(Debug)]
pub struct Batcher {
    config: QueueConfig,
    model: CostModel,
    /// What a batch takes until it is with its worker, in seconds: the mean of the last ones.
    lead: f64,
    /// What predictions are multiplied by before anybody is let in, and since when that is so.
    caution: (f64, Time),
    requests: HashMap<RequestId, Entry>,
    queued: BTreeSet<RequestId>,
    queued_rows: u64,
    queued_bytes: u64,
    /// Of all that were not answered.
    deadlines: BTreeSet<(Time, RequestId)>,
    workers: BTreeMap<WorkerId, Worker>,
    flights: BTreeMap<BatchId, Flight>,
    arrivals: Arrivals,
    draining: bool,
    next_request: u64,
    next_batch: u64,
    next_worker: u64,
}

#[derive(Debug)]
struct Entry {
    rows: u64,
    bytes: u64,
    arrived: Time,
    deadline: Time,
    attempts: u32,
    /// Whether it was let in because it was expected to be in time.
    was_expected: bool,
}

#[derive(Debug)]
struct Worker {
    credits: u64,
    /// The batches that it has, and when it is expected to be done with each.
    has: VecDeque<(BatchId, Time)>,
    /// When it was last done with one, or came.
    since: Time,
}

#[derive(Debug)]
struct Flight {
    requests: Vec<RequestId>,
    padded: u64,
    bytes: u64,
    given: Time,
}

/// The next batch, as it would be if it were closed now.
#[derive(Default)]
struct Prefix {
    count: usize,
    rows: u64,
    bytes: u64,
    oldest: Time,
    deadline: Time,
    full: Option<Reason>,
}

impl Batcher {
    /// An empty queue without workers.
    pub fn new(config: QueueConfig) -> Self {
        Self {
            config,
            model: CostModel::default(),
            lead: 0.0,
            caution: (1.0, Time::ZERO),
            requests: HashMap::new(),
            queued: BTreeSet::new(),
            queued_rows: 0,
            queued_bytes: 0,
            deadlines: BTreeSet::new(),
            workers: BTreeMap::new(),
            flights: BTreeMap::new(),
            arrivals: Arrivals::default(),
            draining: false,
            next_request: 0,
            next_batch: 1,
            next_worker: 0,
        }
    }

    /// A request arrives. `timeout` is how long its answer is of use; without one, `slo`.
    ///
    /// # Errors
    /// When it is not let in. A request that finds a worker free and nobody before it is let in whatever is predicted: so the
    /// model learns that it is wrong.
    pub fn admit(
        &mut self,
        now: Time,
        rows: u64,
        bytes: u64,
        timeout: Option<Duration>,
    ) -> Result<RequestId, Refusal> {
        self.arrivals.note(now);
        let QueueConfig { max_batch_rows, max_batch_bytes, slo, max_queue_time, .. } = self.config;
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
        let timeout = timeout.unwrap_or(slo).min(LONGEST);
        let was_expected = !self.is_idle();
        if was_expected {
            let predicted = self.predict(now, rows, bytes);
            let limit = timeout.min(max_queue_time);
            if let Some(predicted) = predicted.filter(|predicted| *predicted > limit) {
                return Err(Refusal::Late { predicted, limit });
            }
            if self.queued.len() >= self.config.max_queue_requests
                || self.queued_rows + rows > self.config.max_queue_rows
            {
                let retry_after = predicted.unwrap_or(slo) / 2;
                return Err(Refusal::Full { retry_after });
            }
        }
        let id = RequestId(self.next_request);
        self.next_request += 1;
        let deadline = now.saturating_add(timeout);
        self.requests.insert(id, Entry { rows, bytes, arrived: now, deadline, attempts: 0, was_expected });
        self.deadlines.insert((deadline, id));
        self.enqueue(id);
        Ok(id)
    }

    /// Nobody waits for a request any more. If a worker has it already, its rows are computed in vain.
    pub fn cancel(&mut self, id: RequestId) {
        self.forget(id);
    }

    /// The requests whose time is over; they are forgotten.
    pub fn expire(&mut self, now: Time) -> Vec<RequestId> {
        let mut expired = Vec::new();
        while let Some(&(deadline, id)) = self.deadlines.first()
            && deadline <= now
        {
            if !self.workers.is_empty() && self.requests.get(&id).is_some_and(|entry| entry.was_expected) {
                let caution = self.caution_at(now) + RAISE;
                self.caution = (caution.min(MAX_CAUTION), now);
            }
            self.forget(id);
            expired.push(id);
        }
        expired
    }

    /// A worker comes that may have so many batches at a time.
    pub fn join(&mut self, now: Time, credits: u64) -> WorkerId {
        let id = WorkerId(self.next_worker);
        self.next_worker += 1;
        let credits = credits.clamp(1, self.config.max_credits);
        self.workers.insert(id, Worker { credits, has: VecDeque::new(), since: now });
        id
    }

    /// A worker goes. What it had is in the queue again, but for the requests that are returned: they were given away
    /// `max_attempts` times, and are forgotten.
    pub fn leave(&mut self, worker: WorkerId) -> Vec<RequestId> {
        let Some(worker) = self.workers.remove(&worker) else { return Vec::new() };
        let mut lost = Vec::new();
        for (batch, _) in worker.has {
            let Some(flight) = self.flights.remove(&batch) else { continue };
            for id in flight.requests {
                match self.requests.get(&id) {
                    Some(entry) if entry.attempts >= self.config.max_attempts => {
                        self.forget(id);
                        lost.push(id);
                    }
                    Some(_) => self.enqueue(id),
                    None => {}
                }
            }
        }
        lost
    }

    /// What is to be done at `now`. Expired requests must be taken out before.
    pub fn next(&mut self, now: Time) -> Next {
        if self.queued.is_empty() {
            return Next::Wait(None);
        }
        let Some((worker, free)) = self.next_worker(now) else { return Next::Wait(None) };
        if free > now {
            return Next::Wait(Some(free));
        }
        let prefix = self.prefix();
        // What could expire before a busy worker begins with it stays here until that worker is done.
        let begins =
            self.workers.get(&worker).and_then(|worker| worker.has.back()).map(|(_, end)| (*end).max(now));
        if begins.is_some_and(|begins| begins + self.margin() + TIMER_SLACK >= prefix.deadline) {
            return Next::Wait(None);
        }
        match self.reason(now, &prefix) {
            Ok(reason) => Next::Batch(self.close(now, worker, &prefix, reason)),
            Err(at) => Next::Wait(Some(at)),
        }
    }

    /// A batch is gathered, and on its way to its worker, which counts as an attempt.
    pub fn gathered(&mut self, now: Time, batch: BatchId) {
        let Some(flight) = self.flights.get(&batch) else { return };
        let took = now.saturating_sub(flight.given).as_secs_f64();
        self.lead += (took - self.lead) / 8.0;
        for id in &flight.requests {
            if let Some(entry) = self.requests.get_mut(id) {
                entry.attempts += 1;
            }
        }
    }

    /// Whether anybody still waits for a batch.
    pub fn is_wanted(&self, batch: BatchId) -> bool {
        let flight = self.flights.get(&batch);
        flight.is_some_and(|flight| flight.requests.iter().any(|id| self.requests.contains_key(id)))
    }

    /// A worker is done with a batch: `computed`, or failed at it, which says nothing of what a batch takes. Its requests, in
    /// order; those that nobody waits for any more are `None`. `None` for a batch that this worker does not have.
    pub fn complete(
        &mut self,
        now: Time,
        worker: WorkerId,
        batch: BatchId,
        computed: bool,
    ) -> Option<Vec<Option<RequestId>>> {
        let having = self.workers.get_mut(&worker)?;
        let at = having.has.iter().position(|(has, _)| *has == batch)?;
        having.has.remove(at);
        let flight = self.flights.remove(&batch)?;
        let begun = flight.given.max(having.since);
        having.since = now;
        if computed {
            self.model.observe(flight.padded, flight.bytes, now.saturating_sub(begun));
        }
        self.foresee(now, worker);
        let answered: Vec<_> = flight.requests.into_iter().map(|id| self.forget(id).then_some(id)).collect();
        let caution = self.caution_at(now) - LOWER * answered.iter().flatten().count() as f64;
        self.caution = (caution.max(1.0), now);
        Some(answered)
    }

    /// The batch that a worker has had the longest.
    pub fn oldest_batch(&self, worker: WorkerId) -> Option<BatchId> {
        self.workers.get(&worker)?.has.front().map(|(batch, _)| *batch)
    }

    /// From now on the queue works so.
    pub fn retune(&mut self, config: QueueConfig) {
        self.config = config;
    }

    /// Takes nothing from now on, and closes what there is at once.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// The earliest time at which a request expires.
    pub fn next_expiry(&self) -> Option<Time> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// How it works now.
    pub fn config(&self) -> &QueueConfig {
        &self.config
    }

    /// What it has learned of batches.
    pub fn model(&self) -> &CostModel {
        &self.model
    }

    /// Numbers for people.
    pub fn load(&self, now: Time) -> Load {
        Load {
            workers: self.workers.len(),
            queued_requests: self.queued.len(),
            queued_rows: self.queued_rows,
            batches: self.flights.len(),
            requests_per_second: self.arrivals.rate(now),
            predicted_seconds: self.predict(now, 1, 0).map(|time| time.as_secs_f64()),
        }
    }

    /// After what time a request of this size that comes now is likely to be answered; `None` without workers or experience.
    fn predict(&self, now: Time, rows: u64, bytes: u64) -> Option<Duration> {
        if self.workers.is_empty() || self.model.seen() == 0 {
            return None;
        }
        let left =
            |worker: &Worker| worker.has.back().map_or(Duration::ZERO, |(_, end)| end.saturating_sub(now));
        let busy: f64 = self.workers.values().map(|worker| left(worker).as_secs_f64()).sum();
        let (rows, bytes) = (self.queued_rows + rows, self.queued_bytes + bytes);
        let QueueConfig { max_batch_rows, max_batch_bytes, .. } = self.config;
        // Batches are as large as they may be while there is a queue.
        let batches =
            (rows as f64 / max_batch_rows as f64).max(bytes as f64 / max_batch_bytes as f64).max(1.0);
        let (full, last) = (batches.floor(), batches.fract());
        let part = |share: f64| {
            self.time((rows as f64 / batches * share) as u64, (bytes as f64 / batches * share) as u64)
        };
        let before = if last > 0.0 { full } else { full - 1.0 };
        let after = if last > 0.0 { part(last) } else { part(1.0) };
        let seconds =
            self.caution_at(now) * ((busy + before * part(1.0)) / self.workers.len() as f64 + after);
        Duration::try_from_secs_f64(seconds).ok()?.checked_add(self.margin())
    }

    fn time(&self, rows: u64, bytes: u64) -> f64 {
        self.model.predict(self.config.padded(rows), bytes).as_secs_f64()
    }

    fn caution_at(&self, now: Time) -> f64 {
        let (caution, since) = self.caution;
        1.0 + (caution - 1.0) * 0.5f64.powf(now.saturating_sub(since).as_secs_f64() / CALM_SECONDS)
    }

    /// What predictions are given beside.
    fn margin(&self) -> Duration {
        2 * self.model.error()
    }

    /// Whether a worker is free and nobody waits.
    fn is_idle(&self) -> bool {
        self.queued.is_empty() && self.workers.values().any(|worker| worker.has.is_empty())
    }

    /// The worker that is free first, and when.
    fn next_worker(&self, now: Time) -> Option<(WorkerId, Time)> {
        let lead = Duration::try_from_secs_f64(self.lead).unwrap_or_default();
        let free = |(id, worker): (&WorkerId, &Worker)| {
            let Some((_, end)) = worker.has.back() else { return Some((worker.since, *id, now)) };
            // Who is not done when it should be gets nothing more before it is: what would wait there might expire there.
            let credits = worker.credits.min(self.config.max_credits);
            let may = (worker.has.len() as u64) < credits && *end + TIMER_SLACK >= now;
            may.then(|| (Time::MAX, *id, end.saturating_sub(lead).max(now)))
        };
        // Of those that are free, the one that has been for the longest.
        let first = self.workers.iter().filter_map(free).min_by_key(|(since, id, at)| (*at, *since, *id));
        first.map(|(_, id, at)| (id, at))
    }

    fn prefix(&self) -> Prefix {
        let QueueConfig { max_batch_rows, max_batch_bytes, .. } = self.config;
        let mut prefix = Prefix { oldest: Time::MAX, deadline: Time::MAX, ..Prefix::default() };
        for id in &self.queued {
            let entry = &self.requests[id];
            let (rows, bytes) = (prefix.rows + entry.rows, prefix.bytes + entry.bytes);
            prefix.full = if rows > max_batch_rows {
                Some(Reason::Rows)
            } else {
                (bytes > max_batch_bytes).then_some(Reason::Bytes)
            };
            // One that was let in under other settings goes alone.
            if prefix.full.is_some() && prefix.count > 0 {
                return prefix;
            }
            prefix.oldest = prefix.oldest.min(entry.arrived);
            prefix.deadline = prefix.deadline.min(entry.deadline);
            (prefix.count, prefix.rows, prefix.bytes) = (prefix.count + 1, rows, bytes);
        }
        if prefix.rows >= max_batch_rows {
            prefix.full = Some(Reason::Rows);
        } else if prefix.bytes >= max_batch_bytes {
            prefix.full = Some(Reason::Bytes);
        }
        prefix
    }

    /// Why the next batch is to be closed now, or when to look again.
    fn reason(&self, now: Time, prefix: &Prefix) -> Result<Reason, Time> {
        if let Some(full) = prefix.full {
            return Ok(full);
        }
        if self.draining {
            return Ok(Reason::Drain);
        }
        let takes = self.model.predict(self.config.padded(prefix.rows), prefix.bytes);
        let last = prefix.deadline.saturating_sub(takes).saturating_sub(self.margin());
        if last <= now {
            return Ok(Reason::Deadline);
        }
        let delayed = prefix.oldest.saturating_add(self.config.max_queue_delay);
        if delayed <= now {
            return Ok(Reason::Delay);
        }
        let mut at = last.min(delayed);
        if self.config.idle {
            let pays = self.arrivals.pays_until(prefix.count, self.model.coefficients().fixed);
            if pays <= now {
                return Ok(Reason::Idle);
            }
            at = at.min(pays);
        }
        Err(at)
    }

    fn close(&mut self, now: Time, worker: WorkerId, prefix: &Prefix, reason: Reason) -> Formed {
        let requests: Vec<RequestId> = self.queued.iter().copied().take(prefix.count).collect();
        let mut attempts = 0;
        for id in &requests {
            self.dequeue(*id);
            if let Some(entry) = self.requests.get(id) {
                attempts = attempts.max(entry.attempts);
            }
        }
        let batch = BatchId(self.next_batch);
        self.next_batch += 1;
        let padded = self.config.padded(prefix.rows);
        let flight = Flight { requests: requests.clone(), padded, bytes: prefix.bytes, given: now };
        self.flights.insert(batch, flight);
        if let Some(worker) = self.workers.get_mut(&worker) {
            worker.has.push_back((batch, now));
        }
        self.foresee(now, worker);
        Formed {
            batch,
            worker,
            requests,
            rows: prefix.rows,
            padded,
            reason,
            deadline: prefix.deadline,
            attempts,
        }
    }

    /// Says anew when a worker will be done with what it has.
    fn foresee(&mut self, now: Time, worker: WorkerId) {
        let Some(worker) = self.workers.get_mut(&worker) else { return };
        let mut free = now;
        for (at, (batch, end)) in worker.has.iter_mut().enumerate() {
            if let Some(flight) = self.flights.get(batch) {
                // The first has been computed since it was given, or since the one before was done.
                let begun = if at == 0 { flight.given.max(worker.since) } else { free };
                *end = begun.saturating_add(self.model.predict(flight.padded, flight.bytes));
                free = *end;
            }
        }
    }

    fn enqueue(&mut self, id: RequestId) {
        if let Some(entry) = self.requests.get(&id)
            && self.queued.insert(id)
        {
            self.queued_rows += entry.rows;
            self.queued_bytes += entry.bytes;
        }
    }

    fn dequeue(&mut self, id: RequestId) {
        if let Some(entry) = self.requests.get(&id)
            && self.queued.remove(&id)
        {
            self.queued_rows -= entry.rows;
            self.queued_bytes -= entry.bytes;
        }
    }

    /// Whether there was such a request.
    fn forget(&mut self, id: RequestId) -> bool {
        self.dequeue(id);
        let entry = self.requests.remove(&id);
        entry.is_some_and(|entry| self.deadlines.remove(&(entry.deadline, id)))
    }
}

/// Of a queue, now.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Load {
    /// That are there.
    pub workers: usize,
    /// That wait for a batch.
    pub queued_requests: usize,
    /// Of these.
    pub queued_rows: u64,
    /// That workers have.
    pub batches: usize,
    /// That arrive, let in or not.
    pub requests_per_second: f64,
    /// After which a request of a row that came now would be answered; absent without workers or experience.
    #[schema(required)]
    pub predicted_seconds: Option<f64>,
}

/// The last arrivals.
#[derive(Debug, Default)]
struct Arrivals {
    times: VecDeque<Time>,
}

impl Arrivals {
    /// Over so many arrivals the rate is taken: over many, for it is steady, and over few, for it notices a pause at once. The
    /// lesser is meant.
    const SPANS: [usize; 2] = [4, 32];

    fn note(&mut self, now: Time) {
        if self.times.len() == Self::SPANS[1] {
            self.times.pop_front();
        }
        self.times.push_back(now);
    }

    /// The spans: how many arrivals came after the first, and when that came.
    fn spans(&self) -> impl Iterator<Item = (f64, Time)> {
        Self::SPANS.into_iter().map(|span| {
            let count = span.min(self.times.len());
            let first = self.times.len().checked_sub(count).and_then(|at| self.times.get(at)).copied();
            (count.saturating_sub(1) as f64, first.unwrap_or_default())
        })
    }

    /// Arrivals a second, if none comes until now.
    fn rate(&self, now: Time) -> f64 {
        let rate = |(count, first): (f64, Time)| count / now.saturating_sub(first).as_secs_f64().max(1e-6);
        self.spans().map(rate).fold(f64::INFINITY, f64::min)
    }

    /// While `waiting` requests wait, a moment more costs each of them that moment, and spares those that come in it the `fixed`
    /// seconds of a batch of their own: it pays while `waiting < rate * fixed`. When that ends, if none comes until then.
    fn pays_until(&self, waiting: usize, fixed: f64) -> Time {
        let until = |(count, first): (f64, Time)| {
            let span = Duration::try_from_secs_f64(count * fixed / waiting.max(1) as f64);
            first.saturating_add(span.unwrap_or(Duration::MAX))
        };
        self.spans().map(until).min().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
