//! Metrics of lookups and batch queues.

use super::{
    build::{LATENCIES, ROWS, counter, gauge, histogram},
    labels::{CLOSE_REASON, QUEUE, REQUEST_OUTCOME},
    metric::Metric,
};

pub(super) const LOOKUPS: &[Metric] = &[
    counter("forebay_lookup_keys_total", "Keys looked up."),
    counter("forebay_lookup_keys_found_total", "Looked-up keys that have a row, counted per dataset."),
    histogram(
        "forebay_lookup_duration_seconds",
        "seconds",
        LATENCIES,
        "Time to find and gather the rows of one lookup or of one batch of a queue.",
    )
    .before("the first lookup"),
    counter("forebay_lookup_corrupt_indexes_total", "Stored indexes found damaged, deleted and rebuilt."),
];

pub(super) const QUEUES: &[Metric] = &[
    gauge("forebay_queue_requests", "Requests admitted to the queue and not answered.")
        .by(&[QUEUE])
        .without("queues"),
    gauge("forebay_queue_workers", "Workers connected to the queue.").by(&[QUEUE]).without("queues"),
    counter("forebay_queue_requests_total", "Completed requests, by outcome.")
        .by(&[QUEUE, REQUEST_OUTCOME])
        .before("the first request with this outcome"),
    counter(
        "forebay_queue_batches_total",
        "Batches dispatched to workers, by the condition that closed them.",
    )
    .by(&[QUEUE, CLOSE_REASON])
    .before("the first batch with this reason"),
    histogram("forebay_queue_batch_rows", "rows", ROWS, "Rows per dispatched batch, without padding.")
        .by(&[QUEUE])
        .before("the first batch of the queue"),
    histogram(
        "forebay_queue_wait_seconds",
        "seconds",
        LATENCIES,
        "Time from the arrival of a request to the dispatch of its batch.",
    )
    .by(&[QUEUE])
    .before("the first batch of the queue"),
    histogram(
        "forebay_queue_gather_seconds",
        "seconds",
        LATENCIES,
        "Time to look up the features of a dispatched batch.",
    )
    .by(&[QUEUE])
    .before("the first reply of the queue"),
    histogram(
        "forebay_queue_worker_seconds",
        "seconds",
        LATENCIES,
        "Time from sending a batch to a worker to its reply.",
    )
    .by(&[QUEUE])
    .before("the first reply of the queue"),
];
