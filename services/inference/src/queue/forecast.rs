//! What other settings would do under the load of now.

use serde::Serialize;

use super::{CostModel, Load, QueueConfig};

/// What is expected of a queue, by the cost model and the rates of now. It is an estimate for steady arrivals: queues that form by
/// chance come on top.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Forecast {
    /// Rows a second that the workers can compute in the largest batches.
    pub capacity_rows_per_second: f64,
    /// Of it, what arrives takes this share; from 1 on requests are refused.
    pub utilization: f64,
    /// Rows of a batch.
    pub batch_rows: f64,
    /// Seconds that a worker takes for such a batch.
    pub batch_seconds: f64,
    /// Mean seconds from a request's arrival to its answer; absent when the workers can't keep up.
    pub latency_seconds: Option<f64>,
}

/// What a request is like.
#[derive(Debug, Clone, Copy)]
pub(super) struct Typical {
    pub(super) rows: f64,
    pub(super) row_bytes: f64,
}

impl Forecast {
    /// `None` without workers or experience.
    pub(super) fn of(
        config: &QueueConfig,
        model: &CostModel,
        load: &Load,
        typical: Option<Typical>,
    ) -> Option<Self> {
        let Typical { rows, row_bytes } = typical?;
        if load.workers == 0 || model.seen() == 0 {
            return None;
        }
        let workers = load.workers as f64;
        let time = |rows: f64| {
            let padded = config.padded(rows.ceil() as u64);
            model.predict(padded, (rows * row_bytes) as u64).as_secs_f64().max(1e-9)
        };
        let most = (config.max_batch_rows as f64).min(config.max_batch_bytes as f64 / row_bytes.max(1.0));
        // Requests are not cut.
        let most = ((most / rows).floor() * rows).max(rows);
        let capacity_rows_per_second = workers * most / time(most);
        let rate = load.requests_per_second;
        let utilization = rate * rows / capacity_rows_per_second;
        let delay = config.max_queue_delay.as_secs_f64();
        // How long a free worker waits for more.
        let wait = if config.idle {
            (model.coefficients().fixed - 1.0 / rate.max(1e-9)).clamp(0.0, delay)
        } else {
            delay.min(most / (rate * rows).max(1e-9))
        };
        let mut batch_rows = rows;
        for _ in 0..64 {
            // What arrives while a worker is free and waits, or while all are busy.
            let arrived = (rows + rate * rows * wait).max(rate * rows * time(batch_rows) / workers);
            batch_rows = 0.5 * (batch_rows + arrived.clamp(rows, most));
        }
        let batch_seconds = time(batch_rows);
        let busy = (rate * rows * batch_seconds / batch_rows / workers).min(1.0);
        let before = (wait / 2.0).max(busy * batch_seconds / workers / 2.0);
        let latency_seconds = (utilization < 1.0).then_some(before + batch_seconds);
        Some(Self { capacity_rows_per_second, utilization, batch_rows, batch_seconds, latency_seconds })
    }
}
