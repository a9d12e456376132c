//! Handle of a queue.

use std::{sync::Arc, time::Duration};

use forebay_loader::Tenant;
use tokio::sync::{mpsc, oneshot};

use super::{
    Class, Failure, Forecast, Load, PendingRequest, QueueConfig, QueueStatus, Replies,
    ThroughputLatencyCurve, Worker, WorkerId,
    state::{Channels, Shared, Waiting},
};

/// Maximum number of [notices](super::Notice) of a worker that have not been received. Further ones are dropped.
const MAX_NOTICES: usize = 16;

/// A queue of requests that carry a payload `P` and are answered with a result `R`. Cheap to clone.
///
/// The [`Batcher`](super::Batcher) decides, under one lock that is held for microseconds. The task that causes a change carries
/// out the decisions that follow from it, so that a new batch wakes no thread but the worker's.
pub struct Queue<P, R> {
    shared: Arc<Shared<P, R>>,
}

impl<P, R> Clone for Queue<P, R> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<P: Clone, R> Queue<P, R> {
    /// Creates an empty queue. Delays and deadlines take effect only while [`run`](Self::run) runs.
    ///
    /// # Errors
    /// The first invalid setting with its value and what was expected.
    pub fn new(name: &str, config: QueueConfig) -> Result<Self, String> {
        config.validate()?;
        Ok(Self { shared: Arc::new(Shared::new(name, config)) })
    }

    /// Runs the queue's timer, which closes batches and expires requests in time. Never returns.
    pub async fn run(self) {
        self.shared.run_timer().await;
    }

    /// Submits a request of [`Tenant::SERVER`], like [`submit_for`](Self::submit_for).
    ///
    /// # Errors
    /// [`Failure::Refused`], at once.
    pub fn submit(
        &self,
        payload: P,
        sizes: (u64, u64, u64),
        timeout: Option<Duration>,
    ) -> Result<PendingRequest<P, R>, Failure> {
        self.submit_for(Tenant::SERVER.into(), payload, sizes, timeout)
    }

    /// Submits a request of `class`. Dropping the result cancels the request.
    ///
    /// `rows` is the number of rows of the request, `bytes` the bytes of their features, and `held_bytes` the memory of the
    /// request until it is answered. The default of `timeout` is the queue's `default_timeout`.
    ///
    /// # Errors
    /// [`Failure::Refused`], at once.
    pub fn submit_for(
        &self,
        class: Class,
        payload: P,
        (rows, bytes, held_bytes): (u64, u64, u64),
        timeout: Option<Duration>,
    ) -> Result<PendingRequest<P, R>, Failure> {
        let (answer, receiver) = oneshot::channel();
        let mut state = self.shared.state.lock();
        let now = self.shared.now();
        let admitted = state.batcher.admit_for(class, now, (rows, bytes), timeout).and_then(|id| {
            self.shared.hold(&mut state, class, held_bytes).inspect_err(|_| state.batcher.withdraw(id))?;
            Ok(id)
        });
        let id = match admitted {
            Ok(id) => id,
            Err(refusal) => {
                self.shared.count("refused", &mut state.outcomes.refused);
                return Err(Failure::Refused(refusal));
            }
        };
        state.outcomes.admitted += 1;
        state.outcomes.admitted_rows += rows;
        state.outcomes.admitted_bytes += bytes;
        let tenant = class.tenant;
        state.requests.insert(id, Waiting { payload, tenant, held_bytes, rows, arrived: now, answer });
        for id in state.batcher.displaced() {
            self.shared.displaced(&mut state, id);
        }
        self.shared.dispatch(&mut state);
        Ok(PendingRequest { shared: Arc::clone(&self.shared), id, receiver })
    }

    /// Adds a worker that may have `credits` batches at a time. Dropping the worker returns its batches to the queue.
    pub fn add_worker(&self, credits: u64) -> Worker<P, R> {
        let (sender, batches) = mpsc::unbounded_channel();
        let (notify, notices) = mpsc::channel(MAX_NOTICES);
        let mut state = self.shared.state.lock();
        // A drained queue has no batches: the sender is dropped, which ends the worker's batches.
        let worker = if state.draining && state.requests.is_empty() {
            WorkerId(u64::MAX)
        } else {
            let id = state.batcher.add_worker(self.shared.now(), credits);
            state.workers.insert(id, Channels { batches: sender, notices: notify });
            self.shared.dispatch(&mut state);
            id
        };
        drop(state);
        Worker { replies: Replies { shared: Arc::clone(&self.shared), worker }, batches, notices }
    }

    /// Returns the current settings.
    pub fn config(&self) -> QueueConfig {
        self.shared.state.lock().batcher.config().clone()
    }

    /// Replaces the settings by the result of `change`. Returns the previous and the new settings.
    ///
    /// # Errors
    /// The error of `change`, or the first invalid setting with its value and what was expected. The settings are unchanged
    /// then.
    pub fn update_config(
        &self,
        change: impl FnOnce(&QueueConfig) -> Result<QueueConfig, String>,
    ) -> Result<(QueueConfig, QueueConfig), String> {
        let mut state = self.shared.state.lock();
        let before = state.batcher.config().clone();
        let after = change(&before)?;
        after.validate()?;
        state.batcher.set_config(after.clone());
        self.shared.dispatch(&mut state);
        Ok((before, after))
    }

    /// Stops admission. Admitted requests are computed; then the workers' batches end.
    pub fn drain(&self) {
        let mut state = self.shared.state.lock();
        state.draining = true;
        state.batcher.drain();
        self.shared.dispatch(&mut state);
    }

    /// Returns the current load, the cost model and the outcomes so far.
    pub fn status(&self) -> QueueStatus {
        let state = self.shared.state.lock();
        let (model, now) = (state.batcher.model(), self.shared.now());
        QueueStatus {
            load: state.batcher.load(now),
            silent_workers: state.batcher.silent_workers(now),
            suspended_workers: state.batcher.suspended_workers(now),
            model: model.coefficients(),
            model_error: model.error().as_secs_f64(),
            outcomes: state.outcomes,
            close_reasons: state
                .close_reasons
                .iter()
                .map(|(reason, count)| (reason.name(), *count))
                .collect(),
        }
    }

    /// Predicts the effect of other settings under the current load. `None` without workers or before the first computed batch.
    pub fn forecast(&self, config: &QueueConfig) -> Option<Forecast> {
        let state = self.shared.state.lock();
        let load = state.batcher.load(self.shared.now());
        Forecast::of(config, state.batcher.model(), &load, state.outcomes.mean_request())
    }

    /// Returns the number of workers that requests at the mean rate of about the last ten seconds would keep busy with batches of the
    /// maximum size, even if no worker is connected. `None` before the first computed batch.
    pub fn demand(&self) -> Option<f64> {
        let state = self.shared.state.lock();
        let (config, now) = (state.batcher.config(), self.shared.now());
        let requests_per_second = state.batcher.mean_arrival_rate(now);
        let one = Load { workers: 1, requests_per_second, ..state.batcher.load(now) };
        let forecast = Forecast::of(config, state.batcher.model(), &one, state.outcomes.mean_request());
        forecast.map(|forecast| forecast.utilization)
    }

    /// Predicts the effect of other batch sizes under the current load.
    pub fn throughput_latency_curve(&self) -> ThroughputLatencyCurve {
        let state = self.shared.state.lock();
        let load = state.batcher.load(self.shared.now());
        ThroughputLatencyCurve::of(
            state.batcher.config(),
            state.batcher.model(),
            &load,
            state.outcomes.mean_request(),
        )
    }
}

#[cfg(test)]
mod tests;
