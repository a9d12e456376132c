//! The online path: lookups and batch queues.

use super::{
    Metric,
    build::{LATENCIES, ROWS, counter, gauge, histogram},
    labels::{ANSWER, CLOSED, QUEUE},
};

pub(super) const LOOKUPS: &[Metric] = &[
    counter("forebay_online_keys_total", "Keys that were looked up."),
    counter("forebay_online_keys_found_total", "Of these, dataset by dataset, keys that have a row."),
    histogram(
        "forebay_online_lookup_duration_seconds",
        "seconds",
        LATENCIES,
        "Time to find and gather the rows of one request's or batch's keys.",
    )
    .before("the first lookup"),
    counter(
        "forebay_online_corrupt_indexes_total",
        "Kept indexes that were damaged, deleted and made again.",
    ),
];

pub(super) const QUEUES: &[Metric] = &[
    gauge("forebay_queue_requests", "Requests without an answer.").by(&[QUEUE]).without("queues"),
    gauge("forebay_queue_workers", "Workers that serve the queue.").by(&[QUEUE]).without("queues"),
    counter("forebay_queue_requests_total", "Requests, by what became of them.")
        .by(&[QUEUE, ANSWER])
        .before("a request ended so"),
    counter("forebay_queue_batches_total", "Batches given to workers, by why they were closed.")
        .by(&[QUEUE, CLOSED])
        .before("a batch was closed so"),
    histogram("forebay_queue_batch_rows", "rows", ROWS, "Rows of these batches.")
        .by(&[QUEUE])
        .before("the queue's first batch"),
    histogram("forebay_queue_wait_seconds", "seconds", LATENCIES, "From a request's arrival to its batch.")
        .by(&[QUEUE])
        .before("the queue's first batch"),
    histogram("forebay_queue_gather_seconds", "seconds", LATENCIES, "Time to gather a batch's features.")
        .by(&[QUEUE])
        .before("the queue's first reply"),
    histogram(
        "forebay_queue_worker_seconds",
        "seconds",
        LATENCIES,
        "From a gathered batch to the worker's reply.",
    )
    .by(&[QUEUE])
    .before("the queue's first reply"),
];
