//! The way of the data: from the store through the cache into batches.

use super::{
    Metric,
    build::{SECONDS, counter, gauge, histogram, sum},
    labels::{BYPASS, DATASET, DISK, FOOTER, OPERATION, OUTCOME, STAGE, TIER, TROUBLE},
};

pub(super) const STAGES: &[Metric] = &[
    sum(
        "forebay_stage_seconds_total",
        "seconds",
        "Time that work spent in a stage, of all that ran at once together.",
    )
    .by(&[STAGE]),
    counter("forebay_stage_bytes_total", "Bytes that left a stage.").of("bytes").by(&[STAGE]),
    gauge("forebay_stage_active", "Pieces of work that a stage is at.").by(&[STAGE]).before("its first work"),
    gauge("forebay_stage_queue", "Pieces of work that wait for a stage.")
        .by(&[STAGE])
        .before("its first work"),
    counter("forebay_batches_total", "Batches that were made."),
    counter("forebay_batch_rows_total", "Rows of these.").of("rows"),
    counter("forebay_batch_bytes_total", "Bytes of their bodies.").of("bytes"),
    histogram("forebay_gather_duration_seconds", "seconds", SECONDS, "Time to gather a batch from frames.")
        .before("the first batch"),
    histogram(
        "forebay_decode_duration_seconds",
        "seconds",
        SECONDS,
        "Time to fetch and decode a block and to lay its frame.",
    )
    .before("the first block"),
    counter("forebay_decode_rows_total", "Rows laid into frames.").of("rows"),
    counter("forebay_decode_columns_total", "Columns of blocks decoded from their files."),
    counter("forebay_compute_rows_total", "Rows of columns computed from SQL expressions.").of("rows"),
    gauge(
        "forebay_cpu_idle_threads",
        "Threads that decode and gather which run while no other thread wants the processor; 0 while normal ones stand \
         in, because others left these hardly any.",
    )
    .without("idle threads (`cpu_scheduling`)"),
];

/// In the memory tier values are frames, in the disk tier columns of blocks.
pub(super) const CACHE: &[Metric] = &[
    gauge("forebay_cache_capacity_bytes", "What a tier may hold.")
        .of("bytes")
        .by(&[TIER])
        .without("the tier"),
    gauge("forebay_cache_resident_bytes", "What it holds.")
        .of("bytes")
        .by(&[TIER])
        .before("the first value"),
    counter("forebay_cache_hits_total", "Values that were there.").by(&[TIER]),
    counter("forebay_cache_misses_total", "Values that were not.").by(&[TIER]),
    counter("forebay_cache_hit_bytes_total", "Bytes of the values that were there.").of("bytes").by(&[TIER]),
    counter("forebay_cache_miss_bytes_total", "Bytes of those that were not, once they are made.")
        .of("bytes")
        .by(&[TIER]),
    sum(
        "forebay_cache_saved_seconds_total",
        "seconds",
        "Time that hits saved: what it took to fetch and decode the value, less the time to read it from disk. Of \
         values made at the same time, each counts its own time.",
    )
    .by(&[TIER]),
    counter("forebay_cache_evictions_total", "Values that went to make room.").by(&[TIER]),
    counter(
        "forebay_cache_bypasses_total",
        "Values that a tier did not take: they are needed later than all it has, it is too small for them, too much waits \
         to be written, or its disk fails.",
    )
    .by(&[DISK, BYPASS]),
    counter(
        "forebay_cache_errors_total",
        "What was wrong with a tier's files; `checksum` is content that is not what was written.",
    )
    .by(&[DISK, TROUBLE]),
    counter("forebay_cache_single_flight_joins_total", "Times that a value was waited for which somebody else was making.")
        .by(&[TIER]),
];

pub(super) const STORAGE: &[Metric] = &[
    counter("forebay_storage_requests_total", "Requests to stores, each with all its tries; listing a dataset is one.")
        .by(&[OPERATION, OUTCOME]),
    histogram(
        "forebay_storage_request_duration_seconds",
        "seconds",
        SECONDS,
        "Time of such a request, with its retries and the wait for a place among those in flight.",
    )
    .by(&[OPERATION])
    .before("the first such request"),
    counter(
        "forebay_storage_retries_total",
        "HTTP requests to stores that were sent once more, to begin again or to go on where an answer broke off.",
    ),
    counter("forebay_storage_read_bytes_total", "Bytes read from files of datasets.").of("bytes"),
    counter(
        "forebay_storage_wanted_bytes_total",
        "Bytes of them that were asked for; what lies between them is read along. read / wanted is the read amplification.",
    )
    .of("bytes"),
    counter("forebay_storage_footers_total", "Parquet footers used, by where they came from.").by(&[FOOTER]),
    counter(
        "forebay_storage_corrupt_footers_total",
        "Kept footers that were damaged, deleted and read again.",
    ),
    gauge("forebay_dataset_open", "1 if the dataset has a snapshot to read, else 0.").by(&[DATASET]),
    gauge(
        "forebay_dataset_snapshot_age_seconds",
        "How long ago its current snapshot was last seen to be what is there.",
    )
    .of("seconds")
    .by(&[DATASET])
    .before("the dataset is open"),
    gauge("forebay_dataset_rows", "Rows of its current snapshot.")
        .of("rows")
        .by(&[DATASET])
        .before("the dataset is open"),
];
