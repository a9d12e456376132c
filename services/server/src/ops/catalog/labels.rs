//! The labels, and why each has few values. None is a key, a file, a job, a session, or anything else that callers choose.

use super::{Label, Values};

const fn one_of(key: &'static str, values: &'static [&'static str]) -> Label {
    Label { key, values: Values::OneOf(values) }
}

const fn of(key: &'static str, what: &'static str) -> Label {
    Label { key, values: Values::Of(what) }
}

pub(super) const VERSION: Label = of("version", "the server's version: one");
pub(super) const DATASET: Label = of("dataset", "the names under `[datasets]` in the settings");
pub(super) const QUEUE: Label = of("queue", "the names under `[queues]` in the settings");
pub(super) const ROUTE: Label = of(
    "route",
    "the server's own routes as they are written, `/api/v1/queues/{name}` say; `other` for the rest",
);
pub(super) const STATUS: Label = of("code", "the HTTP status codes that the server answers with");

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

pub(super) const CODE: Label = one_of(
    "code",
    &[
        "Ok",
        "Cancelled",
        "Unknown",
        "InvalidArgument",
        "DeadlineExceeded",
        "NotFound",
        "AlreadyExists",
        "PermissionDenied",
        "ResourceExhausted",
        "FailedPrecondition",
        "Aborted",
        "OutOfRange",
        "Unimplemented",
        "Internal",
        "Unavailable",
        "DataLoss",
        "Unauthenticated",
    ],
);

pub(super) const BUCKET: Label =
    one_of("bucket", &["consumer", "network", "gather", "decode", "storage", "admission", "downstream"]);
pub(super) const LIMIT: Label = one_of(
    "limit",
    &["consumer", "network", "gather", "decode", "storage", "admission", "downstream", "idle", "unknown"],
);
pub(super) const ACTIVITY: Label = one_of("activity", &["wait", "compute", "copy"]);
pub(super) const GPU_STATE: Label = one_of("state", &["busy", "idle"]);
pub(super) const STAGE: Label = one_of("stage", &["storage", "decode", "gather", "send"]);
pub(super) const TIER: Label = one_of("tier", &["memory", "disk"]);
pub(super) const BYPASS: Label = one_of("reason", &["needed_later", "too_large", "busy", "failing"]);
pub(super) const TROUBLE: Label = one_of(
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
pub(super) const FOOTER: Label = one_of("from", &["file", "disk"]);
pub(super) const ANSWER: Label =
    one_of("outcome", &["answered", "refused", "expired", "cancelled", "failed"]);
pub(super) const CLOSED: Label = one_of("reason", &["rows", "bytes", "delay", "deadline", "idle", "drain"]);
pub(super) const EVENT: Label = one_of(
    "kind",
    &[
        "dataset_open",
        "dataset_failed",
        "dataset_changed",
        "session_started",
        "session_ended",
        "session_failed",
        "queue_tuned",
        "worker_joined",
        "worker_left",
        "cache_trouble",
        "reload_failed",
        "draining",
        "verdict_changed",
        "label_skew",
    ],
);
pub(super) const DROPPED: Label = one_of("reason", &["queue", "export"]);
