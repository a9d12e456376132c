//! The server as a process: who calls, and what it takes.

use super::{
    Metric,
    build::{SECONDS, counter, gauge, histogram, sum},
    labels::{CODE, DROPPED, EVENT, METHOD, ROUTE, STATUS, VERSION},
};

pub(super) const SERVER: &[Metric] = &[
    gauge("forebay_build_info", "Always 1; the label carries the version.").by(&[VERSION]),
    gauge("forebay_draining", "1 while the server stops: no call is let in any more."),
    counter("forebay_events_total", "What happened that people want to know of.").by(&[EVENT]),
    counter("forebay_tls_errors_total", "Connections that did not agree on keys."),
    counter(
        "forebay_reload_errors_total",
        "Tries to read changed certificates or tokens again that failed; what was read before holds.",
    ),
    histogram(
        "forebay_runtime_lag_seconds",
        "seconds",
        SECONDS,
        "How much later than it asked for a task wakes up on the threads that read and send; about 1 ms is as \
         exact as timers are.",
    )
    .before("the first tenth of a second"),
    counter("forebay_traces_exported_total", "Spans that the collector took."),
    counter("forebay_traces_dropped_total", "Spans that never reached it: the queue was full, or the collector did not answer.")
        .by(&[DROPPED]),
];

pub(super) const CALLS: &[Metric] = &[
    counter("forebay_grpc_calls_total", "gRPC calls that have ended.")
        .by(&[METHOD, CODE])
        .before("a call of this method has ended so"),
    histogram(
        "forebay_grpc_call_duration_seconds",
        "seconds",
        SECONDS,
        "From the call to the last byte of its answer; a stream's whole life.",
    )
    .by(&[METHOD])
    .before("a call of this method has ended"),
    counter("forebay_http_requests_total", "HTTP requests that were answered.")
        .by(&[ROUTE, STATUS])
        .before("a request of this route was answered so"),
    histogram(
        "forebay_http_request_duration_seconds",
        "seconds",
        SECONDS,
        "From the request to the head of its answer.",
    )
    .by(&[ROUTE])
    .before("a request of this route was answered"),
];

pub(super) const PROCESS: &[Metric] = &[
    sum("process_cpu_seconds_total", "seconds", "Processor time, in user and kernel mode."),
    gauge("process_resident_memory_bytes", "Memory that is in RAM.").of("bytes"),
    gauge("process_virtual_memory_bytes", "Address space.").of("bytes"),
    gauge("process_open_fds", "Open file descriptors."),
    gauge("process_max_fds", "How many there may be; 0 for any number."),
    gauge("process_threads", "Threads."),
    gauge("process_start_time_seconds", "When it started, since 1970.").of("seconds"),
];
