//! JSON forms of a queue's settings, status and forecasts.
//!
//! `forebay_inference` depends on no transport, so the schemas of the HTTP API are declared here.

use std::{collections::HashMap, time::Duration};

use forebay_inference::queue;
use serde::Serialize;
use utoipa::ToSchema;

/// Settings of a batch queue. In a request, omitted fields keep their values.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
#[serde(default)]
#[schema(as = QueueConfig)]
pub(super) struct QueueSettings {
    /// Maximum rows per batch and per request, 1 to 1,048,576. Default: 4,096.
    max_batch_rows: u64,
    /// Maximum bytes of the features of a batch, estimated from the mean row size. At most half of
    /// `lookups.max_answer_bytes`. Default: 8 MiB.
    max_batch_bytes: u64,
    /// Maximum time for which a request waits for further requests while a worker is free, 0 to 1 hour. Default: 5 ms.
    #[serde(with = "humantime_serde")]
    #[schema(value_type = String, default = "5ms", example = "5ms")]
    max_batch_delay: Duration,
    /// True if a free worker receives a batch before `max_batch_delay`, as soon as waiting longer is expected to cost more
    /// latency than it saves. Default: true.
    eager_dispatch: bool,
    /// Deadline of a request without a `timeout`, counted from its arrival, up to 1 hour. Default: 100 ms.
    #[serde(with = "humantime_serde")]
    #[schema(value_type = String, default = "100ms", example = "100ms")]
    default_timeout: Duration,
    /// Maximum predicted time until an answer, 0 to 1 hour. Requests with a longer prediction are refused, even if their own
    /// deadline is later. Default: 10 s.
    #[serde(with = "humantime_serde")]
    #[schema(value_type = String, default = "10s", example = "10s")]
    max_predicted_wait: Duration,
    /// Maximum number of queued requests. Default: 16,384.
    max_queue_requests: usize,
    /// Maximum number of queued rows. Default: 1,048,576.
    max_queue_rows: u64,
    /// Maximum bytes of the keys of all unanswered requests. Default: 64 MiB.
    max_queue_bytes: u64,
    /// Maximum number of workers that receive a request before it fails because each of them disconnected. Default: 2.
    max_attempts: u32,
    /// Maximum number of batches that one worker may have at a time. Default: 8.
    max_credits: u64,
    /// Batch sizes, in rows, to which batches are padded with rows of nulls and zeros. A batch is padded to the smallest size
    /// that holds it; a larger batch is not padded. At most 64 sizes of 1 to `max_batch_rows`. Default: empty, no padding.
    pad_to: Vec<u64>,
}

/// Current state of a queue.
#[derive(Serialize, ToSchema)]
pub(super) struct QueueStatus {
    load: Load,
    /// Learned cost of a batch.
    model: Coefficients,
    /// Mean absolute error of the model's predictions, in seconds.
    model_error: f64,
    outcomes: Outcomes,
    /// Number of batches by the rule that closed them: `rows`, `bytes`, `delay`, `deadline`, `idle` or `drain`.
    #[schema(value_type = HashMap<String, u64>)]
    close_reasons: HashMap<&'static str, u64>,
}

/// Current load of a queue.
#[derive(Serialize, ToSchema)]
struct Load {
    /// Number of connected workers.
    workers: usize,
    /// Number of requests that wait for a batch.
    queued_requests: usize,
    /// Rows of the queued requests.
    queued_rows: u64,
    /// Number of batches that were sent to workers and have no reply.
    batches: usize,
    /// Arrival rate, including refused requests.
    requests_per_second: f64,
    /// Predicted seconds until the answer to a request of one row that arrives now. Null without workers or before the first
    /// computed batch.
    #[schema(required)]
    predicted_wait_seconds: Option<f64>,
}

/// Coefficients of the cost model: a batch takes `fixed + row * rows + byte * bytes` seconds.
#[derive(Serialize, ToSchema)]
struct Coefficients {
    /// Seconds per batch.
    fixed: f64,
    /// Seconds per row.
    row: f64,
    /// Seconds per byte of features.
    byte: f64,
}

/// Number of requests by outcome since the queue was created.
#[derive(Serialize, ToSchema)]
struct Outcomes {
    /// Admitted requests.
    admitted: u64,
    /// Rows of the admitted requests.
    admitted_rows: u64,
    /// Bytes of features of the admitted requests.
    admitted_bytes: u64,
    /// Requests that were refused on arrival.
    refused: u64,
    /// Requests that were answered with rows.
    answered: u64,
    /// Requests whose deadline passed before an answer.
    expired: u64,
    /// Requests that their caller canceled.
    cancelled: u64,
    /// Requests whose worker failed or disconnected, or whose features could not be looked up.
    failed: u64,
}

/// Steady-state prediction from the cost model and the current arrival rate. Random bursts add to these values.
#[derive(Serialize, ToSchema)]
pub(super) struct Forecast {
    /// Rows per second that all workers compute in batches of the maximum size.
    capacity_rows_per_second: f64,
    /// Arrival rate divided by the capacity. From 1 on, requests are refused.
    utilization: f64,
    /// Mean rows per batch.
    batch_rows: f64,
    /// Seconds that a worker takes for such a batch.
    batch_seconds: f64,
    /// Mean seconds from a request's arrival to its answer. Null if the workers cannot keep up.
    #[schema(required)]
    latency_seconds: Option<f64>,
}

/// Throughput-latency curve of a queue: forecasts for different batch sizes under the current load.
#[derive(Serialize, ToSchema)]
pub(super) struct ThroughputLatencyCurve {
    /// Arrival rate, including refused requests.
    requests_per_second: f64,
    /// Deadline of a request without a `timeout`, in seconds.
    default_timeout_seconds: f64,
    current: CurrentSettings,
    /// Forecasts for powers of two from 16 up to the other limits, with the current `max_batch_delay`. Empty without workers or
    /// before the first computed batch.
    points: Vec<CurvePoint>,
}

/// Current settings of a queue and their forecast.
#[derive(Serialize, ToSchema)]
struct CurrentSettings {
    /// Maximum rows per batch.
    max_batch_rows: u64,
    /// Maximum seconds for which a request waits for further requests while a worker is free.
    max_batch_delay_seconds: f64,
    /// Null without workers or before the first computed batch.
    #[schema(required)]
    forecast: Option<Forecast>,
}

/// Forecast for another batch size.
#[derive(Serialize, ToSchema)]
struct CurvePoint {
    /// Maximum rows per batch.
    max_batch_rows: u64,
    forecast: Forecast,
}

impl Default for QueueSettings {
    fn default() -> Self {
        queue::QueueConfig::default().into()
    }
}

impl From<queue::QueueConfig> for QueueSettings {
    fn from(config: queue::QueueConfig) -> Self {
        Self {
            max_batch_rows: config.max_batch_rows,
            max_batch_bytes: config.max_batch_bytes,
            max_batch_delay: config.max_batch_delay,
            eager_dispatch: config.eager_dispatch,
            default_timeout: config.default_timeout,
            max_predicted_wait: config.max_predicted_wait,
            max_queue_requests: config.max_queue_requests,
            max_queue_rows: config.max_queue_rows,
            max_queue_bytes: config.max_queue_bytes,
            max_attempts: config.max_attempts,
            max_credits: config.max_credits,
            pad_to: config.pad_to,
        }
    }
}

impl From<queue::QueueStatus> for QueueStatus {
    fn from(status: queue::QueueStatus) -> Self {
        let queue::QueueStatus { load, model, model_error, outcomes, close_reasons } = status;
        Self { load: load.into(), model: model.into(), model_error, outcomes: outcomes.into(), close_reasons }
    }
}

impl From<queue::Load> for Load {
    fn from(load: queue::Load) -> Self {
        Self {
            workers: load.workers,
            queued_requests: load.queued_requests,
            queued_rows: load.queued_rows,
            batches: load.batches,
            requests_per_second: load.requests_per_second,
            predicted_wait_seconds: load.predicted_wait_seconds,
        }
    }
}

impl From<queue::Coefficients> for Coefficients {
    fn from(queue::Coefficients { fixed, row, byte }: queue::Coefficients) -> Self {
        Self { fixed, row, byte }
    }
}

impl From<queue::Outcomes> for Outcomes {
    fn from(outcomes: queue::Outcomes) -> Self {
        Self {
            admitted: outcomes.admitted,
            admitted_rows: outcomes.admitted_rows,
            admitted_bytes: outcomes.admitted_bytes,
            refused: outcomes.refused,
            answered: outcomes.answered,
            expired: outcomes.expired,
            cancelled: outcomes.cancelled,
            failed: outcomes.failed,
        }
    }
}

impl From<queue::Forecast> for Forecast {
    fn from(forecast: queue::Forecast) -> Self {
        Self {
            capacity_rows_per_second: forecast.capacity_rows_per_second,
            utilization: forecast.utilization,
            batch_rows: forecast.batch_rows,
            batch_seconds: forecast.batch_seconds,
            latency_seconds: forecast.latency_seconds,
        }
    }
}

impl From<queue::ThroughputLatencyCurve> for ThroughputLatencyCurve {
    fn from(curve: queue::ThroughputLatencyCurve) -> Self {
        let queue::ThroughputLatencyCurve { requests_per_second, default_timeout_seconds, current, points } =
            curve;
        let current = CurrentSettings {
            max_batch_rows: current.max_batch_rows,
            max_batch_delay_seconds: current.max_batch_delay_seconds,
            forecast: current.forecast.map(Forecast::from),
        };
        let point = |point: queue::CurvePoint| CurvePoint {
            max_batch_rows: point.max_batch_rows,
            forecast: point.forecast.into(),
        };
        Self {
            requests_per_second,
            default_timeout_seconds,
            current,
            points: points.into_iter().map(point).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_of_the_api_are_those_of_the_configuration_file() {
        let config =
            queue::QueueConfig { pad_to: vec![8, 64], max_credits: 3, ..queue::QueueConfig::default() };
        let configured = serde_json::to_value(&config).unwrap();
        assert_eq!(serde_json::to_value(QueueSettings::from(config)).unwrap(), configured);
    }
}
