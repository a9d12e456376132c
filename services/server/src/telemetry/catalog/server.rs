//! Metrics of the server as a process and of the calls it handles.

use super::{
    build::{SECONDS, counter, gauge, histogram, sum},
    labels::{CODE, DROPPED, EVENT, METHOD, ROUTE, STATUS, VERSION},
    metric::Metric,
};

pub(super) const SERVER: &[Metric] = &[
    gauge("forebay_build_info", "Always 1; the label carries the version of the server.").by(&[VERSION]),
    gauge("forebay_draining", "1 while the server shuts down and rejects new calls, otherwise 0."),
    counter("forebay_events_total", "Operational events, by kind.").by(&[EVENT]),
    counter("forebay_tls_errors_total", "Failed TLS handshakes."),
    counter(
        "forebay_reload_errors_total",
        "Failed reloads of changed certificates or tokens. The server keeps the previous ones.",
    ),
    histogram(
        "forebay_event_loop_delay_seconds",
        "seconds",
        SECONDS,
        "Delay between the due time of a timer and its execution on the threads that read and send. The resolution of \
         timers is 1 ms.",
    )
    .before("the first measurement, 0.1 s after the start"),
    counter("forebay_traces_exported_total", "Spans accepted by the trace collector."),
    counter(
        "forebay_traces_dropped_total",
        "Spans dropped because the export queue was full (`queue`) or the collector did not accept them (`export`).",
    )
    .by(&[DROPPED]),
];

pub(super) const CALLS: &[Metric] = &[
    counter("forebay_grpc_calls_total", "Completed gRPC calls, by method and status code.")
        .by(&[METHOD, CODE])
        .before("the first completed call with this method and code"),
    histogram(
        "forebay_grpc_call_duration_seconds",
        "seconds",
        SECONDS,
        "Time from the start of a gRPC call to the last byte of its response; for a stream, its lifetime.",
    )
    .by(&[METHOD])
    .before("the first completed call of this method"),
    counter("forebay_http_requests_total", "Answered HTTP requests, by route and status code.")
        .by(&[ROUTE, STATUS])
        .before("the first request with this route and code"),
    histogram(
        "forebay_http_request_duration_seconds",
        "seconds",
        SECONDS,
        "Time from an HTTP request to the head of its response.",
    )
    .by(&[ROUTE])
    .before("the first request of this route"),
];

pub(super) const PROCESS: &[Metric] = &[
    sum("process_cpu_seconds_total", "seconds", "CPU time of the process in user and kernel mode."),
    gauge("process_resident_memory_bytes", "Resident memory of the process.").of("bytes"),
    gauge("process_virtual_memory_bytes", "Virtual memory of the process.").of("bytes"),
    gauge("process_open_fds", "Open file descriptors of the process."),
    gauge("process_max_fds", "Limit on open file descriptors; 0 if unlimited."),
    gauge("process_threads", "Threads of the process."),
    gauge("process_start_time_seconds", "Start time of the process, in Unix seconds.").of("seconds"),
];
