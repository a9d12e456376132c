//! Labels and their values. No label carries a key, file, job, session or other value chosen by callers, which bounds the
//! number of series.

use super::metric::{Label, Values};

/// Declares labels with a fixed set of values. The meaning of a value follows it in parentheses.
macro_rules! labels {
    ($($name:ident = $key:literal: $($value:literal $(($meaning:literal))?)|+;)*) => {
        $(pub(super) const $name: Label = Label {
            key: $key,
            values: Values::OneOf(&[$($value),+]),
            meanings: &[$(concat!("", $($meaning)?)),+],
        };)*
    };
}

const fn of(key: &'static str, what: &'static str) -> Label {
    Label { key, values: Values::Of(what), meanings: &[] }
}

pub(super) const VERSION: Label = of("version", "the version of the server; one value");
pub(super) const DATASET: Label = of("dataset", "names under `[datasets]` in the configuration");
pub(super) const QUEUE: Label = of("queue", "names under `[queues]` in the configuration");
pub(super) const ROUTE: Label =
    of("route", "route templates of the server, such as `/api/v1/queues/{name}`; `other` for unknown paths");
pub(super) const STATUS: Label = of("code", "HTTP status codes");
pub(super) const CODE: Label =
    Label { key: "code", values: Values::OneOf(&forebay_proto::CODE_NAMES), meanings: &[] };

labels! {
    METHOD = "method": "DoAction" | "DoExchange" | "DoGet" | "DoPut" | "GetFlightInfo" | "GetSchema"
        | "Handshake" | "ListActions" | "ListFlights" | "Lookup" ("of `forebay.v1.Online`") | "ModelInfer" ("of `inference.GRPCInferenceService`, as the next five") | "ModelMetadata" | "ModelReady" | "ServerLive"
        | "ServerMetadata" | "ServerReady" | "PollFlightInfo"
        | "health" ("methods of `grpc.health.v1.Health`") | "other" ("unknown methods");
    SESSION_ACTIVITY = "activity": "compute" ("the trainer computes")
        | "network" ("the trainer waits for a batch in transit")
        | "gather" ("the trainer waits while rows are gathered into its batch")
        | "decode" ("the trainer waits while rows of its batch are decoded")
        | "storage" ("the trainer waits for reads from the store or the disk cache")
        | "queued" ("the trainer waits while its work is queued for a thread or for memory")
        | "compute_or_network" ("the trainer does not report; it computes or waits for the network");
    BOTTLENECK = "bottleneck": "compute" ("the trainers' own computation")
        | "network" ("the network between server and trainers")
        | "gather" ("gathering rows into batches")
        | "decode" ("decoding")
        | "storage" ("the store or the disk cache")
        | "queued" ("waiting for a thread or for memory")
        | "compute_or_network" ("computation or network; a trainer does not report which")
        | "idle" ("no trainer is active")
        | "unknown" ("too little data, or two consecutive time windows that disagree");
    ACTIVITY = "activity": "wait" ("waiting for a batch") | "compute" ("computing")
        | "copy" ("copying batches to the device");
    GPU_STATE = "state": "busy" ("in use") | "idle" ("not in use");
    STAGE = "stage": "storage" ("reading from the store or the disk cache") | "decode" ("decoding bytes into rows")
        | "gather" ("gathering rows into batches");
    PURPOSE = "purpose": "window" ("rows for streams, or for loading on request")
        | "count" ("counting of the rows or groups that a request selects") | "label" ("sampling of the mean label")
        | "index" ("keys of a lookup index");
    TIER = "tier": "memory" ("decoded blocks in memory") | "disk" ("decoded columns in `--cache-dir`");
    INSERT_REJECTION = "reason": "needed_later" ("the tier is full of values that are needed sooner or in use")
        | "too_large" ("the value exceeds the capacity") | "busy" ("the write queue is full")
        | "failing" ("the disk failed, now or recently")
        | "recovering" ("the files of an earlier server are being found");
    CACHE_ERROR = "kind": "checksum" ("the content of a file differs from what was written")
        | "length" ("the length of a file differs from its header")
        | "header" ("the header of a file is malformed or damaged")
        | "version" ("a file has another version of the format")
        | "foreign" ("a file or folder does not belong to the cache")
        | "temporary" ("a write was interrupted when the server ended")
        | "read" ("a read failed") | "write" ("a write failed") | "no_space" ("the disk is full")
        | "remove" ("a file could not be deleted") | "list" ("a folder could not be listed, or the size of one of its files could not be determined")
        | "folder" ("the folder was removed while the server uses it, or another server uses it");
    DISK = "tier": "disk" ("decoded columns in `--cache-dir`");
    OPERATION = "operation": "get" ("read") | "head" ("read of metadata") | "list" ("listing of a dataset")
        | "put" ("write");
    OUTCOME = "outcome": "ok" ("succeeded") | "error" ("failed after all retries, or the object does not exist");
    FOOTER_SOURCE = "source": "file" ("the dataset file") | "disk" ("the cache directory");
    REQUEST_OUTCOME = "outcome": "answered" ("with rows") | "refused" ("on arrival")
        | "displaced" ("it had low priority and made room for others")
        | "expired" ("the deadline or `max_time_in_queue` passed, or there was no worker for half of the time") | "cancelled" ("by the caller")
        | "failed" ("the worker failed or disconnected, or the features could not be looked up");
    CLOSE_REASON = "close_reason": "rows" ("the batch has `max_batch_rows` rows, or the next request does not fit")
        | "bytes" ("the batch has `max_batch_bytes` bytes, or the next request does not fit")
        | "delay" ("the first request has waited for `max_batch_delay`")
        | "deadline" ("a longer wait would miss the deadline of a request")
        | "idle" ("a worker is free, and waiting longer is expected to cost more latency than it saves")
        | "drain" ("the server is shutting down")
        | "alone" ("the requests are sent apart from others, because a batch with them failed, or other requests of their token failed");
    EVENT = "kind": "dataset_open" ("a dataset was opened")
        | "dataset_failed" ("a dataset cannot be opened or checked for changes")
        | "dataset_changed" ("a dataset has a new snapshot")
        | "session_started" ("a session opened its first stream")
        | "session_ended" ("a session sent all batches, or its client disconnected")
        | "session_failed" ("a session ended with an error")
        | "queue_settings_changed" ("the settings of a queue were changed at run time")
        | "worker_joined" ("a worker connected to a queue") | "worker_left" ("a worker disconnected from a queue")
        | "worker_suspended" ("a worker failed batches that other workers computed")
        | "worker_overdue" ("a worker has not answered a batch in several times its predicted time")
        | "worker_answering" ("a worker answered after it was overdue")
        | "lookups_outdated" ("the current snapshot of a dataset cannot be loaded for lookups, or lookups follow the dataset again")
        | "cache_error" ("the disk cache has damaged values, failed reads or failed writes")
        | "reload_failed" ("changed certificates or tokens are invalid") | "draining" ("the server is shutting down")
        | "member_joined" ("another server of the cluster answered") | "member_left" ("a server is no longer a member of the cluster")
        | "member_draining" ("a member started or stopped draining")
        | "member_refused" ("the server at an address in the member list cannot be a member, for example because it has another state")
        | "member_list_held" ("a new member list lacks more than half of the previous addresses and is not adopted yet")
        | "member_list_adopted" ("a member list that was not adopted before is adopted, or the member list can be read again")
        | "member_list_failed" ("the member list can't be read or is too long")
        | "bottleneck_changed" ("the bottleneck of the trainers changed")
        | "label_skew" ("the mean label of a session's batches varies by more than chance explains");
    RESOURCE = "resource": "streams" ("open streams of training batches")
        | "exchanges" ("open DoExchange streams for lookups and for requests to queues")
        | "workers" ("connected workers of queues") | "calls" ("other running gRPC calls")
        | "subscribers" ("subscribers of `/api/v1/live`")
        | "incoming_bytes" ("bytes of requests that are being received")
        | "reply_bytes" ("bytes of replies of workers that are being received; `limits.max_incoming_bytes` is also their limit")
        | "unsent_bytes" ("bytes of answers that are not sent completely, and of requests that wait in batch queues");
    MEMBER_STATE = "state": "ready" ("the server answers, and new streams are placed on it")
        | "draining" ("the server is shutting down, and no new streams are placed on it")
        | "silent" ("the server is a member, but did not answer the last `hello`")
        | "refused" ("the server at an address in the member list cannot be a member, for example because it has another state");
    CANDIDATE = "candidate": "first" ("the placement assigns the stream to this server")
        | "other" ("the placement assigns the stream to another server of the cluster");
    CONNECTION_LIMIT = "limit": "peer" ("too many connections from one client host") | "all" ("too many connections in total");
    DROPPED = "reason": "queue" ("the export queue was full") | "export" ("the collector did not accept the span");
}
