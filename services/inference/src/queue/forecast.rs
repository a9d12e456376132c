//! What other settings would do under the load of now.

use serde::Serialize;
use utoipa::ToSchema;

use super::{CostModel, Load, QueueConfig};

/// What is expected of a queue, by the cost model and the rates of now. It is an estimate for steady arrivals: queues that form by
/// chance come on top.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, ToSchema)]
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
    #[schema(required)]
    pub latency_seconds: Option<f64>,
}

/// How latency and throughput are traded by the size of batches, under the load of now.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Frontier {
    /// That arrive, let in or not.
    pub requests_per_second: f64,
    /// The time in which a request is of use that does not say so itself.
    pub slo_seconds: f64,
    /// How it works now.
    pub current: Setting,
    /// Growing powers of two, at the delay of now, as far as the other limits allow; none without workers or experience.
    pub points: Vec<Point>,
}

/// The settings of now.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Setting {
    /// Most rows of a batch.
    pub max_batch_rows: u64,
    /// How long a request may wait for others while a worker is free.
    pub max_queue_delay_seconds: f64,
    /// Without workers or experience there is none.
    #[schema(required)]
    pub forecast: Option<Forecast>,
}

/// What another size would do.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, ToSchema)]
pub struct Point {
    /// Most rows of a batch.
    pub max_batch_rows: u64,
    /// What is expected then.
    pub forecast: Forecast,
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

impl Frontier {
    /// The least size of a point.
    const LEAST_ROWS: u64 = 16;

    pub(super) fn of(config: &QueueConfig, model: &CostModel, load: &Load, typical: Option<Typical>) -> Self {
        let forecast = |config: &QueueConfig| Forecast::of(config, model, load, typical);
        let row_bytes = typical.map_or(0.0, |typical| typical.row_bytes).max(1.0);
        // Larger batches would hold no more rows.
        let most = config.max_queue_rows.min((config.max_batch_bytes as f64 / row_bytes) as u64);
        let most = most.min(QueueConfig::MOST_BATCH_ROWS);
        let mut points = Vec::new();
        let mut rows = Self::LEAST_ROWS;
        while rows <= most {
            let changed = QueueConfig { max_batch_rows: rows, ..config.clone() };
            if changed.check().is_ok() {
                points.extend(forecast(&changed).map(|forecast| Point { max_batch_rows: rows, forecast }));
            }
            rows *= 2;
        }
        let current = Setting {
            max_batch_rows: config.max_batch_rows,
            max_queue_delay_seconds: config.max_queue_delay.as_secs_f64(),
            forecast: forecast(config),
        };
        let (requests_per_second, slo_seconds) = (load.requests_per_second, config.slo.as_secs_f64());
        Self { requests_per_second, slo_seconds, current, points }
    }
}
