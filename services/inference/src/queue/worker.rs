//! A worker's side of a queue: batches and replies.

use std::sync::Arc;

use metrics::histogram;
use tokio::sync::mpsc;

use super::{
    Answer, Batch, BatchId, BatchShape, Cause, Failure, FeaturesFailure, Notice, Time, WorkerId,
    state::{Shared, State},
};

/// A worker of a queue. Dropping it returns its batches to the queue.
pub struct Worker<P: Clone, R> {
    pub(super) replies: Replies<P, R>,
    pub(super) batches: mpsc::UnboundedReceiver<Batch<P>>,
    pub(super) notices: mpsc::Receiver<Notice>,
}

/// Accepts the replies of a worker. Cheap to clone.
pub struct Replies<P: Clone, R> {
    pub(super) shared: Arc<Shared<P, R>>,
    pub(super) worker: WorkerId,
}

impl<P: Clone, R> Clone for Replies<P, R> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), worker: self.worker }
    }
}

impl<P: Clone, R> Worker<P, R> {
    /// Waits for the next batch. `None` once the queue is drained. Cancel safe.
    pub async fn next(&mut self) -> Option<Batch<P>> {
        self.batches.recv().await
    }

    /// Returns the receiver of the notices about the worker, which may be used in another task. The receivers of later calls get none. At most 16
    /// notices wait to be received; further ones are dropped.
    pub fn notices(&mut self) -> mpsc::Receiver<Notice> {
        let (_, none) = mpsc::channel(1);
        std::mem::replace(&mut self.notices, none)
    }

    /// Returns the id of the worker.
    pub fn id(&self) -> WorkerId {
        self.replies.worker
    }

    /// Returns the handle for replies, which may be used in another task.
    pub fn replies(&self) -> Replies<P, R> {
        self.replies.clone()
    }
}

impl<P: Clone, R> Drop for Worker<P, R> {
    fn drop(&mut self) {
        self.replies.disconnect();
    }
}

impl<P: Clone, R> Replies<P, R> {
    /// Records that a batch was gathered and sent to the worker.
    pub fn gathered(&self, batch: BatchId) {
        let mut state = self.shared.state.lock();
        let now = self.shared.now();
        state.batcher.gathered(now, batch);
        if let Some(in_flight) = state.in_flight.get_mut(&batch) {
            in_flight.gathered_at = Some(now);
        }
    }

    /// Returns true if at least one request of the batch is still waiting.
    pub fn has_waiting_requests(&self, batch: BatchId) -> bool {
        self.shared.state.lock().batcher.has_waiting_requests(batch)
    }

    /// Returns the worker's oldest batch without a reply.
    pub fn oldest_batch(&self) -> Option<BatchId> {
        self.shared.state.lock().batcher.oldest_batch(self.worker)
    }

    /// Returns the row counts of a batch; `None` if the worker has no such batch.
    pub fn shape(&self, batch: BatchId) -> Option<BatchShape> {
        let state = self.shared.state.lock();
        let in_flight = state.in_flight.get(&batch).filter(|in_flight| in_flight.worker == self.worker);
        in_flight.map(|in_flight| in_flight.shape.clone())
    }

    /// Completes a batch with one value per request, or with the reason why there are none. In that case the requests are tried
    /// again apart from others, at last each by itself. Returns false if the worker has no such batch.
    pub fn reply(&self, batch: BatchId, outcome: Result<Vec<R>, Failure>) -> bool {
        match outcome {
            Ok(values) => self.reply_each(batch, values.into_iter().map(Ok).collect()),
            Err(failure) => {
                let mut state = self.shared.state.lock();
                let now = self.shared.now();
                self.fail(&mut state, now, batch, &failure)
            }
        }
    }

    /// Completes a batch with a value for each request, or with the reason why the request has none, which ends the request. Returns
    /// false if the worker has no such batch.
    pub fn reply_each(&self, batch: BatchId, values: Vec<Result<R, Failure>>) -> bool {
        let mut state = self.shared.state.lock();
        let now = self.shared.now();
        let Some(requests) = state.batcher.complete(now, self.worker, batch) else { return false };
        let Some(in_flight) = state.in_flight.remove(&batch) else { return false };
        let gathered_at = in_flight.gathered_at.unwrap_or(in_flight.closed_at);
        let (gathered, computed) =
            (gathered_at.saturating_sub(in_flight.closed_at), now.saturating_sub(gathered_at));
        histogram!("forebay_queue_gather_seconds", "queue" => self.shared.name()).record(gathered);
        histogram!("forebay_queue_worker_seconds", "queue" => self.shared.name()).record(computed);
        let mut values = values.into_iter();
        let missing = || Failure::Failed("the reply has no rows for the request".into());
        for id in requests {
            let value = values.next().ok_or_else(missing).flatten();
            let Some(request) = id.and_then(|id| state.take(id)) else { continue };
            match &value {
                Ok(_) => self.shared.count("answered", &mut state.outcomes.answered),
                Err(_) => self.shared.count("failed", &mut state.outcomes.failed),
            }
            let queued = in_flight.closed_at.saturating_sub(request.arrived);
            let answer = |value| Answer {
                value,
                queued,
                gathered,
                computed,
                rows: in_flight.rows,
                close_reason: in_flight.close_reason,
            };
            // Fails only if the caller dropped the request, which needs no answer then.
            drop(request.answer.send(value.map(answer)));
        }
        self.shared.dispatch(&mut state);
        true
    }

    fn fail(&self, state: &mut State<P, R>, now: Time, batch: BatchId, failure: &Failure) -> bool {
        let cause = match failure {
            Failure::Features { kind: FeaturesFailure::Limit, .. } | Failure::TooLarge(_) => Cause::Size,
            Failure::Features { .. } => Cause::Features,
            _ => Cause::Worker,
        };
        let Some(failed) = state.batcher.fail(now, self.worker, batch, cause) else { return false };
        state.in_flight.remove(&batch);
        for id in failed {
            if let Some(request) = state.take(id) {
                self.shared.count("failed", &mut state.outcomes.failed);
                drop(request.answer.send(Err(failure.clone())));
            }
        }
        self.shared.dispatch(state);
        true
    }

    /// Removes the worker from the queue. Its unanswered requests are queued again, and go to other workers. After
    /// `max_attempts` attempts they are sent apart from others, and a request that is lost alone fails.
    pub fn disconnect(&self) {
        let mut state = self.shared.state.lock();
        let now = self.shared.now();
        for id in state.batcher.remove_worker(now, self.worker) {
            if let Some(request) = state.take(id) {
                self.shared.count("failed", &mut state.outcomes.failed);
                drop(request.answer.send(Err(Failure::Lost)));
            }
        }
        state.workers.remove(&self.worker);
        state.in_flight.retain(|_, in_flight| in_flight.worker != self.worker);
        self.shared.dispatch(&mut state);
    }
}
