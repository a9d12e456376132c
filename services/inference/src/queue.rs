//! A batch queue: small requests in, formed batches out to workers, and each request's share of the reply back to it.

mod config;
mod forecast;
mod model;
mod outcome;
mod policy;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use metrics::{counter, gauge, histogram};
use tokio::{
    sync::{Notify, mpsc, oneshot},
    time::{Instant, sleep_until},
};

pub use config::QueueConfig;
pub use forecast::{Forecast, Frontier, Point, Setting};
pub use model::{Coefficients, CostModel};
pub use outcome::{Answer, Batch, Failure, Outcomes, QueueStatus, Shape};
pub use policy::{BatchId, Batcher, Formed, Load, Next, Reason, Refusal, RequestId, Time, WorkerId};

/// A queue of requests that carry a `P` and are answered with an `R`. Cheap to clone.
///
/// What is decided, the [`Batcher`] decides, under one lock that is held for some microseconds; whoever brings news carries out
/// what follows from them, so that a batch needs no thread to be woken but its worker's.
pub struct Queue<P, R> {
    shared: Arc<Shared<P, R>>,
}

struct Shared<P, R> {
    name: String,
    began: Instant,
    state: Mutex<State<P, R>>,
    /// There is something to be done earlier than was thought.
    earlier: Notify,
}

struct State<P, R> {
    batcher: Batcher,
    asked: HashMap<RequestId, Asked<P, R>>,
    /// Bytes that these carry.
    held_bytes: u64,
    flights: HashMap<BatchId, Flight>,
    workers: HashMap<WorkerId, mpsc::UnboundedSender<Batch<P>>>,
    /// When the timer looks again.
    wake: Option<Time>,
    reasons: HashMap<Reason, u64>,
    outcomes: Outcomes,
    draining: bool,
}

struct Asked<P, R> {
    payload: P,
    held_bytes: u64,
    rows: u64,
    arrived: Time,
    answer: oneshot::Sender<Result<Answer<R>, Failure>>,
}

struct Flight {
    worker: WorkerId,
    shape: Shape,
    rows: u64,
    reason: Reason,
    given: Time,
    gathered: Option<Time>,
}

impl<P, R> State<P, R> {
    /// A request that ends.
    fn take(&mut self, id: RequestId) -> Option<Asked<P, R>> {
        let asked = self.asked.remove(&id)?;
        self.held_bytes -= asked.held_bytes;
        Some(asked)
    }
}

impl<P, R> Clone for Queue<P, R> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<P: Clone, R> Queue<P, R> {
    /// An empty queue. Its times run out only while [`tend`](Self::tend) does.
    ///
    /// # Errors
    /// Of the setting that can't work, and what was expected.
    pub fn new(name: &str, config: QueueConfig) -> Result<Self, String> {
        config.check()?;
        let state = State {
            batcher: Batcher::new(config),
            asked: HashMap::new(),
            held_bytes: 0,
            flights: HashMap::new(),
            workers: HashMap::new(),
            wake: None,
            reasons: HashMap::new(),
            outcomes: Outcomes::default(),
            draining: false,
        };
        let shared = Shared {
            name: name.to_owned(),
            began: Instant::now(),
            state: Mutex::new(state),
            earlier: Notify::new(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Lets time pass: batches are closed and requests expire when it is time for that. Never returns.
    pub async fn tend(self) {
        loop {
            let wake = self.state().wake;
            let earlier = self.shared.earlier.notified();
            match wake {
                Some(at) => {
                    tokio::select! {
                        () = sleep_until(self.shared.began + at) => {}
                        () = earlier => {}
                    }
                }
                None => earlier.await,
            }
            self.settle(&mut self.state());
        }
    }

    /// Asks for the answer to a request of so many rows, whose features take so many bytes, and which itself takes `held_bytes` of
    /// memory until it is answered. `timeout` is how long the answer is of
    /// use; without one, the queue's `slo`. Dropping what is returned takes the request back.
    ///
    /// # Errors
    /// [`Failure::Refused`], at once.
    pub fn ask(
        &self,
        payload: P,
        (rows, bytes, held_bytes): (u64, u64, u64),
        timeout: Option<Duration>,
    ) -> Result<Pending<P, R>, Failure> {
        let (answer, receiver) = oneshot::channel();
        let mut state = self.state();
        let now = self.now();
        let held = state.held_bytes.saturating_add(held_bytes);
        let admitted = if held > state.batcher.config().max_queue_bytes {
            Err(Refusal::Full { retry_after: state.batcher.config().slo / 2 })
        } else {
            state.batcher.admit(now, rows, bytes, timeout)
        };
        let id = match admitted {
            Ok(id) => id,
            Err(refusal) => {
                state.outcomes.refused += 1;
                self.count("refused", 1);
                return Err(Failure::Refused(refusal));
            }
        };
        state.outcomes.admitted += 1;
        state.outcomes.admitted_rows += rows;
        state.outcomes.admitted_bytes += bytes;
        state.held_bytes = held;
        state.asked.insert(id, Asked { payload, held_bytes, rows, arrived: now, answer });
        self.settle(&mut state);
        Ok(Pending { queue: self.clone(), id, receiver })
    }

    /// Comes as a worker that may have so many batches at a time. Dropping it gives back what it has.
    pub fn work(&self, credits: u64) -> Worker<P, R> {
        let (sender, batches) = mpsc::unbounded_channel();
        let mut state = self.state();
        // Of a queue that is being emptied and has nothing any more, it gets nothing.
        let worker = if state.draining && state.asked.is_empty() {
            WorkerId(u64::MAX)
        } else {
            let id = state.batcher.join(self.now(), credits);
            state.workers.insert(id, sender);
            self.settle(&mut state);
            id
        };
        drop(state);
        Worker { replies: Replies { queue: self.clone(), worker }, batches }
    }

    /// How it works now.
    pub fn config(&self) -> QueueConfig {
        self.state().batcher.config().clone()
    }

    /// From now on it works as `change` makes of how it worked; returns how it did, and how it does.
    ///
    /// # Errors
    /// Those of `change`, and of a setting that can't work, with what was expected; nothing has changed then.
    pub fn retune(
        &self,
        change: impl FnOnce(&QueueConfig) -> Result<QueueConfig, String>,
    ) -> Result<(QueueConfig, QueueConfig), String> {
        let mut state = self.state();
        let before = state.batcher.config().clone();
        let after = change(&before)?;
        after.check()?;
        state.batcher.retune(after.clone());
        self.settle(&mut state);
        Ok((before, after))
    }

    /// Takes nothing from now on. What is there is computed; then the workers' batches end.
    pub fn drain(&self) {
        let mut state = self.state();
        state.draining = true;
        state.batcher.drain();
        self.settle(&mut state);
    }

    /// What it does, for people.
    pub fn status(&self) -> QueueStatus {
        let state = self.state();
        let model = state.batcher.model();
        QueueStatus {
            load: state.batcher.load(self.now()),
            model: model.coefficients(),
            model_error: model.error().as_secs_f64(),
            outcomes: state.outcomes,
            reasons: state.reasons.iter().map(|(reason, count)| (reason.name(), *count)).collect(),
        }
    }

    /// What the model says of other settings under the load of now; `None` before it has seen a batch.
    pub fn forecast(&self, config: &QueueConfig) -> Option<Forecast> {
        let state = self.state();
        let load = state.batcher.load(self.now());
        Forecast::of(config, state.batcher.model(), &load, state.outcomes.typical())
    }

    /// What the model says of other sizes of batches under the load of now.
    pub fn frontier(&self) -> Frontier {
        let state = self.state();
        let load = state.batcher.load(self.now());
        Frontier::of(state.batcher.config(), state.batcher.model(), &load, state.outcomes.typical())
    }

    /// Carries out what is decided now.
    fn settle(&self, state: &mut State<P, R>) {
        let now = self.now();
        let had_workers = !state.workers.is_empty();
        for id in state.batcher.expire(now) {
            if let Some(asked) = state.take(id) {
                state.outcomes.expired += 1;
                self.count("expired", 1);
                let waited = now.saturating_sub(asked.arrived);
                drop(asked.answer.send(Err(Failure::Expired { waited, had_workers })));
            }
        }
        let until = loop {
            match state.batcher.next(now) {
                Next::Batch(formed) => self.give(state, now, formed),
                Next::Wait(until) => break until,
            }
        };
        let wake = [until, state.batcher.next_expiry()].into_iter().flatten().min();
        if wake.is_some_and(|wake| state.wake.is_none_or(|before| wake < before)) {
            self.shared.earlier.notify_one();
        }
        state.wake = wake;
        if state.draining && state.asked.is_empty() {
            state.workers.clear();
        }
        gauge!("forebay_queue_requests", "queue" => self.shared.name.clone()).set(state.asked.len() as f64);
    }

    fn give(&self, state: &mut State<P, R>, now: Time, formed: Formed) {
        let Formed { batch: id, worker, requests, rows, padded, reason, deadline, attempts } = formed;
        let asked: Vec<&Asked<P, R>> = requests.iter().filter_map(|id| state.asked.get(id)).collect();
        let payloads = asked.iter().map(|asked| asked.payload.clone()).collect();
        let sizes = asked.iter().map(|asked| asked.rows).collect();
        let name = || self.shared.name.clone();
        for asked in &asked {
            histogram!("forebay_queue_wait_seconds", "queue" => name())
                .record(now.saturating_sub(asked.arrived));
        }
        counter!("forebay_queue_batches_total", "queue" => name(), "reason" => reason.name()).increment(1);
        histogram!("forebay_queue_batch_rows", "queue" => name()).record(rows as f64);
        *state.reasons.entry(reason).or_default() += 1;
        state.flights.insert(
            id,
            Flight { worker, shape: Shape { sizes, padded }, rows, reason, given: now, gathered: None },
        );
        let deadline = self.shared.began + deadline;
        let batch = Batch { id, payloads, rows, padded, reason, deadline, attempts };
        if let Some(worker) = state.workers.get(&worker) {
            // Whose receiver is gone leaves at once.
            drop(worker.send(batch));
        }
    }

    fn now(&self) -> Time {
        self.shared.began.elapsed()
    }

    fn state(&self) -> MutexGuard<'_, State<P, R>> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, outcome: &'static str, count: u64) {
        let name = self.shared.name.clone();
        counter!("forebay_queue_requests_total", "queue" => name, "outcome" => outcome).increment(count);
    }
}

/// A request that was let in.
pub struct Pending<P: Clone, R> {
    queue: Queue<P, R>,
    id: RequestId,
    receiver: oneshot::Receiver<Result<Answer<R>, Failure>>,
}

impl<P: Clone, R> Pending<P, R> {
    /// Its answer. Cancelling this takes the request back.
    ///
    /// # Errors
    /// Any [`Failure`] but a refusal.
    pub async fn answer(mut self) -> Result<Answer<R>, Failure> {
        let answer = (&mut self.receiver).await;
        answer.unwrap_or_else(|_| Err(Failure::Failed("the queue is gone".into())))
    }
}

impl<P: Clone, R> Drop for Pending<P, R> {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        if state.take(self.id).is_some() {
            state.batcher.cancel(self.id);
            state.outcomes.cancelled += 1;
            self.queue.count("cancelled", 1);
            self.queue.settle(&mut state);
        }
    }
}

/// A worker of a queue: where its batches come from.
pub struct Worker<P: Clone, R> {
    replies: Replies<P, R>,
    batches: mpsc::UnboundedReceiver<Batch<P>>,
}

/// Where a worker's replies go. Cheap to clone.
pub struct Replies<P: Clone, R> {
    queue: Queue<P, R>,
    worker: WorkerId,
}

impl<P: Clone, R> Clone for Replies<P, R> {
    fn clone(&self) -> Self {
        Self { queue: self.queue.clone(), worker: self.worker }
    }
}

impl<P: Clone, R> Worker<P, R> {
    /// The next batch; `None` when there will be none any more. Cancelling this loses nothing.
    pub async fn next(&mut self) -> Option<Batch<P>> {
        self.batches.recv().await
    }

    /// Where replies go, also from another task.
    pub fn replies(&self) -> Replies<P, R> {
        self.replies.clone()
    }
}

impl<P: Clone, R> Drop for Worker<P, R> {
    fn drop(&mut self) {
        self.replies.leave();
    }
}

impl<P: Clone, R> Replies<P, R> {
    /// A batch is gathered and on its way to the worker.
    pub fn gathered(&self, batch: BatchId) {
        let mut state = self.queue.state();
        let now = self.queue.now();
        state.batcher.gathered(now, batch);
        if let Some(flight) = state.flights.get_mut(&batch) {
            flight.gathered = Some(now);
        }
    }

    /// Whether anybody still waits for a batch.
    pub fn is_wanted(&self, batch: BatchId) -> bool {
        self.queue.state().batcher.is_wanted(batch)
    }

    /// The batch that the worker has had the longest.
    pub fn oldest(&self) -> Option<BatchId> {
        self.queue.state().batcher.oldest_batch(self.worker)
    }

    /// How the rows of a batch of this worker are shared out; `None` if it has no such batch.
    pub fn shape(&self, batch: BatchId) -> Option<Shape> {
        let state = self.queue.state();
        let flight = state.flights.get(&batch).filter(|flight| flight.worker == self.worker);
        flight.map(|flight| flight.shape.clone())
    }

    /// The worker is done with a batch: a value for each of its requests, or why there is none. `false` if the worker has no such
    /// batch.
    pub fn reply(&self, batch: BatchId, outcome: Result<Vec<R>, Failure>) -> bool {
        let mut state = self.queue.state();
        let now = self.queue.now();
        let Some(requests) = state.batcher.complete(now, self.worker, batch, outcome.is_ok()) else {
            return false;
        };
        let Some(flight) = state.flights.remove(&batch) else { return false };
        let gathered_at = flight.gathered.unwrap_or(flight.given);
        let (gathered, computed) =
            (gathered_at.saturating_sub(flight.given), now.saturating_sub(gathered_at));
        let name = || self.queue.shared.name.clone();
        histogram!("forebay_queue_gather_seconds", "queue" => name()).record(gathered);
        histogram!("forebay_queue_worker_seconds", "queue" => name()).record(computed);
        let mut values = match outcome {
            Ok(values) => values.into_iter().map(Ok).collect::<Vec<_>>().into_iter(),
            Err(why) => requests.iter().map(|_| Err(why.clone())).collect::<Vec<_>>().into_iter(),
        };
        for id in requests {
            let value = values
                .next()
                .unwrap_or_else(|| Err(Failure::Failed("its rows are missing in the reply".into())));
            let Some(asked) = id.and_then(|id| state.take(id)) else { continue };
            match &value {
                Ok(_) => state.outcomes.answered += 1,
                Err(_) => state.outcomes.failed += 1,
            }
            self.queue.count(if value.is_ok() { "answered" } else { "failed" }, 1);
            let queued = flight.given.saturating_sub(asked.arrived);
            let answer = |value| Answer {
                value,
                queued,
                gathered,
                computed,
                rows: flight.rows,
                reason: flight.reason,
            };
            // Who has gone wants no answer.
            drop(asked.answer.send(value.map(answer)));
        }
        self.queue.settle(&mut state);
        true
    }

    /// The worker is gone. What it had is given to others, or fails if workers died with it too often.
    pub fn leave(&self) {
        let mut state = self.queue.state();
        let attempts = state.batcher.config().max_attempts;
        for id in state.batcher.leave(self.worker) {
            if let Some(asked) = state.take(id) {
                state.outcomes.failed += 1;
                self.queue.count("failed", 1);
                drop(asked.answer.send(Err(Failure::Lost { attempts })));
            }
        }
        state.workers.remove(&self.worker);
        state.flights.retain(|_, flight| flight.worker != self.worker);
        self.queue.settle(&mut state);
    }
}

#[cfg(test)]
mod tests;
