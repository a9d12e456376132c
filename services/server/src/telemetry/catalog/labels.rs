//! Labels and their values. No label carries a key, file, job, session or other value chosen by callers, which bounds the
//! number of series.

use super::metric::{Label, Values};

/// Declares labels with a fixed set of values.
macro_rules! labels {
    ($($name:ident = $key:literal: $($value:literal)|+;)*) => {
        $(pub(super) const $name: Label = Label { key: $key, values: Values::OneOf(&[$($value),+]) };)*
    };
}

const fn of(key: &'static str, what: &'static str) -> Label {
    Label { key, values: Values::Of(what) }
}

pub(super) const VERSION: Label = of("version", "the version of the server; one value");
pub(super) const DATASET: Label = of("dataset", "names under `[datasets]` in the configuration");
pub(super) const QUEUE: Label = of("queue", "names under `[queues]` in the configuration");
pub(super) const ROUTE: Label =
    of("route", "route templates of the server, such as `/api/v1/queues/{name}`; `other` for unknown paths");
pub(super) const STATUS: Label = of("code", "HTTP status codes");
pub(super) const CODE: Label = Label { key: "code", values: Values::OneOf(&forebay_proto::CODE_NAMES) };

labels! {
    METHOD = "method": "DoAction" | "DoExchange" | "DoGet" | "DoPut" | "GetFlightInfo" | "GetSchema"
        | "Handshake" | "ListActions" | "ListFlights" | "Lookup" | "PollFlightInfo" | "health" | "other";
    SESSION_ACTIVITY = "activity": "compute" | "network" | "gather" | "decode" | "storage" | "queued"
        | "compute_or_network";
    BOTTLENECK = "bottleneck": "compute" | "network" | "gather" | "decode" | "storage" | "queued"
        | "compute_or_network" | "idle" | "unknown";
    ACTIVITY = "activity": "wait" | "compute" | "copy";
    GPU_STATE = "state": "busy" | "idle";
    STAGE = "stage": "storage" | "decode" | "gather" | "send";
    TIER = "tier": "memory" | "disk";
    INSERT_REJECTION = "reason": "needed_later" | "too_large" | "busy" | "failing";
    CACHE_ERROR = "kind": "checksum" | "length" | "header" | "version" | "foreign" | "temporary" | "read"
        | "write" | "no_space" | "remove" | "list";
    DISK = "tier": "disk";
    OPERATION = "operation": "get" | "head" | "list" | "put";
    OUTCOME = "outcome": "ok" | "error";
    FOOTER_SOURCE = "source": "file" | "disk";
    REQUEST_OUTCOME = "outcome": "answered" | "refused" | "expired" | "cancelled" | "failed";
    CLOSE_REASON = "close_reason": "rows" | "bytes" | "delay" | "deadline" | "idle" | "drain";
    EVENT = "kind": "dataset_open" | "dataset_failed" | "dataset_changed" | "session_started"
        | "session_ended" | "session_failed" | "queue_settings_changed" | "worker_joined" | "worker_left"
        | "cache_error" | "reload_failed" | "draining" | "bottleneck_changed" | "label_skew";
    DROPPED = "reason": "queue" | "export";
}
