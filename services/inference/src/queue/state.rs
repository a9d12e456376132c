//! Shared state of a queue: the batcher, the waiting requests and the channels of the workers.

use std::collections::HashMap;

use forebay_loader::Tenant;
use metrics::{counter, gauge, histogram};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, mpsc, oneshot},
    time::{Instant, sleep_until},
};

use super::{
    Answer, Batch, BatchId, BatchShape, Batcher, Class, CloseReason, Decision, Failure, FormedBatch, Notice,
    Outcomes, Priority, QueueConfig, Refusal, RequestId, Time, WorkerId,
};

/// State of a queue, shared by its handles, requests and workers.
pub(super) struct Shared<P, R> {
    name: String,
    created: Instant,
    pub(super) state: Mutex<State<P, R>>,
    /// Wakes the timer when it has to act earlier than scheduled.
    rescheduled: Notify,
}

pub(super) struct State<P, R> {
    pub(super) batcher: Batcher,
    pub(super) requests: HashMap<RequestId, Waiting<P, R>>,
    held: HeldBytes,
    pub(super) in_flight: HashMap<BatchId, InFlight>,
    pub(super) workers: HashMap<WorkerId, Channels<P>>,
    /// Time for which the timer is scheduled.
    wake: Option<Time>,
    pub(super) close_reasons: HashMap<CloseReason, u64>,
    pub(super) outcomes: Outcomes,
    pub(super) draining: bool,
}

/// A request that waits for its answer.
pub(super) struct Waiting<P, R> {
    pub(super) payload: P,
    pub(super) tenant: Tenant,
    pub(super) held_bytes: u64,
    pub(super) rows: u64,
    pub(super) arrived: Time,
    pub(super) answer: oneshot::Sender<Result<Answer<R>, Failure>>,
}

/// Channels to a worker.
pub(super) struct Channels<P> {
    pub(super) batches: mpsc::UnboundedSender<Batch<P>>,
    pub(super) notices: mpsc::Sender<Notice>,
}

/// A batch that was sent to a worker.
pub(super) struct InFlight {
    pub(super) worker: WorkerId,
    pub(super) shape: BatchShape,
    pub(super) rows: u64,
    pub(super) close_reason: CloseReason,
    pub(super) closed_at: Time,
    pub(super) gathered_at: Option<Time>,
}

impl<P, R> State<P, R> {
    /// Removes a request that ends.
    pub(super) fn take(&mut self, id: RequestId) -> Option<Waiting<P, R>> {
        let request = self.requests.remove(&id)?;
        self.held.release(request.tenant, request.held_bytes);
        Some(request)
    }

    fn notify(&self, worker: WorkerId, notice: Notice) {
        let channels = self.workers.get(&worker);
        if channels.is_some_and(|channels| channels.notices.try_send(notice).is_err()) {
            tracing::debug!(
                worker = worker.0,
                ?notice,
                "a notice is dropped: the worker leaves, or others wait"
            );
        }
    }
}

/// Memory of the waiting requests, in bytes.
#[derive(Default)]
struct HeldBytes {
    total: u64,
    by_tenant: HashMap<u64, u64>,
}

impl HeldBytes {
    /// True if the bytes of a request fit into `max` after `freed` bytes are released, `freed_own` of them by its tenant. As with the
    /// number of requests, a tenant may hold up to seven times the room that is left.
    fn has_room(&self, tenant: Tenant, bytes: u64, max: u64, (freed, freed_own): (u64, u64)) -> bool {
        let own = self.by_tenant.get(&tenant.id()).copied().unwrap_or(0) - freed_own;
        let free = max.checked_sub(self.total - freed);
        let Some(left) = free.and_then(|free| free.checked_sub(bytes)) else { return false };
        tenant == Tenant::SERVER || own == 0 || own + bytes <= left.saturating_mul(7)
    }

    fn take(&mut self, tenant: Tenant, bytes: u64) {
        self.total += bytes;
        *self.by_tenant.entry(tenant.id()).or_default() += bytes;
    }

    fn release(&mut self, tenant: Tenant, bytes: u64) {
        self.total -= bytes;
        if let Some(own) = self.by_tenant.get_mut(&tenant.id()) {
            *own -= bytes;
            if *own == 0 {
                self.by_tenant.remove(&tenant.id());
            }
        }
    }
}

impl<P, R> Shared<P, R> {
    pub(super) fn new(name: &str, config: QueueConfig) -> Self {
        let state = State {
            batcher: Batcher::new(config),
            requests: HashMap::new(),
            held: HeldBytes::default(),
            in_flight: HashMap::new(),
            workers: HashMap::new(),
            wake: None,
            close_reasons: HashMap::new(),
            outcomes: Outcomes::default(),
            draining: false,
        };
        let (created, rescheduled) = (Instant::now(), Notify::new());
        Self { name: name.to_owned(), created, state: Mutex::new(state), rescheduled }
    }

    pub(super) fn name(&self) -> String {
        self.name.clone()
    }

    pub(super) fn now(&self) -> Time {
        self.created.elapsed()
    }

    /// Counts a request with this outcome, in the metric and in `total`.
    pub(super) fn count(&self, outcome: &'static str, total: &mut u64) {
        *total += 1;
        counter!("forebay_queue_requests_total", "queue" => self.name(), "outcome" => outcome).increment(1);
    }
}

impl<P: Clone, R> Shared<P, R> {
    /// Runs the timer. Never returns.
    pub(super) async fn run_timer(&self) {
        loop {
            let wake = self.state.lock().wake;
            let rescheduled = self.rescheduled.notified();
            match wake {
                Some(at) => {
                    tokio::select! {
                        () = sleep_until(self.created + at) => {}
                        () = rescheduled => {}
                    }
                }
                None => rescheduled.await,
            }
            self.dispatch(&mut self.state.lock());
        }
    }

    /// Carries out all decisions that are due: fails expired requests, sends batches, and schedules the timer.
    pub(super) fn dispatch(&self, state: &mut State<P, R>) {
        let now = self.now();
        let had_workers = !state.workers.is_empty();
        for id in state.batcher.expire(now) {
            if let Some(request) = state.take(id) {
                self.count("expired", &mut state.outcomes.expired);
                let waited = now.saturating_sub(request.arrived);
                drop(request.answer.send(Err(Failure::Expired { waited, had_workers })));
            }
        }
        for (id, attempts) in state.batcher.unserved(now) {
            if let Some(request) = state.take(id) {
                self.count("expired", &mut state.outcomes.expired);
                let waited = now.saturating_sub(request.arrived);
                // A request that a worker has received is not sent to another server.
                let failure = if attempts == 0 { Failure::Unserved { waited } } else { Failure::Lost };
                drop(request.answer.send(Err(failure)));
            }
        }
        for id in state.batcher.suspend_overdue(now) {
            counter!("forebay_queue_overdue_total", "queue" => self.name()).increment(1);
            if let Some(silence) = state.batcher.silence(now, id) {
                state.notify(id, Notice::Overdue { silence });
            }
        }
        for (id, silence) in state.batcher.answering() {
            state.notify(id, Notice::Answering { silence });
        }
        for (id, time) in state.batcher.suspended() {
            counter!("forebay_queue_suspensions_total", "queue" => self.name()).increment(1);
            state.notify(id, Notice::Suspended { time });
        }
        let until = loop {
            match state.batcher.next(now) {
                Decision::Send(formed) => self.send(state, now, &formed),
                Decision::Wait(until) => break until,
            }
        };
        let wake =
            [until, state.batcher.next_expiry(), state.batcher.next_overdue()].into_iter().flatten().min();
        if wake.is_some_and(|wake| state.wake.is_none_or(|before| wake < before)) {
            self.rescheduled.notify_one();
        }
        state.wake = wake;
        if state.draining && state.requests.is_empty() {
            state.workers.clear();
        }
        gauge!("forebay_queue_requests", "queue" => self.name()).set(state.requests.len() as f64);
    }

    /// Reserves the memory of a new request of `class`. A request of normal priority takes the memory of those of low priority, if that
    /// makes enough room.
    ///
    /// # Errors
    /// [`Refusal::Full`] if it does not fit into `max_queue_bytes`.
    pub(super) fn hold(&self, state: &mut State<P, R>, class: Class, bytes: u64) -> Result<(), Refusal> {
        let QueueConfig { max_queue_bytes, default_timeout, .. } = *state.batcher.config();
        let Class { tenant, priority } = class;
        let (mut displaced, mut freed, mut freed_own) = (Vec::new(), 0, 0);
        let mut candidates = match priority {
            Priority::Normal => Some(state.batcher.displaceable()),
            Priority::Low => None,
        };
        while !state.held.has_room(tenant, bytes, max_queue_bytes, (freed, freed_own)) {
            let next = candidates.as_mut().and_then(Iterator::next);
            let Some((id, request)) = next.and_then(|id| Some((id, state.requests.get(&id)?))) else {
                return Err(Refusal::Full { retry_after: default_timeout / 2 });
            };
            displaced.push(id);
            freed += request.held_bytes;
            freed_own += if request.tenant == tenant { request.held_bytes } else { 0 };
        }
        drop(candidates);
        for id in displaced {
            state.batcher.displace(id);
            self.displaced(state, id);
        }
        state.held.take(tenant, bytes);
        Ok(())
    }

    /// Ends a request of low priority that made room for another one.
    pub(super) fn displaced(&self, state: &mut State<P, R>, id: RequestId) {
        let retry_after = state.batcher.config().default_timeout / 2;
        if let Some(request) = state.take(id) {
            self.count("displaced", &mut state.outcomes.displaced);
            drop(request.answer.send(Err(Failure::Refused(Refusal::Displaced { retry_after }))));
        }
    }

    /// Sends a closed batch to its worker.
    fn send(&self, state: &mut State<P, R>, now: Time, formed: &FormedBatch) {
        let FormedBatch { batch: id, rows, padded_rows, close_reason, previous_attempts, .. } = *formed;
        let (worker, deadline) = (formed.worker, self.created + formed.deadline);
        let requests = formed.requests.iter().filter_map(|id| state.requests.get(id));
        let requests: Vec<&Waiting<P, R>> = requests.collect();
        let payloads = requests.iter().map(|request| request.payload.clone()).collect();
        let request_rows = requests.iter().map(|request| request.rows).collect();
        for request in &requests {
            histogram!("forebay_queue_wait_seconds", "queue" => self.name())
                .record(now.saturating_sub(request.arrived));
        }
        counter!("forebay_queue_batches_total", "queue" => self.name(), "close_reason" => close_reason.name())
            .increment(1);
        histogram!("forebay_queue_batch_rows", "queue" => self.name()).record(rows as f64);
        *state.close_reasons.entry(close_reason).or_default() += 1;
        let shape = BatchShape { request_rows, padded_rows };
        let in_flight = InFlight { worker, shape, rows, close_reason, closed_at: now, gathered_at: None };
        state.in_flight.insert(id, in_flight);
        let batch = Batch { id, payloads, rows, padded_rows, close_reason, deadline, previous_attempts };
        if let Some(worker) = state.workers.get(&worker) {
            // A worker whose receiver was dropped is removed at once.
            drop(worker.batches.send(batch));
        }
    }
}

#[cfg(test)]
mod tests;
