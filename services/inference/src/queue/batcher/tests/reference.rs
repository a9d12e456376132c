//! A simple implementation of the queue's rules: one list, scanned for each decision.

use super::super::*;
use crate::queue::{Cause, CloseReason, FormedBatch, SilentWorker, SuspendedWorker};

pub(super) struct Reference {
    config: QueueConfig,
    model: CostModel,
    gather_seconds: f64,
    shared_rows: f64,
    /// Caution factor of each tenant, and its time.
    caution: BTreeMap<u64, (f64, Time)>,
    requests: Vec<Request>,
    workers: Vec<Working>,
    offered: Vec<Time>,
    admitted: Vec<Time>,
    batches: u64,
    joined: u64,
    parts: u64,
    /// Tenants whose requests share no batches, until when, and whether it is only a suspicion.
    unshared: BTreeMap<u64, (Time, bool)>,
    /// For each tenant, when its requests left batches that failed.
    suspected: Vec<(u64, Time)>,
    trials: Vec<Trial>,
    suspended: Vec<(WorkerId, Duration)>,
    /// For each priority, the latest turn that was sent.
    turn: [u64; 2],
    /// For each priority and tenant, the last turn, and the earliest next one.
    turns: BTreeMap<(Priority, u64), (u64, u64)>,
}

/// Requests that may be together in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum With {
    All,
    OwnTenant(u64),
    Part(u64, Option<WorkerId>),
}

struct Request {
    tenant: Tenant,
    priority: Priority,
    turn: u64,
    rows: u64,
    bytes: u64,
    arrived: Time,
    deadline: Time,
    attempts: u32,
    is_alive: bool,
    was_predicted: bool,
    /// Time since when the request is queued, if it is.
    queued: Option<Time>,
    /// Time since when there is no worker for it.
    alone_since: Option<Time>,
    with: With,
    trial: Option<usize>,
    last_batch: Option<BatchId>,
    failed_alone: bool,
}

struct Trial {
    worker: WorkerId,
    open: usize,
    by_another: bool,
    is_over: bool,
}

struct Working {
    id: WorkerId,
    credits: u64,
    since: Time,
    has: Vec<Given>,
    computed: u64,
    overdue: bool,
    /// If it is overdue: since when it has not replied.
    silent_since: Time,
    strikes: u32,
    suspensions: u32,
    suspended_until: Option<Time>,
}

struct Given {
    batch: BatchId,
    requests: Vec<usize>,
    padded: u64,
    bytes: u64,
    at: Time,
    end: Time,
    sent: bool,
    shared: bool,
    /// Tenants of requests that left.
    left: Vec<Tenant>,
}

impl Request {
    /// Half of the time from the loss of the last worker to the deadline.
    fn served_until(&self) -> Time {
        self.alone_since.map_or(Time::MAX, |since| since + (self.deadline - since) / 2)
    }
}

impl Working {
    fn is_healthy(&self, now: Time) -> bool {
        !self.overdue && self.suspended_until.is_none_or(|until| until <= now)
    }
}

fn cost(tenant: Tenant, rows: u64) -> u64 {
    (rows * 65_536 / u64::from(tenant.weight().get())).max(1)
}

impl Reference {
    pub(super) fn new(config: QueueConfig) -> Self {
        Self {
            config,
            model: CostModel::default(),
            gather_seconds: 0.0,
            shared_rows: 0.0,
            caution: BTreeMap::new(),
            requests: vec![],
            workers: vec![],
            offered: vec![],
            admitted: vec![],
            batches: 1,
            joined: 0,
            parts: 0,
            unshared: BTreeMap::new(),
            suspected: vec![],
            trials: vec![],
            suspended: vec![],
            turn: [0, 0],
            turns: BTreeMap::new(),
        }
    }

    fn queued(&self) -> Vec<usize> {
        let waits = |at: &usize| self.requests[*at].is_alive && self.requests[*at].queued.is_some();
        let mut queued: Vec<usize> = (0..self.requests.len()).filter(waits).collect();
        queued.sort_by_key(|at| (self.requests[*at].priority, self.requests[*at].turn, *at));
        queued
    }

    /// Queued requests that precede or have this priority.
    fn queued_to(&self, priority: Priority) -> Vec<usize> {
        self.queued().into_iter().filter(|at| self.requests[*at].priority <= priority).collect()
    }

    fn rows(&self, requests: &[usize]) -> u64 {
        requests.iter().map(|at| self.requests[*at].rows).sum()
    }

    fn bytes(&self, requests: &[usize]) -> u64 {
        requests.iter().map(|at| self.requests[*at].bytes).sum()
    }

    /// Ends a request.
    fn end(&mut self, at: usize) {
        let is_given = self.is_given(at);
        let request = &mut self.requests[at];
        if !std::mem::replace(&mut request.is_alive, false) {
            return;
        }
        request.queued = None;
        if !is_given && request.attempts == 0 {
            let paid = cost(request.tenant, request.rows);
            let key = (request.priority, request.tenant.id());
            let (_, next) = self.turns.get_mut(&key).unwrap();
            *next = next.saturating_sub(paid);
        }
        if let Some(trial) = self.requests[at].trial.take() {
            self.trials[trial].is_over = true;
        }
    }

    /// Ends a request that its caller or its time takes from a trial.
    fn leave(&mut self, now: Time, at: usize) {
        let Request { tenant, trial, is_alive, .. } = self.requests[at];
        if !is_alive {
            return;
        }
        if trial.is_some_and(|trial| !self.trials[trial].is_over) {
            self.suspect(now, tenant);
        }
        let given = self.workers.iter_mut().flat_map(|working| &mut working.has);
        if let Some(last) = given.filter(|given| given.requests.contains(&at)).max_by_key(|given| given.batch)
            && self.requests[at].last_batch == Some(last.batch)
        {
            last.left.retain(|left| *left != tenant);
            last.left.push(tenant);
        }
        self.end(at);
    }

    pub(super) fn displaced(&mut self) -> Vec<RequestId> {
        let mut displaced = vec![];
        loop {
            let queued = self.queued();
            let rows = self.rows(&queued);
            if queued.len() <= self.config.max_queue_requests && rows <= self.config.max_queue_rows {
                return displaced;
            }
            match queued.last() {
                Some(last) if self.requests[*last].priority == Priority::Low => {
                    self.end(*last);
                    displaced.push(RequestId(*last as u64));
                }
                _ => return displaced,
            }
        }
    }

    /// Requests and rows of a tenant that are queued with this priority.
    fn own(&self, class: Class) -> (usize, u64) {
        let mut own = self.queued();
        own.retain(|at| {
            let request = &self.requests[*at];
            request.tenant.id() == class.tenant.id() && request.priority == class.priority
        });
        (own.len(), self.rows(&own))
    }

    pub(super) fn admit(
        &mut self,
        class: Class,
        now: Time,
        (rows, bytes): (u64, u64),
        timeout: Option<Duration>,
    ) -> Result<RequestId, Refusal> {
        let Class { tenant, priority } = class;
        let config = self.config.clone();
        if rows == 0 {
            return Err(Refusal::Empty);
        }
        if rows > config.max_batch_rows {
            return Err(Refusal::Rows { limit: config.max_batch_rows });
        }
        if bytes > config.max_batch_bytes {
            return Err(Refusal::Bytes { limit: config.max_batch_bytes });
        }
        let timeout = timeout.unwrap_or(config.default_timeout);
        let queued = self.queued();
        let a_worker_is_free =
            self.workers.iter().any(|worker| worker.has.is_empty() && worker.is_healthy(now));
        let is_idle = queued.is_empty() && a_worker_is_free;
        let limit = timeout.min(config.max_predicted_wait);
        let alone = self.model.predict(config.padded_rows(rows), bytes) + 2 * self.model.error();
        if is_idle || alone <= limit {
            self.offered.push(now);
        }
        if !is_idle {
            let predicted = self.predict(class, now, rows, bytes);
            match predicted {
                Some(predicted) if predicted > limit => return Err(Refusal::Late { predicted, limit }),
                _ => {}
            }
            let before = self.queued_to(priority);
            let full = Err(Refusal::Full { retry_after: predicted.unwrap_or(config.default_timeout) / 2 });
            let waiting = self.rows(&before);
            if before.len() >= config.max_queue_requests || waiting + rows > config.max_queue_rows {
                return full;
            }
            // A tenant may have up to seven times what is left.
            let (own_requests, own_rows) = self.own(class);
            let left_requests = config.max_queue_requests - before.len() - 1;
            let left_rows = config.max_queue_rows - waiting - rows;
            let has_share = own_requests < 7 * left_requests && own_rows + rows <= 7 * left_rows;
            if tenant != Tenant::SERVER && own_requests > 0 && !has_share {
                return full;
            }
        }
        self.admitted.push(now);
        let key = (priority, tenant.id());
        let (last, next) = self.turns.get(&key).copied().unwrap_or_default();
        let last = if self.own(class).0 > 0 { last } else { 0 };
        let turn = next.max(last).max(self.turn[priority as usize]);
        self.turns.insert(key, (turn, turn + cost(tenant, rows)));
        let deadline = now + timeout;
        let with = self.with(now, tenant);
        self.requests.push(Request {
            tenant,
            priority,
            turn,
            rows,
            bytes,
            arrived: now,
            deadline,
            attempts: 0,
            is_alive: true,
            was_predicted: !is_idle,
            queued: Some(now),
            alone_since: self.workers.is_empty().then_some(now),
            with,
            trial: None,
            last_batch: None,
            failed_alone: false,
        });
        Ok(RequestId(self.requests.len() as u64 - 1))
    }

    pub(super) fn withdraw(&mut self, id: RequestId) {
        self.admitted.pop();
        self.end(id.0 as usize);
    }

    fn with(&self, now: Time, tenant: Tenant) -> With {
        match self.unshared.get(&tenant.id()) {
            Some((until, _)) if *until > now => With::OwnTenant(tenant.id()),
            _ => With::All,
        }
    }

    /// Rows of the tenants that are sent before a request of `class`.
    fn rows_before(&self, class: Class, rows: u64) -> u64 {
        let Class { tenant, priority } = class;
        let now = self.turn[priority as usize];
        let (last, next) = self.turns.get(&(priority, tenant.id())).copied().unwrap_or_default();
        let last = if self.own(class).0 > 0 { last } else { 0 };
        let ahead = next.max(last).max(now) - now + cost(tenant, rows);
        let mut of_tenants: BTreeMap<u64, (Tenant, u64)> = BTreeMap::new();
        for at in self.queued() {
            let request = &self.requests[at];
            if request.priority == priority {
                of_tenants.entry(request.tenant.id()).or_insert((request.tenant, 0)).1 += request.rows;
            }
        }
        let before = |(other, queued): &(Tenant, u64)| match other.id() == tenant.id() {
            true => *queued,
            false => (*queued).min(ahead * u64::from(other.weight().get()) / 65_536),
        };
        of_tenants.values().map(before).sum()
    }

    fn predict(&self, class: Class, now: Time, rows: u64, bytes: u64) -> Option<Duration> {
        let queued = self.queued_to(class.priority);
        let same: Vec<usize> =
            queued.iter().copied().filter(|at| self.requests[*at].priority == class.priority).collect();
        let (same_rows, same_bytes) = (self.rows(&same), self.bytes(&same));
        let (all_rows, all_bytes) = (self.rows(&queued), self.bytes(&queued));
        let rows_before = self.rows_before(class, rows);
        let bytes_before = if rows_before == same_rows {
            same_bytes
        } else {
            (same_bytes as f64 * rows_before as f64 / same_rows as f64) as u64
        };
        let (rows_before, bytes_before) =
            (rows_before + all_rows - same_rows, bytes_before + all_bytes - same_bytes);
        let with = self.with(now, class.tenant);
        let own: Vec<usize> = queued.iter().copied().filter(|at| self.requests[*at].with == with).collect();
        let share = |before: u64, own: u64, all: u64| {
            if own == all || before == all {
                before.min(own)
            } else {
                (before as f64 * own as f64 / all as f64) as u64
            }
        };
        let own_rows = share(rows_before, self.rows(&own), all_rows);
        let own_bytes = share(bytes_before, self.bytes(&own), all_bytes);
        let share = if all_rows == 0 { 0.0 } else { rows_before as f64 / all_rows as f64 };
        let others = share * self.time_of_others(&queued, with);
        let caution = self.caution_at(now, class.tenant);
        self.time_until(now, own_rows + rows, own_bytes + bytes, others, caution)
    }

    fn time_of_others(&self, queued: &[usize], with: With) -> f64 {
        let mut others: Vec<With> = queued.iter().map(|at| self.requests[*at].with).collect();
        others.sort();
        others.dedup();
        let mut seconds = 0.0;
        for other in others.into_iter().filter(|other| *other != with) {
            let its: Vec<usize> =
                queued.iter().copied().filter(|at| self.requests[*at].with == other).collect();
            let (before, last) = self.batch_times(self.rows(&its), self.bytes(&its));
            seconds += before + last;
        }
        seconds
    }

    /// Times of full batches, and of the remainder.
    fn batch_times(&self, rows: u64, bytes: u64) -> (f64, f64) {
        let (most_rows, most_bytes) = (self.config.max_batch_rows, self.config.max_batch_bytes);
        let batches = (rows as f64 / most_rows as f64).max(bytes as f64 / most_bytes as f64).max(1.0);
        let part = |share: f64| {
            self.time((rows as f64 / batches * share) as u64, (bytes as f64 / batches * share) as u64)
        };
        let (mut left, mut before) = (batches, 0.0);
        while left > 1.0 {
            before += 1.0;
            left -= 1.0;
        }
        (before * part(1.0), part(left))
    }

    fn time(&self, rows: u64, bytes: u64) -> f64 {
        self.model.predict(self.config.padded_rows(rows), bytes).as_secs_f64()
    }

    fn time_until(&self, now: Time, rows: u64, bytes: u64, others: f64, caution: f64) -> Option<Duration> {
        let healthy: Vec<&Working> = self.workers.iter().filter(|worker| worker.is_healthy(now)).collect();
        if healthy.is_empty() || self.model.observations() == 0 {
            return None;
        }
        let mut busy = 0.0;
        for worker in &healthy {
            busy += worker.has.last().map_or(0.0, |last| last.end.saturating_sub(now).as_secs_f64());
        }
        let (before, last) = self.batch_times(rows, bytes);
        let seconds = caution * ((busy + others + before) / healthy.len() as f64 + last);
        Some(Duration::from_secs_f64(seconds) + 2 * self.model.error())
    }

    /// The part above 1 halves every second.
    fn caution_at(&self, now: Time, tenant: Tenant) -> f64 {
        let Some((caution, since)) = self.caution.get(&tenant.id()) else { return 1.0 };
        1.0 + (caution - 1.0) * 0.5f64.powf(now.saturating_sub(*since).as_secs_f64())
    }

    fn add_caution(&mut self, now: Time, tenant: Tenant, change: f64) {
        let caution = (self.caution_at(now, tenant) + change).clamp(1.0, 8.0);
        self.caution.insert(tenant.id(), (caution, now));
    }

    pub(super) fn cancel(&mut self, now: Time, id: RequestId) {
        if (id.0 as usize) < self.requests.len() {
            self.leave(now, id.0 as usize);
        }
    }

    pub(super) fn expire(&mut self, now: Time) -> Vec<RequestId> {
        let mut expired: Vec<(Time, usize)> = (0..self.requests.len())
            .filter(|at| self.requests[*at].is_alive && self.requests[*at].deadline <= now)
            .map(|at| (self.requests[at].deadline, at))
            .collect();
        expired.sort();
        for (_, at) in &expired {
            self.leave(now, *at);
            let Request { tenant, was_predicted, priority, .. } = self.requests[*at];
            if !self.workers.is_empty() && was_predicted && priority == Priority::Normal {
                self.add_caution(now, tenant, 0.02);
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
            self.leave(now, at);
            expired.push((since, at));
        }
        expired.into_iter().map(|(_, at)| RequestId(at as u64)).collect()
    }

    pub(super) fn unserved(&mut self, now: Time) -> Vec<RequestId> {
        let mut unserved: Vec<(Time, usize)> = (0..self.requests.len())
            .filter(|at| self.requests[*at].is_alive && self.requests[*at].served_until() <= now)
            .map(|at| (self.requests[at].served_until(), at))
            .collect();
        unserved.sort();
        unserved.iter().for_each(|(_, at)| self.end(*at));
        unserved.into_iter().map(|(_, at)| RequestId(at as u64)).collect()
    }

    /// True if a worker that is not overdue has the request.
    fn is_given(&self, request: usize) -> bool {
        let prompt = self.workers.iter().filter(|worker| !worker.overdue);
        prompt.flat_map(|worker| &worker.has).any(|given| given.requests.contains(&request))
    }

    /// True if the request is queued, or at a worker that is not overdue, or has ended.
    fn is_in_another_place(&self, request: usize) -> bool {
        let Request { is_alive, queued, .. } = &self.requests[request];
        !is_alive || queued.is_some() || self.is_given(request)
    }

    pub(super) fn next_expiry(&self) -> Option<Time> {
        let alive = self.requests.iter().filter(|request| request.is_alive);
        let times = alive.map(|request| {
            let queued = request.queued.map_or(Time::MAX, |since| since + self.config.max_time_in_queue);
            request.deadline.min(queued).min(request.served_until())
        });
        times.min()
    }

    fn overdue_at(&self, worker: &Working) -> Option<Time> {
        let given = worker.has.first()?;
        let limit = if worker.computed < 3 {
            Duration::from_secs(300)
        } else {
            (10 * self.model.predict(given.padded, given.bytes)).max(Duration::from_secs(1))
        };
        Some(given.at.max(worker.since) + limit)
    }

    pub(super) fn suspend_overdue(&mut self, now: Time) -> Vec<WorkerId> {
        let mut found: Vec<usize> = (0..self.workers.len())
            .filter(|at| !self.workers[*at].overdue)
            .filter(|at| self.overdue_at(&self.workers[*at]).is_some_and(|due| due <= now))
            .collect();
        found.sort_by_key(|at| self.workers[*at].id);
        for at in &found {
            let working = &mut self.workers[*at];
            working.overdue = true;
            working.silent_since = working.has[0].at.max(working.since);
            let batches: Vec<_> = self.workers[*at].has.iter().map(|given| given.requests.clone()).collect();
            for requests in batches {
                self.try_again(now, &requests);
            }
        }
        found.into_iter().map(|at| self.workers[at].id).collect()
    }

    /// Queues the requests of a lost batch. Returns the one that is given up.
    fn try_again(&mut self, now: Time, requests: &[usize]) -> Option<usize> {
        let alive = |at: &&usize| self.requests[**at].is_alive;
        let suspects: Vec<usize> = requests
            .iter()
            .filter(alive)
            .filter(|at| self.requests[**at].attempts >= self.config.max_attempts)
            .copied()
            .collect();
        if requests.len() == 1 && !suspects.is_empty() {
            return suspects.into_iter().find(|at| !self.is_in_another_place(*at));
        }
        let classes = self.classes(&suspects);
        if classes.len() == 1 {
            suspects.iter().for_each(|at| self.part(&[*at], None));
        } else {
            classes.iter().for_each(|class| self.part(class, None));
        }
        requests.iter().for_each(|at| self.enqueue(now, *at));
        None
    }

    fn enqueue(&mut self, now: Time, at: usize) {
        if self.is_in_another_place(at) {
            return;
        }
        let with = self.with(now, self.requests[at].tenant);
        let request = &mut self.requests[at];
        request.queued = Some(now);
        if !matches!(request.with, With::Part(..)) {
            request.with = with;
        }
    }

    fn part(&mut self, requests: &[usize], failed_at: Option<WorkerId>) {
        self.parts += 1;
        requests.iter().for_each(|at| self.requests[*at].with = With::Part(self.parts, failed_at));
    }

    /// Requests by tenant and priority.
    fn classes(&self, requests: &[usize]) -> Vec<Vec<usize>> {
        let class = |at: usize| (self.requests[at].tenant.id(), self.requests[at].priority);
        let mut all: Vec<_> = requests.iter().map(|at| class(*at)).collect();
        all.sort();
        all.dedup();
        let of = |wanted| requests.iter().copied().filter(|at| class(*at) == wanted).collect();
        all.into_iter().map(of).collect()
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
        self.requests.iter_mut().for_each(|request| request.alone_since = None);
        self.workers.push(Working {
            id,
            credits,
            since: now,
            has: vec![],
            computed: 0,
            overdue: false,
            silent_since: Time::ZERO,
            strikes: 0,
            suspensions: 0,
            suspended_until: None,
        });
        id
    }

    pub(super) fn remove_worker(&mut self, now: Time, worker: WorkerId) -> Vec<RequestId> {
        let Some(at) = self.workers.iter().position(|working| working.id == worker) else { return vec![] };
        let given_up: Vec<usize> = self
            .workers
            .remove(at)
            .has
            .into_iter()
            .filter_map(|given| self.try_again(now, &given.requests))
            .collect();
        let lost = given_up.into_iter().map(|at| self.give_up(now, at, true)).collect();
        if self.workers.is_empty() {
            self.requests.iter_mut().for_each(|request| request.alone_since = Some(now));
        }
        lost
    }

    /// Ends a request that failed alone, because of itself unless its features could not be looked up.
    fn give_up(&mut self, now: Time, at: usize, is_to_blame: bool) -> RequestId {
        if !is_to_blame {
            self.end(at);
            return RequestId(at as u64);
        }
        self.end(at);
        self.set_apart(now, self.requests[at].tenant, false);
        RequestId(at as u64)
    }

    /// A tenant is set apart if it left three failed batches, each less than a minute after the one before.
    fn suspect(&mut self, now: Time, tenant: Tenant) {
        self.suspected.push((tenant.id(), now));
        let own: Vec<Time> =
            self.suspected.iter().filter(|(id, _)| *id == tenant.id()).map(|(_, at)| *at).collect();
        let minute = Duration::from_secs(60);
        if let [.., first, second, third] = own.as_slice()
            && *second < *first + minute
            && *third < *second + minute
        {
            self.set_apart(now, tenant, true);
        }
    }

    fn set_apart(&mut self, now: Time, tenant: Tenant, mut is_suspected: bool) {
        if tenant != Tenant::SERVER {
            if self.unshared.get(&tenant.id()).is_some_and(|(until, suspected)| *until > now && !suspected) {
                is_suspected = false;
            }
            self.unshared.insert(tenant.id(), (now + Duration::from_secs(60), is_suspected));
            for request in self.requests.iter_mut().filter(|request| request.is_alive) {
                if request.queued.is_some() && request.with == With::All && request.tenant.id() == tenant.id()
                {
                    request.with = With::OwnTenant(tenant.id());
                }
            }
        }
    }

    pub(super) fn set_config(&mut self, config: QueueConfig) {
        self.config = config;
    }

    pub(super) fn suspended(&mut self) -> Vec<(WorkerId, Duration)> {
        std::mem::take(&mut self.suspended)
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
        let (given, begun) = self.take(now, worker, batch, |_| true)?;
        if let Some(working) = self.workers.iter_mut().find(|working| working.id == worker) {
            working.computed += 1;
            (working.strikes, working.suspensions, working.suspended_until) = (0, 0, None);
        }
        self.model.observe(given.padded, given.bytes, now.saturating_sub(begun));
        self.foresee(worker);
        let mut answered = vec![];
        for at in given.requests {
            let Request { tenant, priority, is_alive, .. } = self.requests[at];
            if !is_alive {
                answered.push(None);
                continue;
            }
            if let Some(trial) = self.requests[at].trial.take() {
                let Trial { worker: failed, open, by_another, is_over } = &mut self.trials[trial];
                *by_another |= *failed != worker;
                *open -= 1;
                if *open == 0 && !std::mem::replace(is_over, true) && *by_another {
                    let failed = *failed;
                    self.strike(now, failed);
                }
            }
            self.end(at);
            answered.push(Some(RequestId(at as u64)));
            self.suspected.retain(|(id, _)| *id != tenant.id());
            self.unshared.retain(|id, (_, suspected)| *id != tenant.id() || !*suspected);
            if priority == Priority::Normal {
                self.add_caution(now, tenant, -0.02 / 100.0);
            }
        }
        Some(answered)
    }

    /// True if a worker in good standing can tell whether this one or a request is broken. A late one can if this one is in doubt.
    fn others(&self, worker: WorkerId) -> Vec<&Working> {
        let others = self.workers.iter().filter(|other| other.id != worker);
        others.filter(|other| other.suspended_until.is_none()).collect()
    }

    fn strike(&mut self, now: Time, worker: WorkerId) {
        let has_other = self.others(worker).iter().any(|other| !other.overdue);
        let Some(working) = self.workers.iter_mut().find(|working| working.id == worker) else { return };
        working.strikes += 1;
        if working.strikes >= 3 && working.suspended_until.is_none() && has_other {
            self.suspend(now, worker);
        }
    }

    fn suspend(&mut self, now: Time, worker: WorkerId) {
        let Some(working) = self.workers.iter_mut().find(|working| working.id == worker) else { return };
        let seconds = [1, 2, 4, 8, 16, 32].get(working.suspensions as usize).copied().unwrap_or(60);
        working.suspensions += 1;
        working.suspended_until = Some(now + Duration::from_secs(seconds));
        self.suspended.push((worker, Duration::from_secs(seconds)));
    }

    pub(super) fn fail(
        &mut self,
        now: Time,
        worker: WorkerId,
        batch: BatchId,
        cause: Cause,
    ) -> Option<Vec<RequestId>> {
        // A batch that fails before it is sent has no reply.
        let (given, _) = self.take(now, worker, batch, |given| given.sent || cause == Cause::Worker)?;
        self.foresee(worker);
        let alive = |at: &usize| self.requests[*at].is_alive;
        let alive: Vec<usize> = given.requests.iter().copied().filter(alive).collect();
        for at in &alive {
            self.requests[*at].attempts += u32::from(!given.sent);
        }
        let is_of_worker = cause == Cause::Worker;
        if is_of_worker {
            given.left.iter().for_each(|tenant| self.suspect(now, *tenant));
            let mut untried = alive.clone();
            untried.retain(|at| self.requests[*at].trial.is_none() && given.left.is_empty());
            for at in &untried {
                self.requests[*at].trial = Some(self.trials.len());
            }
            self.trials.push(Trial { worker, open: untried.len(), by_another: false, is_over: false });
            let working = self.workers.iter().find(|working| working.id == worker);
            if working.and_then(|working| working.suspended_until).is_some_and(|until| until <= now) {
                if !given.shared {
                    self.workers.iter_mut().find(|own| own.id == worker).unwrap().suspensions -= 1;
                }
                self.suspend(now, worker);
            }
        }
        let again: Vec<usize> = alive.into_iter().filter(|at| !self.is_in_another_place(*at)).collect();
        if given.requests.len() == 1 && again.len() == 1 {
            let own = self.workers.iter().find(|working| working.id == worker).unwrap();
            let tries_again = match (is_of_worker && !self.others(worker).is_empty(), own.suspended_until) {
                (false, _) => false,
                (true, Some(_)) => true,
                (true, None) => !std::mem::replace(&mut self.requests[again[0]].failed_alone, true),
            };
            let says_nothing = cause == Cause::Features || is_of_worker && own.suspended_until.is_some();
            if !tries_again {
                return Some(vec![self.give_up(now, again[0], !says_nothing)]);
            }
        }
        let failed_at = is_of_worker.then_some(worker);
        let classes = self.classes(&again);
        if classes.len() == 1 && again.len() > 1 {
            self.part(&again[..again.len() / 2], failed_at);
            self.part(&again[again.len() / 2..], failed_at);
        } else {
            classes.iter().for_each(|class| self.part(class, failed_at));
        }
        again.iter().for_each(|at| self.enqueue(now, *at));
        Some(vec![])
    }

    fn take(
        &mut self,
        now: Time,
        worker: WorkerId,
        batch: BatchId,
        is_reply: impl Fn(&Given) -> bool,
    ) -> Option<(Given, Time)> {
        let working = self.workers.iter_mut().find(|working| working.id == worker)?;
        let at = working.has.iter().position(|given| given.batch == batch)?;
        let given = working.has.remove(at);
        let begun = given.at.max(working.since);
        let is_reply = is_reply(&given);
        if is_reply {
            working.since = now;
        }
        if working.overdue && (is_reply || at == 0) {
            working.overdue = false;
            for request in working.has.iter().flat_map(|given| &given.requests) {
                self.requests[*request].queued = None;
            }
        }
        Some((given, begun))
    }

    fn foresee(&mut self, worker: WorkerId) {
        let Some(working) = self.workers.iter_mut().find(|working| working.id == worker) else { return };
        for at in 0..working.has.len() {
            let begun = if at == 0 { working.has[0].at.max(working.since) } else { working.has[at - 1].end };
            let given = &mut working.has[at];
            given.end = begun + self.model.predict(given.padded, given.bytes);
        }
    }

    /// Worker for a batch of these requests, and the time when it can receive the batch.
    fn worker_for(&self, now: Time, with: With) -> Option<(Time, WorkerId)> {
        let mut usable: Vec<&Working> = self.workers.iter().filter(|worker| worker.is_healthy(now)).collect();
        if self.workers.iter().all(|worker| worker.suspended_until.is_some_and(|until| now < until)) {
            usable = self.workers.iter().filter(|worker| !worker.overdue).collect();
        }
        let (mut waits, second) = (false, Duration::from_secs(1));
        let is_trusted = |worker: &&Working| worker.suspended_until.is_none();
        if let With::Part(_, failed_at) = with {
            let trusted: Vec<&Working> = usable.iter().copied().filter(is_trusted).collect();
            let late = |worker: &&Working| worker.has.last().is_some_and(|last| last.end + second <= now);
            let others = trusted.iter().copied().filter(|worker| Some(worker.id) != failed_at);
            let others: Vec<&Working> = others.filter(|worker| !late(worker)).collect();
            waits = failed_at.is_some() && !others.is_empty();
            usable = [others, trusted, usable].into_iter().find(|some| !some.is_empty()).unwrap_or_default();
        }
        let gather_time = Duration::from_secs_f64(self.gather_seconds);
        let ready = |worker: &Working| {
            let Some(last) = worker.has.last() else { return Some((now, worker.since)) };
            let has_credit = (worker.has.len() as u64) < worker.credits.min(self.config.max_credits);
            let is_in_time = last.end + Duration::from_millis(1) >= now;
            if is_trusted(&worker) && has_credit && is_in_time {
                Some((last.end.saturating_sub(gather_time).max(now), Time::MAX))
            } else {
                waits.then_some((last.end + second, Time::MAX))
            }
        };
        // The longest idle of the free ones. One on probation is the last for requests that share no batches.
        let ready = usable.into_iter().filter_map(|worker| {
            let (at, since) = ready(worker)?;
            Some((at, with != With::All && !is_trusted(&worker), since, worker.id))
        });
        ready.min().map(|(at, _, _, id)| (at, id))
    }

    pub(super) fn next(&mut self, now: Time) -> Decision {
        let queued = self.queued();
        if queued.is_empty() {
            return Decision::Wait(None);
        }
        let ends = self.workers.iter().filter_map(|worker| worker.suspended_until);
        let mut wait: Vec<Time> = ends.filter(|end| *end > now).collect();
        match self.worker_for(now, With::All) {
            None => return Decision::Wait(wait.into_iter().min()),
            Some((at, _)) if at > now => {
                wait.push(at);
                return Decision::Wait(wait.into_iter().min());
            }
            Some(_) => {}
        }
        let mut cohorts: Vec<With> = vec![];
        for at in &queued {
            if !cohorts.contains(&self.requests[*at].with) {
                cohorts.push(self.requests[*at].with);
            }
        }
        let mut kept = vec![];
        for with in cohorts {
            let Some((at, worker)) = self.worker_for(now, with) else { continue };
            if kept.contains(&worker) {
                continue;
            }
            if at > now {
                wait.push(at);
                continue;
            }
            let its: Vec<usize> =
                queued.iter().copied().filter(|at| self.requests[*at].with == with).collect();
            match self.batch(now, its, with, worker) {
                Batched::Send(formed) => return Decision::Send(formed),
                Batched::Wait(at) => wait.push(at),
                Batched::Keep => kept.push(worker),
            }
        }
        Decision::Wait(wait.into_iter().min())
    }

    fn batch(&mut self, now: Time, queued: Vec<usize>, with: With, worker: WorkerId) -> Batched {
        let config = self.config.clone();
        let (mut rows, mut bytes, mut taken, mut full) = (0, 0, vec![], None);
        let last = self.workers.iter().find(|working| working.id == worker).unwrap().has.last();
        let last_end = last.map(|last| last.end.max(now));
        let start = last_end.unwrap_or(now);
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
            if close_reason.is_some() && !taken.is_empty() {
                full = close_reason;
                break;
            }
            rows += request.rows;
            bytes += request.bytes;
            taken.push(at);
        }
        if full.is_none() && rows >= config.max_batch_rows {
            full = Some(CloseReason::Rows);
        } else if full.is_none() && bytes >= config.max_batch_bytes {
            full = Some(CloseReason::Bytes);
        } else if full.is_none() && with != With::All {
            full = Some(CloseReason::Alone);
        }
        let of_taken = |of: fn(&Request) -> Time| taken.iter().map(|at| of(&self.requests[*at])).min();
        let deadline = of_taken(|request| request.deadline).unwrap_or(Time::MAX);
        let oldest = of_taken(|request| request.arrived).unwrap_or(Time::MAX);
        if last_end.is_some_and(|end| end + 2 * self.model.error() + Duration::from_millis(1) >= deadline) {
            return Batched::Keep;
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
            return Batched::Wait(if config.eager_dispatch { wait.min(pays) } else { wait });
        };
        let batch = BatchId(self.batches);
        self.batches += 1;
        let attempts = taken.iter().map(|at| self.requests[*at].attempts).max().unwrap_or(0);
        // Rows that batches of the usual size have in the time of this one.
        let usual = (self.shared_rows as u64).max(rows);
        let usual_time = self.time(usual, (bytes as f64 / rows as f64 * usual as f64) as u64);
        let worth = ((self.time(rows, bytes) / usual_time * usual as f64) as u64).clamp(rows, usual);
        if with == With::All {
            self.shared_rows += (rows as f64 - self.shared_rows) / 8.0;
        }
        for (number, at) in taken.iter().enumerate() {
            let request = &mut self.requests[*at];
            request.queued = None;
            let turn = &mut self.turn[request.priority as usize];
            *turn = (*turn).max(request.turn);
            let again = if request.attempts > 0 { request.rows } else { 0 };
            let charged = again + if number == 0 { worth - rows } else { 0 };
            if with != With::All && charged > 0 {
                let key = (request.priority, request.tenant.id());
                let (_, next) = self.turns.get_mut(&key).unwrap();
                *next = (*next).max(*turn) + cost(request.tenant, charged);
            }
        }
        let requests = taken.iter().map(|at| RequestId(*at as u64)).collect();
        let shared = with == With::All;
        taken.iter().for_each(|at| self.requests[*at].last_batch = Some(batch));
        let given = Given {
            batch,
            requests: taken,
            padded,
            bytes,
            at: now,
            end: now,
            sent: false,
            shared,
            left: vec![],
        };
        self.workers.iter_mut().find(|working| working.id == worker).unwrap().has.push(given);
        self.foresee(worker);
        Batched::Send(FormedBatch {
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

    /// Overdue and suspended workers, with the longest times first.
    pub(super) fn unavailable(&self, now: Time) -> (Vec<SilentWorker>, Vec<SuspendedWorker>) {
        let (mut silent, mut suspended) = (vec![], vec![]);
        for working in self.workers.iter().filter(|working| !working.is_healthy(now)) {
            match working.suspended_until {
                _ if working.overdue => {
                    silent.push(SilentWorker { worker: working.id, silence: now - working.silent_since });
                }
                Some(until) => {
                    suspended.push(SuspendedWorker { worker: working.id, remaining: until - now });
                }
                None => {}
            }
        }
        silent.sort_by_key(|one| (std::cmp::Reverse(one.silence), one.worker));
        suspended.sort_by_key(|one| (std::cmp::Reverse(one.remaining), one.worker));
        (silent, suspended)
    }

    fn last(times: &[Time], count: usize) -> &[Time] {
        &times[times.len().saturating_sub(count)..]
    }

    fn pays_until(&self, waiting: usize) -> Time {
        let fixed = self.model.coefficients().fixed;
        let until = |last: &[Time]| {
            let (first, others) = last.split_first()?;
            Some(*first + Duration::from_secs_f64(others.len() as f64 * fixed / waiting as f64))
        };
        let spans = [4, 32].map(|count| Self::last(&self.admitted, count));
        spans.into_iter().filter_map(until).min().unwrap_or_default()
    }

    pub(super) fn load(&self, now: Time) -> Load {
        let queued = self.queued();
        let rate = |last: &[Time]| match last {
            [] => 0.0,
            [first, others @ ..] => others.len() as f64 / now.saturating_sub(*first).as_secs_f64().max(1e-6),
        };
        let normal = self.queued_to(Priority::Normal);
        let shared: Vec<usize> =
            normal.iter().copied().filter(|at| self.requests[*at].with == With::All).collect();
        let others = self.time_of_others(&normal, With::All);
        let caution = self.caution_at(now, Tenant::SERVER);
        let wait = self.time_until(now, self.rows(&shared) + 1, self.bytes(&shared), others, caution);
        let count =
            |of: fn(&Working, Time) -> bool| self.workers.iter().filter(|worker| of(worker, now)).count();
        let [short, long] = [4, 32].map(|count| rate(Self::last(&self.offered, count)));
        Load {
            workers: count(Working::is_healthy),
            overdue_workers: count(|worker, _| worker.overdue),
            suspended_workers: count(|worker, now| !worker.overdue && !worker.is_healthy(now)),
            queued_requests: queued.len(),
            queued_rows: self.rows(&queued),
            batches: self.workers.iter().map(|worker| worker.has.len()).sum(),
            requests_per_second: short.min(long),
            predicted_wait_seconds: wait.map(|time| time.as_secs_f64()),
        }
    }
}

enum Batched {
    Send(FormedBatch),
    Wait(Time),
    /// No other batch may delay this one at its worker.
    Keep,
}
