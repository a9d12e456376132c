//! JSON forms of a queue's settings, status and forecasts.
//!
//! `forebay_inference` depends on no transport, so the schemas of the HTTP API are declared here. The compiler compares the types
//! with `remote` with those of the queue, field by field.

use std::collections::HashMap;

use forebay_inference::queue;
use serde::Serialize;
use utoipa::ToSchema;

/// Settings of a batch queue. In a request, omitted fields keep their values.
#[derive(ToSchema)]
#[serde(default)]
#[schema(as = QueueConfig)]
#[expect(dead_code, reason = "only its description is used")]
pub(super) struct QueueSettings {
    /// Maximum rows per batch and per request, 1 to 1,048,576. Default: 4,096.
    #[schema(default = 4096)]
    max_batch_rows: u64,
    /// Maximum bytes of the features of a batch, estimated from the mean row size. At most half of
    /// `lookups.max_answer_bytes`. Default: 8 MiB.
    #[schema(default = 8_388_608)]
    max_batch_bytes: u64,
    /// Maximum time for which a request waits for further requests while a worker is free, 0 to 1 hour. Default: 5 ms.
    #[schema(default = "5ms", example = "5ms")]
    max_batch_delay: String,
    /// True if a free worker receives a batch before `max_batch_delay`, as soon as waiting longer is expected to cost more
    /// latency than it saves. Default: true.
    #[schema(default = true)]
    eager_dispatch: bool,
    /// Deadline of a request without a `timeout`, counted from its arrival, up to 1 hour. Default: 100 ms.
    #[schema(default = "100ms", example = "100ms")]
    default_timeout: String,
    /// Maximum predicted time until an answer, 0 to 1 hour. Requests with a longer prediction are refused, even if their own
    /// deadline is later. Default: 10 s.
    #[schema(default = "10s", example = "10s")]
    max_predicted_wait: String,
    /// Maximum number of queued requests. Default: 16,384.
    #[schema(default = 16_384)]
    max_queue_requests: usize,
    /// Maximum number of queued rows. Default: 1,048,576.
    #[schema(default = 1_048_576)]
    max_queue_rows: u64,
    /// Maximum bytes of the keys of all unanswered requests. Default: 64 MiB.
    #[schema(default = 67_108_864)]
    max_queue_bytes: u64,
    /// Maximum number of workers that receive a request before it fails because each of them disconnected. Default: 2.
    #[schema(default = 2)]
    max_attempts: u32,
    /// Maximum number of batches that one worker may have at a time. Default: 8.
    #[schema(default = 8)]
    max_credits: u64,
    /// Batch sizes, in rows, to which batches are padded with rows of nulls and zeros. A batch is padded to the smallest size
    /// that holds it; a larger batch is not padded. At most 64 sizes of 1 to `max_batch_rows`. Default: empty, no padding.
    #[schema(default = json!([]))]
    pad_to: Vec<u64>,
}

/// Current state of a queue.
#[derive(Serialize, ToSchema)]
#[serde(remote = "queue::QueueStatus")]
pub(super) struct QueueStatus {
    #[serde(with = "Load")]
    #[schema(value_type = Load)]
    load: queue::Load,
    /// Learned cost of a batch.
    #[serde(with = "Coefficients")]
    #[schema(value_type = Coefficients)]
    model: queue::Coefficients,
    /// Mean absolute error of the model's predictions, in seconds.
    model_error: f64,
    #[serde(with = "Outcomes")]
    #[schema(value_type = Outcomes)]
    outcomes: queue::Outcomes,
    /// Number of batches by the rule that closed them: `rows`, `bytes`, `delay`, `deadline`, `idle` or `drain`.
    #[schema(value_type = HashMap<String, u64>)]
    close_reasons: HashMap<&'static str, u64>,
}

/// Current load of a queue.
#[derive(Serialize, ToSchema)]
#[serde(remote = "queue::Load")]
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
#[serde(remote = "queue::Coefficients")]
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
#[serde(remote = "queue::Outcomes")]
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
    use serde_json::{Value, json};
    use utoipa::PartialSchema;

    use super::*;

    #[test]
    fn the_settings_of_the_api_are_those_of_the_configuration_file() {
        let described = serde_json::to_value(QueueSettings::schema()).unwrap();
        let Value::Object(described) = &described["properties"] else { panic!("{described}") };
        let defaults = described.iter().map(|(name, field)| (name.clone(), field["default"].clone()));
        assert_eq!(Value::Object(defaults.collect()), json!(queue::QueueConfig::default()));
    }
}
