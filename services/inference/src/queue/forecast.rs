//! Predictions for other settings under the current load.

#![deny(clippy::disallowed_methods, clippy::iter_over_hash_type)] // The clock is an argument; order is deterministic.

use super::{CostModel, Load, QueueConfig, status::MeanRequest};

/// Steady-state prediction from the cost model and the current arrival rate. Random bursts add to these values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Forecast {
    /// Throughput of all workers with batches of the maximum size, in rows per second.
    pub capacity_rows_per_second: f64,
    /// Arrival rate divided by the capacity, 0 or more. At 1 or above, the workers cannot keep up, and requests are refused.
    pub utilization: f64,
    /// Mean number of rows per batch.
    pub batch_rows: f64,
    /// Time that a worker takes for a batch of `batch_rows` rows, in seconds.
    pub batch_seconds: f64,
    /// Mean time from the arrival of a request to its answer, in seconds; `None` if `utilization` is 1 or above.
    pub latency_seconds: Option<f64>,
}

/// Throughput-latency curve: forecasts for different batch sizes under the current load.
#[derive(Debug, Clone, PartialEq)]
pub struct ThroughputLatencyCurve {
    /// Arrival rate in requests per second, including requests that were refused because the queue was too long.
    pub requests_per_second: f64,
    /// Deadline of a request without a `timeout`, in seconds.
    pub default_timeout_seconds: f64,
    /// Current settings and their forecast.
    pub current: CurrentSettings,
    /// Forecasts for other values of `max_batch_rows`: powers of two from 16 up to the largest batch that the other limits allow,
    /// with the current `max_batch_delay`. Empty without workers or before the first computed batch.
    pub points: Vec<CurvePoint>,
}

/// Current settings of a queue and their forecast.
#[derive(Debug, Clone, PartialEq)]
pub struct CurrentSettings {
    /// Maximum rows per batch.
    pub max_batch_rows: u64,
    /// Maximum seconds for which a request waits for further requests while a worker is free.
    pub max_batch_delay_seconds: f64,
    /// Forecast for the current settings and load; `None` without workers or before the first computed batch.
    pub forecast: Option<Forecast>,
}

/// Forecast for another batch size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CurvePoint {
    /// Maximum rows per batch.
    pub max_batch_rows: u64,
    /// Forecast for this size.
    pub forecast: Forecast,
}

impl Forecast {
    /// `None` without workers or before the first computed batch.
    pub(super) fn of(
        config: &QueueConfig,
        model: &CostModel,
        load: &Load,
        mean_request: Option<MeanRequest>,
    ) -> Option<Self> {
        let MeanRequest { rows, row_bytes } = mean_request?;
        if load.workers == 0 || model.observations() == 0 {
            return None;
        }
        let workers = load.workers as f64;
        let time = |rows: f64| {
            let padded = config.padded_rows(rows.ceil() as u64);
            model.predict(padded, (rows * row_bytes) as u64).as_secs_f64().max(1e-9)
        };
        let most = (config.max_batch_rows as f64).min(config.max_batch_bytes as f64 / row_bytes.max(1.0));
        // Requests are never split.
        let most = ((most / rows).floor() * rows).max(rows);
        let capacity_rows_per_second = workers * most / time(most);
        let rate = load.requests_per_second;
        let utilization = rate * rows / capacity_rows_per_second;
        let delay = config.max_batch_delay.as_secs_f64();
        // Time for which a free worker waits for further requests.
        let wait = if config.eager_dispatch {
            (model.coefficients().fixed - 1.0 / rate.max(1e-9)).clamp(0.0, delay)
        } else {
            delay.min(most / (rate * rows).max(1e-9))
        };
        let mut batch_rows = rows;
        for _ in 0..64 {
            // Rows that arrive while a free worker waits, or while all workers are busy.
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

impl ThroughputLatencyCurve {
    /// Smallest batch size of a point.
    const MIN_ROWS: u64 = 16;

    pub(super) fn of(
        config: &QueueConfig,
        model: &CostModel,
        load: &Load,
        mean_request: Option<MeanRequest>,
    ) -> Self {
        let forecast = |config: &QueueConfig| Forecast::of(config, model, load, mean_request);
        let row_bytes = mean_request.map_or(0.0, |mean| mean.row_bytes).max(1.0);
        // Larger batches would not hold more rows.
        let most = config.max_queue_rows.min((config.max_batch_bytes as f64 / row_bytes) as u64);
        let most = most.min(QueueConfig::MAX_BATCH_ROWS);
        let mut points = Vec::new();
        let mut rows = Self::MIN_ROWS;
        while rows <= most {
            let changed = QueueConfig { max_batch_rows: rows, ..config.clone() };
            if changed.validate().is_ok() {
                points
                    .extend(forecast(&changed).map(|forecast| CurvePoint { max_batch_rows: rows, forecast }));
            }
            rows *= 2;
        }
        let current = CurrentSettings {
            max_batch_rows: config.max_batch_rows,
            max_batch_delay_seconds: config.max_batch_delay.as_secs_f64(),
            forecast: forecast(config),
        };
        let (requests_per_second, default_timeout_seconds) =
            (load.requests_per_second, config.default_timeout.as_secs_f64());
        Self { requests_per_second, default_timeout_seconds, current, points }
    }
}

#[cfg(test)]
mod tests;
