//! The metrics by name, and the recorder that keeps them.

use std::sync::{Mutex, PoisonError};

use anyhow::Context;
use metrics::{Unit, describe_counter, describe_gauge, describe_histogram, gauge};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

/// Bounds of every `_seconds` histogram: 100 us to 100 s, two a decade and a half.
const SECONDS: [f64; 13] = [1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0];

/// The process's recorder. It is installed once; later servers of the process share it.
pub(crate) fn install() -> anyhow::Result<PrometheusHandle> {
    static RECORDER: Mutex<Option<PrometheusHandle>> = Mutex::new(None);
    let mut installed = RECORDER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(recorder) = &*installed {
        return Ok(recorder.clone());
    }
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)?
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
