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
    /// Maximum number of rows per batch and per request, 1 to 1,048,576. Default: 4,096.
    #[schema(default = 4096)]
    max_batch_rows: u64,
    /// Maximum size of the features of a batch, estimated from the mean row size, and of its request columns, in bytes. At least 1
    /// and at most half of `lookups.max_answer_bytes`, which limits the actual size of the features. Default: 8 MiB.
    #[schema(default = 8_388_608)]
    max_batch_bytes: u64,
    /// Maximum time for which a request waits for further requests while a worker is free, 0 to 1 hour. Default: 5 ms.
    #[schema(default = "5ms", example = "5ms")]
    max_batch_delay: String,
    /// True if a free worker receives a batch before `max_batch_delay`, as soon as waiting longer is expected to cost more
    /// latency than it saves. Default: true.
    #[schema(default = true)]
    eager_dispatch: bool,
    /// Time from the arrival of a request without a `timeout` to its deadline, above 0 and up to 1 hour. Default: 100 ms.
    #[schema(default = "100ms", example = "100ms")]
    default_timeout: String,
    /// Maximum predicted time until an answer, 0 to 1 hour. Requests with a longer prediction are refused, even if their own
    /// deadline is later. Default: 10 s.
    #[schema(default = "10s", example = "10s")]
    max_predicted_wait: String,
    /// Maximum time for which a request waits until it is sent to a worker, above 0 and up to 1 hour. A request that waits longer
    /// ends as if its deadline had passed. The time starts again when a request returns to the queue. Default: 60 s.
    #[schema(default = "1m", example = "1m")]
    max_time_in_queue: String,
    /// Maximum number of queued requests, at least 1. Default: 16,384.
    #[schema(default = 16_384)]
    max_queue_requests: usize,
    /// Maximum number of queued rows, at least 1. Default: 1,048,576.
    #[schema(default = 1_048_576)]
    max_queue_rows: u64,
    /// Maximum size of the keys and request columns of all unanswered requests, in bytes, at least 1. Default: 64 MiB.
    #[schema(default = 67_108_864)]
    max_queue_bytes: u64,
    /// Number of attempts after which the requests of a lost batch are sent apart from others, at least 1. A batch is lost if its worker
    /// disconnects or is overdue. A request that is then lost alone fails. The requests of a batch whose worker reports an error are
    /// sent apart at once. Default: 2.
    #[schema(default = 2)]
    max_attempts: u32,
    /// Maximum number of batches that one worker may have at a time, at least 1. Default: 8.
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
    /// Current load: connected workers, queued requests and arrival rate.
    #[serde(with = "Load")]
    #[schema(value_type = Load)]
    load: queue::Load,
    /// Cost model: the time that a worker takes for a batch, learned from earlier batches.
    #[serde(with = "Coefficients")]
    #[schema(value_type = Coefficients)]
    model: queue::Coefficients,
    /// Mean absolute error of the cost model's predictions, in seconds.
    model_error: f64,
    /// Number of requests by outcome since the queue was created.
    #[serde(with = "Outcomes")]
    #[schema(value_type = Outcomes)]
    outcomes: queue::Outcomes,
    /// Number of batches by the rule that closed them. `rows` and `bytes`: the batch has `max_batch_rows` rows or
    /// `max_batch_bytes` bytes, or the next request does not fit; `delay`: the first request has waited for `max_batch_delay`;
    /// `deadline`: a longer wait would miss the deadline of a request; `idle`: a worker is free, and waiting longer is expected to
    /// cost more latency than it saves; `drain`: the server is shutting down; `alone`: the requests are sent apart from others, because
    /// a batch with them failed, or other requests of their token failed.
    #[schema(value_type = HashMap<String, u64>)]
    close_reasons: HashMap<&'static str, u64>,
}

/// A worker that is overdue.
#[derive(Serialize, ToSchema)]
pub(super) struct SilentWorker {
    /// Number of the worker, in the order of connection to the queue since the start of the server.
    worker: u64,
    /// Name of the worker: its number, its token if there are tokens, and its address and port. Callers that may not read all datasets are
    /// shown no address if there are tokens.
    #[schema(example = "worker 3 (token 'ranker-gpu', 10.0.0.7:40312)")]
    name: String,
    /// Time for which the oldest batch of the worker has been waiting without any answer of the worker, in seconds.
    silent_seconds: f64,
}

/// A worker that is suspended.
#[derive(Serialize, ToSchema)]
pub(super) struct SuspendedWorker {
    /// Number of the worker, in the order of connection to the queue since the start of the server.
    worker: u64,
    /// Name of the worker, as of an overdue one.
    name: String,
    /// Time until the suspension ends, in seconds. The next batch then shows whether the worker works again.
    remaining_seconds: f64,
}

impl SilentWorker {
    pub(super) fn new(silent: &queue::SilentWorker, name: impl Fn(queue::WorkerId) -> String) -> Self {
        let queue::SilentWorker { worker, silence } = *silent;
        Self { worker: worker.0, name: name(worker), silent_seconds: silence.as_secs_f64() }
    }
}

impl SuspendedWorker {
    pub(super) fn new(suspended: &queue::SuspendedWorker, name: impl Fn(queue::WorkerId) -> String) -> Self {
        let queue::SuspendedWorker { worker, remaining } = *suspended;
        Self { worker: worker.0, name: name(worker), remaining_seconds: remaining.as_secs_f64() }
    }
}

/// Current load of a queue.
#[derive(Serialize, ToSchema)]
#[serde(remote = "queue::Load")]
struct Load {
    /// Number of connected workers that are neither overdue nor suspended.
    workers: usize,
    /// Number of workers that did not reply to a batch in several times its predicted time. They receive no batches until they
    /// reply.
    overdue_workers: usize,
    /// Number of workers that failed batches which other workers computed. They receive no batches for a while.
    suspended_workers: usize,
    /// Number of requests that wait to be assigned to a batch.
    queued_requests: usize,
    /// Number of rows of the queued requests.
    queued_rows: u64,
    /// Number of batches that were sent to workers and have no reply.
    batches: usize,
    /// Arrival rate in requests per second, including requests that were refused because the queue was too long: the lower of the rates
    /// over the last 4 and the last 32 requests.
    requests_per_second: f64,
    /// Predicted time until the answer to a request of one row that arrives now, in seconds; null without workers or before the
    /// first computed batch.
    #[schema(required)]
    predicted_wait_seconds: Option<f64>,
}

/// Coefficients of the cost model: a worker takes `fixed + row * rows + byte * bytes` seconds for a batch.
#[derive(Serialize, ToSchema)]
#[serde(remote = "queue::Coefficients")]
struct Coefficients {
    /// Time per batch, in seconds.
    fixed: f64,
    /// Time per row, in seconds.
    row: f64,
    /// Time per byte of features, in seconds.
    byte: f64,
}

/// Number of requests by outcome since the queue was created.
#[derive(Serialize, ToSchema)]
#[serde(remote = "queue::Outcomes")]
struct Outcomes {
    /// Number of admitted requests.
    admitted: u64,
    /// Number of rows of the admitted requests.
    admitted_rows: u64,
    /// Size of the features of the admitted requests, in bytes.
    admitted_bytes: u64,
    /// Number of requests that were refused on arrival.
    refused: u64,
    /// Number of requests of low priority that were removed to make room for others.
    displaced: u64,
    /// Number of requests that were answered with rows.
    answered: u64,
    /// Number of requests whose deadline passed before an answer, and of those that waited too long for a worker.
    expired: u64,
    /// Number of requests that their caller canceled.
    cancelled: u64,
    /// Number of requests whose worker failed or disconnected, or whose features could not be looked up.
    failed: u64,
}

/// Steady-state prediction from the cost model and the current arrival rate. Actual values are higher if requests arrive in
/// bursts.
#[derive(Serialize, ToSchema)]
pub(super) struct Forecast {
    /// Throughput of all workers with batches of the maximum size, in rows per second.
    capacity_rows_per_second: f64,
    /// Arrival rate divided by the capacity, 0 or more. At 1 or above, the workers cannot keep up, and requests are refused.
    utilization: f64,
    /// Mean number of rows per batch.
    batch_rows: f64,
    /// Time that a worker takes for a batch of `batch_rows` rows, in seconds.
    batch_seconds: f64,
    /// Mean time from the arrival of a request to its answer, in seconds; null if `utilization` is 1 or above.
    #[schema(required)]
    latency_seconds: Option<f64>,
}

/// Throughput-latency curve of a queue: forecasts for different batch sizes under the current load.
#[derive(Serialize, ToSchema)]
pub(super) struct ThroughputLatencyCurve {
    /// Arrival rate in requests per second, including requests that were refused because the queue was too long: the lower of the rates
    /// over the last 4 and the last 32 requests.
    requests_per_second: f64,
    /// Time from the arrival of a request without a `timeout` to its deadline, in seconds.
    default_timeout_seconds: f64,
    /// Current settings and their forecast.
    current: CurrentSettings,
    /// Forecasts for other values of `max_batch_rows`: powers of two from 16 up to the largest batch that the other limits allow,
    /// with the current `max_batch_delay`. Empty without workers or before the first computed batch.
    points: Vec<CurvePoint>,
}

/// Current settings of a queue and their forecast.
#[derive(Serialize, ToSchema)]
struct CurrentSettings {
    /// Maximum number of rows per batch.
    max_batch_rows: u64,
    /// Maximum time for which a request waits for further requests while a worker is free, in seconds.
    max_batch_delay_seconds: f64,
    /// Forecast for the current settings and load; null without workers or before the first computed batch.
    #[schema(required)]
    forecast: Option<Forecast>,
}

/// Forecast for another value of `max_batch_rows`.
#[derive(Serialize, ToSchema)]
struct CurvePoint {
    /// Maximum number of rows per batch.
    max_batch_rows: u64,
    /// Forecast for this maximum under the current load.
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
