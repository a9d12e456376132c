//! Metrics of training sessions and of the time they wait.

use super::{
    build::{gauge, sum},
    labels::{ACTIVITY, BOTTLENECK, DATASET, GPU_STATE, SESSION_ACTIVITY},
    metric::Metric,
};

pub(super) const SESSIONS: &[Metric] = &[
    gauge("forebay_streams", "Open batch streams.").before("the first stream"),
    gauge("forebay_sessions", "Sessions with an open stream.")
        .by(&[DATASET])
        .before("the first session of the dataset"),
    sum(
        "forebay_session_seconds_total",
        "seconds",
        "Time of sessions, by activity. The sum over all activities is the time with an open stream.",
    )
    .by(&[DATASET, SESSION_ACTIVITY])
    .before("the first session of the dataset"),
    sum(
        "forebay_trainer_seconds_total",
        "seconds",
        "Time that trainers report for waiting, computing and copying to the device.",
    )
    .by(&[DATASET, ACTIVITY])
    .before("the first report of a trainer"),
    sum(
        "forebay_trainer_gpu_seconds_total",
        "seconds",
        "Busy and idle time of GPUs, as reported by trainers; busy / (busy + idle) is the GPU utilization.",
    )
    .by(&[DATASET, GPU_STATE])
    .before("the first report of a trainer that measures its GPU"),
    gauge("forebay_bottleneck", "1 for the current bottleneck of all sessions together, 0 for the others.")
        .by(&[BOTTLENECK]),
    sum(
        "forebay_idle_gpu_cost_total",
        "",
        "Cost of GPUs while their trainers waited, in the currency of the setting `gpu_hour_cost`.",
    )
    .without("`--gpu-hour-cost`"),
    gauge(
        "forebay_label_skewed_sessions",
        "Running sessions whose mean label varies between batches by more than chance explains.",
    )
    .by(&[DATASET])
    .before("the first session with a `label_column`"),
];
