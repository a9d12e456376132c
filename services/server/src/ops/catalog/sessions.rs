//! The streams of training, and what their trainers wait for.

use super::{
    Metric,
    build::{gauge, sum},
    labels::{ACTIVITY, BUCKET, DATASET, GPU_STATE, LIMIT},
};

pub(super) const SESSIONS: &[Metric] = &[
    gauge("forebay_streams", "Batch streams that are running.").before("the first stream"),
    gauge("forebay_sessions", "Sessions that are running.").by(&[DATASET]).before("a session of the dataset"),
    sum(
        "forebay_session_seconds_total",
        "seconds",
        "Where the sessions' time went. All buckets together are the time that sessions ran.",
    )
    .by(&[DATASET, BUCKET])
    .before("a session of the dataset"),
    sum("forebay_trainer_seconds_total", "seconds", "What trainers did, as they report it.")
        .by(&[DATASET, ACTIVITY])
        .before("a trainer's first report"),
    sum(
        "forebay_trainer_gpu_seconds_total",
        "seconds",
        "How long the trainers' GPUs were busy and idle, as they report it; busy / (busy + idle) is their utilization.",
    )
    .by(&[DATASET, GPU_STATE])
    .before("a trainer that knows reports it"),
    gauge("forebay_verdict", "1 for what limits training now, 0 for everything else.").by(&[LIMIT]),
    sum(
        "forebay_idle_gpu_cost_total",
        "",
        "What accelerators cost while they waited, in the currency of the setting.",
    )
    .without("`--gpu-hour-cost`"),
    gauge("forebay_label_skewed_sessions", "Sessions whose labels differ from their dataset's.")
        .by(&[DATASET])
        .before("a session that names its label"),
];
