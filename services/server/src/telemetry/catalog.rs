//! Table of all metrics: the source of the help texts in `/metrics`, of the histogram buckets, and of docs/reference/metrics.md.
//!
//! A test fails if a metric is recorded in the sources but not listed here, or listed but not recorded.

mod labels;
#[cfg(test)]
mod markdown;
mod metric;

pub(super) use metric::{Kind, Metric};

/// Metrics of one subject.
pub(super) struct Group {
    #[cfg_attr(not(test), expect(dead_code, reason = "only used in docs/reference/metrics.md"))]
    pub(super) title: &'static str,
    pub(super) metrics: &'static [Metric],
}

/// All metrics.
pub(super) fn metrics() -> impl Iterator<Item = &'static Metric> {
    GROUPS.iter().flat_map(|group| group.metrics)
}

/// Lists metrics by subject: the kind (with the bounds of a histogram), the name, the labels, the condition under which the metric
/// is absent, and the help text.
macro_rules! groups {
    ($($title:literal { $(
        $kind:ident $(($bounds:ident))? $name:literal $([$($label:ident),+])? $(absent $absent:literal)?: $help:literal;
    )* })*) => {
        &[$(Group {
            title: $title,
            metrics: &[$(Metric {
                name: $name,
                kind: Kind::$kind $((metric::$bounds))?,
                labels: &[$($(labels::$label),+)?],
                absent: concat!("", $($absent)?),
                help: $help,
            }),*],
        }),*]
    };
}

/// All metrics, by subject.
pub(super) const GROUPS: &[Group] = groups! {
    "Server" {
        Gauge "forebay_build_info" [VERSION]: "Always 1; the label carries the version of the server.";
        Gauge "forebay_draining": "1 while the server shuts down and rejects new calls, otherwise 0.";
        Counter "forebay_events_total" [EVENT]: "Operational events, by kind.";
        Counter "forebay_connections_refused_total" [CONNECTION_LIMIT]: "Connections that were closed because a limit was reached: older ones without an authenticated request, or new ones.";
        Gauge "forebay_caller_resources" [RESOURCE] absent "before the first use of the resource":
            "Amount in use of each resource that callers share. The limits are `limits.max_streams`, `max_exchanges`, `max_workers`, `max_calls`, `max_live_subscribers`, `max_incoming_bytes` and `max_unsent_bytes`.";
        Counter "forebay_caller_refusals_total" [RESOURCE] absent "before the first refusal":
            "Calls rejected because a shared limit was reached, either the limit of all callers or the share of one caller.";
        Counter "forebay_authentication_failures_total": "gRPC calls without a valid token, and HTTP requests with an unknown or expired token.";
        Counter "forebay_tls_errors_total": "Failed TLS handshakes.";
        Counter "forebay_reload_errors_total":
            "Failed reloads of changed certificates or tokens. The server keeps the previous ones.";
        Histogram(SECONDS) "forebay_event_loop_delay_seconds"
            absent "before the first measurement, 0.1 s after the start":
            "Delay between the due time of a timer and its execution on the threads that read and send. The resolution \
             of timers is 1 ms.";
        Gauge "forebay_async_tasks" absent "before the first measurement, 0.1 s after the start":
            "Tasks of the async runtime that have not ended. A number that grows without more connections, streams or \
             jobs shows a leak.";
        Counter "forebay_traces_exported_total": "Spans accepted by the trace collector.";
        Counter "forebay_traces_dropped_total" [DROPPED]:
            "Spans that were not exported, by reason.";
    }
    "Cluster" {
        Gauge "forebay_members" [MEMBER_STATE] absent "without `members`":
            "Servers of the cluster in the view of this server, by state. This server is one of them.";
        Counter "forebay_member_list_errors_total":
            "Failed reads of the member list. After a failure, the server uses the last valid list.";
        Counter "forebay_hello_errors_total":
            "Requests `hello` to other servers of the cluster that failed or were not answered in time.";
        Counter "forebay_streams_placed_total" [CANDIDATE] absent "without `members`":
            "Batch streams that were opened at this server. `candidate` tells whether the placement assigns them to this server (`first`) or to another one (`other`).";
        Counter "forebay_streams_redirected_total":
            "Requests for batch streams that this server redirected to the next server in their list of locations, because its load had reached a threshold (`membership.overflow_*`).";
    }
    "Calls" {
        Counter "forebay_grpc_calls_total" [METHOD, CODE]
            absent "before the first completed call with this method and code":
            "Completed gRPC calls, by method and status code.";
        Histogram(SECONDS) "forebay_grpc_call_duration_seconds" [METHOD]
            absent "before the first completed call of this method":
            "Time from the start of a gRPC call to the last byte of its response; for a stream, its lifetime.";
        Counter "forebay_http_requests_total" [ROUTE, STATUS]
            absent "before the first request with this route and code":
            "Answered HTTP requests, by route and status code.";
        Histogram(SECONDS) "forebay_http_request_duration_seconds" [ROUTE]
            absent "before the first request of this route":
            "Time from an HTTP request to the head of its response.";
    }
    "Sessions and stalls" {
        Gauge "forebay_streams" absent "before the first stream": "Open batch streams.";
        Gauge "forebay_sessions" [DATASET] absent "before the first session of the dataset":
            "Sessions with an open stream.";
        FractionalCounter "forebay_session_seconds_total" [DATASET, SESSION_ACTIVITY]
            absent "before the first session of the dataset":
            "Time of sessions, by activity. The sum over all activities is the time with an open stream.";
        FractionalCounter "forebay_trainer_seconds_total" [DATASET, ACTIVITY]
            absent "before the first report of a trainer":
            "Time that trainers report for waiting, computing and copying to the device.";
        FractionalCounter "forebay_trainer_gpu_seconds_total" [DATASET, GPU_STATE]
            absent "before the first report of a trainer that measures its GPU":
            "Busy and idle time of GPUs, as reported by trainers; busy / (busy + idle) is the GPU utilization.";
        Gauge "forebay_bottleneck" [BOTTLENECK]:
            "1 for the current bottleneck of all sessions together, 0 for the others.";
        Gauge "forebay_wanted_servers" absent "before the first second after the start":
            "Demand of the trainers of this server: the number of servers at full load that they need. It is the rate at which they would read without waiting for this server, divided by the capacity of this server. The number of servers to run is the sum of this metric over all servers, divided by the target load (0.8).";
        FractionalCounter "forebay_idle_gpu_cost_total" absent "without `--gpu-hour-cost`":
            "Cost of GPUs while their trainers waited, in the currency of the setting `gpu_hour_cost`.";
        Gauge "forebay_label_skewed_sessions" [DATASET] absent "before the first session with a `label_column`":
            "Running sessions whose mean label varies between batches by more than chance explains.";
    }
    "Stages and batches" {
        FractionalCounter "forebay_stage_seconds_total" [STAGE]:
            "Time spent in a stage, summed over concurrent operations.";
        Counter "forebay_stage_bytes_total" [STAGE]: "Bytes produced by a stage.";
        Gauge "forebay_stage_in_flight" [STAGE] absent "before the first second after the start":
            "Operations in flight in a stage.";
        Gauge "forebay_stage_queue_depth" [STAGE] absent "before the first second after the start":
            "Operations waiting for a stage.";
        Gauge "forebay_block_reads_in_flight" [PURPOSE] absent "before the first second after the start":
            "Blocks that are fetched or decoded now, by the reason why they are read.";
        Counter "forebay_batches_total": "Batches produced for training streams.";
        Counter "forebay_batch_rows_total": "Rows of produced batches.";
        Counter "forebay_batch_bytes_total": "Bytes of the bodies of produced batches.";
        Histogram(SECONDS) "forebay_gather_duration_seconds" absent "before the first batch":
            "Time to gather the rows of one batch from frames, without the time in which it waits for its next turn on the CPU threads.";
        Histogram(SECONDS) "forebay_decode_duration_seconds" absent "before the first block":
            "Time to fetch and decode one block and to write its frame.";
        Counter "forebay_decode_rows_total": "Rows written into frames.";
        Counter "forebay_decode_columns_total": "Columns of blocks decoded from Parquet files.";
        Counter "forebay_compute_rows_total": "Rows of columns computed from SQL expressions.";
    }
    // The memory tier holds frames, the disk tier decoded columns of blocks.
    "Cache" {
        Gauge "forebay_cache_capacity_bytes" [TIER] absent "for the tier `disk` without a disk cache, and until it is recovered":
            "Capacity of the tier.";
        Gauge "forebay_cache_resident_bytes" [TIER]
            absent "for the tier `memory` before the first load, for the tier `disk` without a disk cache, and until it is recovered":
            "Bytes resident in the tier.";
        Counter "forebay_cache_hits_total" [TIER]: "Reads that found their value in the tier.";
        Counter "forebay_cache_misses_total" [TIER]: "Reads that did not find their value in the tier.";
        Counter "forebay_cache_hit_bytes_total" [TIER]: "Bytes of values found in the tier.";
        Counter "forebay_cache_miss_bytes_total" [TIER]: "Bytes of values not found in the tier, counted when loaded.";
        FractionalCounter "forebay_cache_saved_seconds_total" [TIER]:
            "Time saved by hits: the recorded time to fetch and decode the value, minus the time to read it from disk. \
             Times of concurrent loads are summed.";
        Counter "forebay_cache_evictions_total" [TIER]: "Values evicted to free space.";
        Counter "forebay_cache_insert_rejections_total" [DISK, INSERT_REJECTION]:
            "Values not inserted, by reason.";
        Counter "forebay_cache_errors_total" [DISK, CACHE_ERROR]:
            "I/O errors and damaged files of the disk tier, by kind.";
        Counter "forebay_cache_coalesced_loads_total" [TIER]:
            "Reads that waited for a load of the same value that another read had started.";
    }
    "Storage and datasets" {
        Counter "forebay_storage_requests_total" [OPERATION, OUTCOME]:
            "Requests to object stores, by operation and outcome. Retries of a request and the pages of one listing \
             count once.";
        Histogram(SECONDS) "forebay_storage_request_duration_seconds" [OPERATION]
            absent "before the first request with this operation":
            "Time of a request to an object store, including retries and the wait for a free request slot.";
        Counter "forebay_storage_retries_total":
            "HTTP requests to object stores that were repeated, or resumed after an interrupted response.";
        Counter "forebay_storage_read_bytes_total": "Bytes read from dataset files.";
        Counter "forebay_storage_requested_bytes_total":
            "Bytes requested from dataset files. Gaps between nearby ranges are read but not requested: read / \
             requested is the read amplification.";
        Counter "forebay_storage_footers_total" [FOOTER_SOURCE]: "Parquet footers loaded, by source.";
        Counter "forebay_storage_corrupt_footers_total":
            "Cached footers found damaged, deleted and read again from their files.";
        Gauge "forebay_dataset_open" [DATASET]: "1 if the dataset has a readable snapshot, otherwise 0.";
        Gauge "forebay_dataset_snapshot_age_seconds" [DATASET] absent "before the dataset is open":
            "Time since the current snapshot was last verified against the store.";
        Gauge "forebay_dataset_rows" [DATASET] absent "before the dataset is open": "Rows of the current snapshot.";
    }
    "Lookups" {
        Counter "forebay_lookup_keys_total": "Keys looked up.";
        Counter "forebay_lookup_keys_found_total": "Looked-up keys that have a row, counted per dataset.";
        Histogram(LATENCIES) "forebay_lookup_duration_seconds" absent "before the first lookup":
            "Time to find and gather the rows of one lookup or of one batch of a queue.";
        Gauge "forebay_lookup_outdated" [DATASET] absent "without lookups":
            "1 if lookups are answered from another snapshot than the current one, because the current one is being loaded, cannot be \
             loaded or was rejected, or because another one is pinned. Otherwise 0.";
        Gauge "forebay_lookup_failed" [DATASET] absent "without lookups":
            "1 if the last attempt to load the current snapshot for lookups failed, for example because it does not fit into `lookup_memory`, or the snapshot was rejected. Otherwise 0.";
        Counter "forebay_lookup_corrupt_indexes_total": "Stored indexes found damaged, deleted and rebuilt.";
    }
    "Batch queues" {
        Gauge "forebay_queue_requests" [QUEUE] absent "without queues":
            "Requests admitted to the queue and not answered.";
        Gauge "forebay_queue_workers" [QUEUE] absent "without queues":
            "Workers connected to the queue, except overdue and suspended ones.";
        Gauge "forebay_queue_overdue_workers" [QUEUE] absent "without queues":
            "Workers with a batch that takes more than ten times its predicted time and more than one second. They receive no batches until they reply.";
        Gauge "forebay_queue_suspended_workers" [QUEUE] absent "without queues":
            "Workers that failed three batches in succession which other workers computed. They receive no batches for 1 s, or up to 60 s if they fail again.";
        Gauge "forebay_queue_demand_workers" [QUEUE] absent "before the first computed batch":
            "Number of workers that requests at the mean rate of the last 10 s would keep busy with batches of the maximum size. It includes requests that were refused because the queue was too long.";
        Counter "forebay_queue_overdue_total" [QUEUE] absent "before the first overdue worker":
            "Number of times a worker became overdue.";
        Counter "forebay_queue_suspensions_total" [QUEUE] absent "before the first suspended worker":
            "Number of times a worker was suspended.";
        Counter "forebay_queue_requests_total" [QUEUE, REQUEST_OUTCOME]
            absent "before the first request with this outcome":
            "Completed requests, by outcome.";
        Counter "forebay_queue_batches_total" [QUEUE, CLOSE_REASON] absent "before the first batch with this reason":
            "Batches dispatched to workers, by the condition that closed them.";
        Histogram(ROWS) "forebay_queue_batch_rows" [QUEUE] absent "before the first batch of the queue":
            "Rows per dispatched batch, without padding.";
        Histogram(LATENCIES) "forebay_queue_wait_seconds" [QUEUE] absent "before the first batch of the queue":
            "Time from the arrival of a request to the dispatch of its batch.";
        Histogram(LATENCIES) "forebay_queue_gather_seconds" [QUEUE] absent "before the first reply of the queue":
            "Time to look up the features of a dispatched batch.";
        Histogram(LATENCIES) "forebay_queue_worker_seconds" [QUEUE] absent "before the first reply of the queue":
            "Time from sending a batch to a worker to its reply.";
    }
    "Process" {
        FractionalCounter "process_cpu_seconds_total": "CPU time of the process in user and kernel mode.";
        Gauge "process_resident_memory_bytes": "Resident memory of the process.";
        Gauge "process_virtual_memory_bytes": "Virtual memory of the process.";
        Gauge "process_open_fds": "Open file descriptors of the process.";
        Gauge "process_max_fds": "Limit on open file descriptors; 0 if unlimited.";
        Gauge "process_threads": "Threads of the process.";
        Gauge "process_start_time_seconds": "Start time of the process, in Unix seconds.";
    }
};

#[cfg(test)]
mod tests;
