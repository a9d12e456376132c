//! The metrics by name, and the recorder that keeps them.

use std::sync::{Mutex, PoisonError};

use anyhow::Context;
use metrics::{Unit, describe_counter, describe_gauge, describe_histogram, gauge};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

/// Bounds of every `_seconds` histogram: 100 us to 100 s, two a decade and a half.
const SECONDS: [f64; 13] = [1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0];

/// Bounds where milliseconds count (lookups, queues): 10 us to 10 s, eight a decade.
const LATENCIES: [f64; 49] = [
    1.0e-5, 1.3e-5, 1.8e-5, 2.4e-5, 3.2e-5, 4.2e-5, 5.6e-5, 7.5e-5, 1.0e-4, 1.3e-4, 1.8e-4, 2.4e-4, 3.2e-4,
    4.2e-4, 5.6e-4, 7.5e-4, 1.0e-3, 1.3e-3, 1.8e-3, 2.4e-3, 3.2e-3, 4.2e-3, 5.6e-3, 7.5e-3, 0.010, 0.013,
    0.018, 0.024, 0.032, 0.042, 0.056, 0.075, 0.10, 0.13, 0.18, 0.24, 0.32, 0.42, 0.56, 0.75, 1.0, 1.3, 1.8,
    2.4, 3.2, 4.2, 5.6, 7.5, 10.0,
];
/// Bounds of numbers of rows.
const ROWS: [f64; 11] = [1.0, 4.0, 16.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 4096.0, 16_384.0, 65_536.0];

/// The process's recorder. It is installed once; later servers of the process share it.
pub(crate) fn install() -> anyhow::Result<PrometheusHandle> {
    static RECORDER: Mutex<Option<PrometheusHandle>> = Mutex::new(None);
    let mut installed = RECORDER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(recorder) = &*installed {
        return Ok(recorder.clone());
    }
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)?
        .set_buckets_for_metric(Matcher::Prefix("forebay_online_".to_owned()), &LATENCIES)?
        .set_buckets_for_metric(Matcher::Prefix("forebay_queue_".to_owned()), &LATENCIES)?
        .set_buckets_for_metric(Matcher::Full("forebay_queue_batch_rows".to_owned()), &ROWS)?
        .install_recorder()
        .context("can't install the metrics recorder")?;
    describe();
    gauge!("forebay_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    Ok(installed.insert(recorder).clone())
}

fn describe() {
    describe_gauge!("forebay_build_info", "Always 1; the label carries the version.");
    describe_counter!("forebay_grpc_calls_total", "gRPC calls that have ended, by method and status.");
    describe_histogram!(
        "forebay_grpc_call_duration_seconds",
        Unit::Seconds,
        "Duration of gRPC calls, streams whole."
    );
    describe_counter!("forebay_tls_errors_total", "Connections that did not agree on keys.");
    describe_counter!(
        "forebay_reload_errors_total",
        "Certificates or tokens that changed and made no sense."
    );
    describe_counter!("forebay_online_keys_total", "Keys that were looked up.");
    describe_counter!("forebay_online_keys_found_total", "Of these, by dataset, keys that have a row.");
    describe_histogram!(
        "forebay_online_lookup_duration_seconds",
        Unit::Seconds,
        "From decoded keys to the answer that is handed to the socket."
    );
    describe_gauge!("forebay_queue_requests", "Requests of a queue without an answer.");
    describe_counter!("forebay_queue_requests_total", "Requests of a queue, by what became of them.");
    describe_counter!("forebay_queue_batches_total", "Batches given to workers, by why they were closed.");
    describe_histogram!("forebay_queue_batch_rows", "Rows of such batches.");
    describe_histogram!(
        "forebay_queue_wait_seconds",
        Unit::Seconds,
        "From a request's arrival to its batch."
    );
    describe_histogram!("forebay_queue_gather_seconds", Unit::Seconds, "Time to gather a batch's features.");
    describe_histogram!("forebay_queue_worker_seconds", Unit::Seconds, "From a gathered batch to its reply.");
    describe_gauge!("forebay_streams", "Batch streams that are running.");
    describe_counter!("forebay_batches_total", "Batches assembled.");
    describe_counter!("forebay_batch_rows_total", "Rows of the batches assembled.");
    describe_counter!("forebay_batch_bytes_total", Unit::Bytes, "Bytes of the batches assembled.");
    describe_histogram!("forebay_gather_duration_seconds", Unit::Seconds, "Time to assemble a batch.");
    describe_histogram!(
        "forebay_decode_duration_seconds",
        Unit::Seconds,
        "Time to decode a block and lay its frame."
    );
    describe_counter!("forebay_decode_rows_total", "Rows laid into frames.");
    describe_counter!("forebay_decode_columns_total", "Columns of blocks decoded from their files.");
    describe_gauge!("forebay_cache_capacity_bytes", Unit::Bytes, "Budget of a cache tier.");
    describe_gauge!("forebay_cache_resident_bytes", Unit::Bytes, "Bytes that a cache tier holds.");
    describe_counter!("forebay_cache_hits_total", "Values found in a cache tier.");
    describe_counter!("forebay_cache_misses_total", "Values loaded into a cache tier.");
    describe_counter!("forebay_cache_evictions_total", "Values evicted from a cache tier.");
    describe_counter!("forebay_cache_hit_bytes_total", Unit::Bytes, "Bytes found in a cache tier.");
    describe_counter!("forebay_cache_miss_bytes_total", Unit::Bytes, "Bytes that a cache tier lacked.");
    describe_counter!("forebay_cache_bypasses_total", "Values that a cache tier did not take, by reason.");
    describe_counter!("forebay_cache_errors_total", "What was wrong with the disk tier, by kind.");
    describe_counter!("forebay_cache_single_flight_joins_total", "Readers that waited for another's load.");
    describe_counter!(
        "forebay_storage_requests_total",
        "Requests to object stores, by operation and outcome."
    );
    describe_histogram!(
        "forebay_storage_request_duration_seconds",
        Unit::Seconds,
        "Duration of such requests."
    );
    describe_counter!("forebay_storage_read_bytes_total", Unit::Bytes, "Bytes read from object stores.");
    describe_counter!("forebay_storage_footers_total", "Parquet footers used, by where they came from.");
    describe_counter!(
        "forebay_storage_corrupt_footers_total",
        "Kept footers that were damaged and made again."
    );
}
