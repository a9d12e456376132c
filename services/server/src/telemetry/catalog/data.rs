//! Metrics of the training data path: storage, cache, decoding and batches.

use super::{
    build::{SECONDS, counter, gauge, histogram, sum},
    labels::{CACHE_ERROR, DATASET, DISK, FOOTER_SOURCE, INSERT_REJECTION, OPERATION, OUTCOME, STAGE, TIER},
    metric::Metric,
};

pub(super) const STAGES: &[Metric] = &[
    sum(
        "forebay_stage_seconds_total",
        "seconds",
        "Time spent in a stage, summed over concurrent operations.",
    )
    .by(&[STAGE]),
    counter("forebay_stage_bytes_total", "Bytes produced by a stage.").of("bytes").by(&[STAGE]),
    gauge("forebay_stage_in_flight", "Operations in flight in a stage.")
        .by(&[STAGE])
        .before("the first second after the start"),
    gauge("forebay_stage_queue_depth", "Operations waiting for a stage.")
        .by(&[STAGE])
        .before("the first second after the start"),
    counter("forebay_batches_total", "Batches produced for training streams."),
    counter("forebay_batch_rows_total", "Rows of produced batches.").of("rows"),
    counter("forebay_batch_bytes_total", "Bytes of the bodies of produced batches.").of("bytes"),
    histogram(
        "forebay_gather_duration_seconds",
        "seconds",
        SECONDS,
        "Time to gather the rows of one batch from frames.",
    )
    .before("the first batch"),
    histogram(
        "forebay_decode_duration_seconds",
        "seconds",
        SECONDS,
        "Time to fetch and decode one block and to write its frame.",
    )
    .before("the first block"),
    counter("forebay_decode_rows_total", "Rows written into frames.").of("rows"),
    counter("forebay_decode_columns_total", "Columns of blocks decoded from Parquet files."),
    counter("forebay_compute_rows_total", "Rows of columns computed from SQL expressions.").of("rows"),
];

/// The memory tier holds frames, the disk tier decoded columns of blocks.
pub(super) const CACHE: &[Metric] = &[
    gauge("forebay_cache_capacity_bytes", "Capacity of the tier.").of("bytes").by(&[TIER]).without("the tier"),
    gauge("forebay_cache_resident_bytes", "Bytes resident in the tier.")
        .of("bytes")
        .by(&[TIER])
        .before("the first value"),
    counter("forebay_cache_hits_total", "Reads that found their value in the tier.").by(&[TIER]),
    counter("forebay_cache_misses_total", "Reads that did not find their value in the tier.").by(&[TIER]),
    counter("forebay_cache_hit_bytes_total", "Bytes of values found in the tier.").of("bytes").by(&[TIER]),
    counter("forebay_cache_miss_bytes_total", "Bytes of values not found in the tier, counted when loaded.")
        .of("bytes")
        .by(&[TIER]),
    sum(
        "forebay_cache_saved_seconds_total",
        "seconds",
        "Time saved by hits: the recorded time to fetch and decode the value, minus the time to read it from disk. \
         Times of concurrent loads are summed.",
    )
    .by(&[TIER]),
    counter("forebay_cache_evictions_total", "Values evicted to free space.").by(&[TIER]),
    counter(
        "forebay_cache_insert_rejections_total",
        "Values not inserted: their next use is later than that of all resident values (`needed_later`), they exceed the \
         capacity (`too_large`), the write queue is full (`busy`), or the disk fails (`failing`).",
    )
    .by(&[DISK, INSERT_REJECTION]),
    counter(
        "forebay_cache_errors_total",
        "I/O errors and damaged files of the disk tier; `checksum` is content that differs from what was written.",
    )
    .by(&[DISK, CACHE_ERROR]),
    counter(
        "forebay_cache_coalesced_loads_total",
        "Reads that waited for a load of the same value that another read had started.",
    )
    .by(&[TIER]),
];

pub(super) const STORAGE: &[Metric] = &[
    counter(
        "forebay_storage_requests_total",
        "Requests to object stores, by operation and outcome. Retries of a request and the pages of one listing count once.",
    )
    .by(&[OPERATION, OUTCOME]),
    histogram(
        "forebay_storage_request_duration_seconds",
        "seconds",
        SECONDS,
        "Time of a request to an object store, including retries and the wait for a free request slot.",
    )
    .by(&[OPERATION])
    .before("the first request with this operation"),
    counter(
        "forebay_storage_retries_total",
        "HTTP requests to object stores that were repeated, or resumed after an interrupted response.",
    ),
    counter("forebay_storage_read_bytes_total", "Bytes read from dataset files.").of("bytes"),
    counter(
        "forebay_storage_requested_bytes_total",
        "Bytes requested from dataset files. Gaps between nearby ranges are read but not requested: read / requested is \
         the read amplification.",
    )
    .of("bytes"),
    counter("forebay_storage_footers_total", "Parquet footers loaded, by source.").by(&[FOOTER_SOURCE]),
    counter(
        "forebay_storage_corrupt_footers_total",
        "Cached footers found damaged, deleted and read again from their files.",
    ),
    gauge("forebay_dataset_open", "1 if the dataset has a readable snapshot, otherwise 0.").by(&[DATASET]),
    gauge(
        "forebay_dataset_snapshot_age_seconds",
        "Time since the current snapshot was last verified against the store.",
    )
    .of("seconds")
    .by(&[DATASET])
    .before("the dataset is open"),
    gauge("forebay_dataset_rows", "Rows of the current snapshot.")
        .of("rows")
        .by(&[DATASET])
        .before("the dataset is open"),
];
