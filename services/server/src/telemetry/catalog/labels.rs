//! Labels and their values. No label carries a key, file, job, session or other value chosen by callers, which bounds the
//! number of series.

use super::metric::{Label, Values};

const fn one_of(key: &'static str, values: &'static [&'static str]) -> Label {
    Label { key, values: Values::OneOf(values) }
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

pub(super) const METHOD: Label = one_of(
    "method",
    &[
        "DoAction",
        "DoExchange",
        "DoGet",
        "DoPut",
        "GetFlightInfo",
        "GetSchema",
        "Handshake",
        "ListActions",
        "ListFlights",
        "Lookup",
        "PollFlightInfo",
        "health",
        "other",
    ],
);

pub(super) const CODE: Label = one_of("code", &forebay_proto::CODE_NAMES);

pub(super) const SESSION_ACTIVITY: Label = one_of(
    "activity",
    &["compute", "network", "gather", "decode", "storage", "queued", "compute_or_network"],
);
pub(super) const BOTTLENECK: Label = one_of(
    "bottleneck",
    &["compute", "network", "gather", "decode", "storage", "queued", "compute_or_network", "idle", "unknown"],
);
pub(super) const ACTIVITY: Label = one_of("activity", &["wait", "compute", "copy"]);
pub(super) const GPU_STATE: Label = one_of("state", &["busy", "idle"]);
pub(super) const STAGE: Label = one_of("stage", &["storage", "decode", "gather", "send"]);
pub(super) const TIER: Label = one_of("tier", &["memory", "disk"]);
pub(super) const INSERT_REJECTION: Label =
    one_of("reason", &["needed_later", "too_large", "busy", "failing"]);
pub(super) const CACHE_ERROR: Label = one_of(
    "kind",
    &[
        "checksum",
        "length",
        "header",
        "version",
        "foreign",
        "temporary",
        "read",
        "write",
        "no_space",
        "remove",
        "list",
    ],
);
pub(super) const DISK: Label = one_of("tier", &["disk"]);
pub(super) const OPERATION: Label = one_of("operation", &["get", "head", "list", "put"]);
pub(super) const OUTCOME: Label = one_of("outcome", &["ok", "error"]);
pub(super) const FOOTER_SOURCE: Label = one_of("source", &["file", "disk"]);
pub(super) const REQUEST_OUTCOME: Label =
    one_of("outcome", &["answered", "refused", "expired", "cancelled", "failed"]);
pub(super) const CLOSE_REASON: Label =
    one_of("close_reason", &["rows", "bytes", "delay", "deadline", "idle", "drain"]);
pub(super) const EVENT: Label = one_of(
    "kind",
    &[
        "dataset_open",
        "dataset_failed",
        "dataset_changed",
        "session_started",
        "session_ended",
        "session_failed",
        "queue_settings_changed",
        "worker_joined",
        "worker_left",
        "cache_error",
        "reload_failed",
        "draining",
        "bottleneck_changed",
        "label_skew",
    ],
);
pub(super) const DROPPED: Label = one_of("reason", &["queue", "export"]);
