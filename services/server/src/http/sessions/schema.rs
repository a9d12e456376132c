//! JSON of sessions, verdicts and time by bucket.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Instant, SystemTime},
};

use forebay_loader::WindowLoad;
use forebay_stall::{Bucket, Buckets, Interval};
use serde::Serialize;
use utoipa::ToSchema;

use super::advice::{Advice, advice};
use crate::{
    events::unix_seconds,
    sessions::{Session, WINDOW},
    stalls::{Facts, Judgement, Observer, summary},
};

/// Bottleneck of one or several trainers.
#[derive(Serialize, ToSchema)]
pub(in crate::http) struct Verdict {
    /// Stage or activity that limits the throughput of the trainers.
    #[schema(value_type = Bottleneck)]
    bottleneck: forebay_stall::Bottleneck,
    /// Severity of the wait.
    #[schema(value_type = Level)]
    level: forebay_stall::Level,
    /// The verdict in one or two sentences.
    summary: String,
    /// Confidence in the bottleneck.
    #[schema(value_type = Confidence)]
    confidence: forebay_stall::Confidence,
    /// Fraction of the time that the trainers compute, 0 to 1; null if one of them does not report.
    #[schema(required)]
    compute_fraction: Option<f64>,
    /// Fraction of the time that the trainers wait, 0 to 1. A lower bound if a trainer does not report; null without trainers.
    #[schema(required)]
    wait_fraction: Option<f64>,
    /// Fraction of the time in each bucket, 0 to 1, by bucket name. The buckets are the values of `Bottleneck` except `idle` and
    /// `unknown`. The fractions sum to 1, or are all 0 without trainers.
    bucket_fractions: BTreeMap<&'static str, f64>,
    /// Effect of removing the bottleneck; null if the trainers are the bottleneck, if the bottleneck is unknown, if the trainers do hardly
    /// anything but wait for it, and while a store does not answer.
    #[schema(required, value_type = Option<WhatIf>)]
    what_if: Option<forebay_stall::WhatIf>,
    /// Recommended changes, most promising first; empty if there are none.
    advice: Vec<Advice>,
    /// Length of the judged time, in seconds.
    window_seconds: f64,
    /// Number of judged sessions.
    sessions: usize,
    /// Number of judged sessions that are input-bound by themselves.
    input_bound_sessions: usize,
    /// Dataset whose store does not answer while trainers wait for it; null if every store answers.
    #[schema(required)]
    silent_dataset: Option<String>,
    /// Time since the last answer of that store, in seconds; null if every store answers.
    #[schema(required)]
    silent_seconds: Option<f64>,
}

/// Stage or activity that limits the throughput of the trainers. `compute`: the trainers' own computation; `network`: the network
/// between server and trainers; `gather`: gathering rows into batches; `decode`: decoding Parquet data; `storage`: reads from the
/// store or the disk cache; `queued`: waiting for a thread or for memory of the server; `compute_or_network`: computation or
/// network, because a trainer does not report which; `idle`: no trainer is active; `unknown`: too little data, or the two halves
/// of the judged time have different bottlenecks.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "only its description is used")]
pub(super) enum Bottleneck {
    Compute,
    Network,
    Gather,
    Decode,
    Storage,
    Queued,
    ComputeOrNetwork,
    Idle,
    Unknown,
}

/// Severity of the wait. `none`: the wait fraction is below 5%, or no trainer is active; `moderate`: it is 5% to 20%;
/// `input_bound`: it is above 20%.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "only its description is used")]
enum Level {
    None,
    Moderate,
    InputBound,
}

/// Confidence in a verdict. `none`: no trainer is active, there is too little data, or the two halves of the judged time have
/// different bottlenecks; `low`: both halves agree, but the bottleneck accounts for less than half of the wait; `high`: both halves
/// agree, and the bottleneck accounts for at least half of the wait or the wait fraction is below 5%.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "only its description is used")]
enum Confidence {
    None,
    Low,
    High,
}

/// Effect of removing the bottleneck.
#[derive(ToSchema)]
#[expect(dead_code, reason = "only its description is used")]
struct WhatIf {
    /// Bottleneck that is removed.
    removed: Bottleneck,
    /// Upper bound of the speedup, as a factor of at least 1.
    speedup: f64,
    /// Bottleneck after the removal.
    next_bottleneck: Bottleneck,
}

impl Verdict {
    /// Describes a verdict. `facts` are those of the judged sessions.
    pub(in crate::http) fn new(judgement: &Judgement, facts: impl FnOnce() -> Facts) -> Self {
        let Judgement { verdict, time, sessions, input_bound, silent_dataset } = judgement;
        Self {
            bottleneck: verdict.bottleneck,
            level: verdict.level,
            summary: summary(judgement),
            confidence: verdict.confidence,
            compute_fraction: verdict.compute_fraction,
            wait_fraction: verdict.wait_fraction,
            bucket_fractions: by_bucket(|bucket| time.fraction(bucket)),
            what_if: verdict.what_if,
            advice: advice(verdict, facts),
            input_bound_sessions: *input_bound,
            silent_dataset: silent_dataset.clone(),
            silent_seconds: verdict.silence.map(|silence| silence.as_secs_f64()),
            window_seconds: WINDOW.as_secs_f64() * 2.0,
            sessions: *sessions,
        }
    }
}

/// One trainer with its batch streams of one dataset.
#[derive(Serialize, ToSchema)]
#[schema(as = Session)]
pub(in crate::http) struct SessionInfo {
    /// Identifier of the session, 16 hexadecimal digits.
    id: String,
    /// Job name from the request; empty if the request has none.
    job_name: String,
    /// Name of the dataset.
    dataset: String,
    /// Identifier of the snapshot that the session reads.
    snapshot: String,
    /// Rank of the trainer, from 0 to `world_size - 1`.
    rank: u64,
    /// Number of ranks of the job.
    world_size: u64,
    /// Number of parallel streams per rank.
    lanes: u64,
    /// Start of the session, in Unix seconds.
    started_at: f64,
    /// Total time with at least one open stream, in seconds.
    wall_seconds: f64,
    /// Epoch of the latest batch.
    epoch: u64,
    /// Step of the latest batch within its epoch.
    step: u64,
    /// Number of batches sent.
    batches: u64,
    /// Number of batches that the streams of the session will send in total.
    batches_total: u64,
    /// Fraction of `batches_total` that was sent, 0 to 1.
    progress: f64,
    /// Estimated time to the end of all streams, in seconds; null if no batch was sent in the last 10 seconds.
    #[schema(required)]
    eta_seconds: Option<f64>,
    /// Number of rows sent.
    rows: u64,
    /// Number of bytes of batch bodies sent.
    bytes: u64,
    /// Rows per second, averaged over the last 10 seconds.
    rows_per_second: f64,
    /// Bytes per second, averaged over the last 10 seconds.
    bytes_per_second: f64,
    /// Shuffle windows that the streams wait for, while they are loaded; null if the streams wait for none. It is the first window if
    /// `batches` is 0.
    #[schema(required)]
    loading: Option<WindowLoadInfo>,
    /// True if the client reports how it spends its time.
    client_reports: bool,
    /// Latest report of the client; null if it does not report.
    #[schema(required)]
    client: Option<ClientInfo>,
    /// Time in each bucket, in seconds, by bucket name as in `Verdict.bucket_fractions`. The values sum to `wall_seconds`.
    seconds: BTreeMap<&'static str, f64>,
    /// Bottleneck of this session.
    verdict: Verdict,
    /// Distribution of the label over the batches; null if the request has no `label_column`.
    #[schema(required)]
    label: Option<LabelInfo>,
}

/// Progress of loading shuffle windows into memory.
#[derive(Serialize, ToSchema)]
#[schema(as = WindowLoad)]
struct WindowLoadInfo {
    /// Number of blocks of the windows.
    blocks: u64,
    /// Number of blocks in memory.
    blocks_done: u64,
    /// Estimated size of the windows in memory, in bytes.
    bytes: u64,
    /// Size of the blocks in memory, in bytes.
    bytes_done: u64,
    /// True if the windows wait for memory that other streams use.
    waits_for_memory: bool,
}

impl From<WindowLoad> for WindowLoadInfo {
    fn from(load: WindowLoad) -> Self {
        let WindowLoad { blocks, blocks_done, bytes, bytes_done, waits_for_memory } = load;
        Self { blocks, blocks_done, bytes, bytes_done, waits_for_memory }
    }
}

/// Activity of a client in the interval of its latest report.
#[derive(Serialize, ToSchema)]
#[schema(as = Client)]
struct ClientInfo {
    /// Fraction of the time spent waiting for batches, 0 to 1.
    wait_fraction: f64,
    /// Fraction of the time spent computing, 0 to 1.
    compute_fraction: f64,
    /// Fraction of the time spent copying batches to the device, 0 to 1.
    copy_fraction: f64,
    /// Utilization of the client's GPU, 0 to 1; null if the client cannot measure it.
    #[schema(required)]
    gpu_utilization: Option<f64>,
}

/// Distribution of the label over the batches of a session.
#[derive(Serialize, ToSchema)]
#[schema(as = Label)]
struct LabelInfo {
    /// Name of the label column.
    column: String,
    /// Number of batches examined.
    batches: u64,
    /// Mean of the label over these batches; null without labels.
    #[schema(required)]
    mean: Option<f64>,
    /// Mean of the label over the dataset; null while unknown.
    #[schema(required)]
    dataset_mean: Option<f64>,
    /// Standard deviation of the batch means divided by that of batches of randomly drawn rows, 1 for shuffled data; null with fewer
    /// than 32 batches and for a constant label.
    #[schema(required)]
    std_ratio: Option<f64>,
    /// True if `std_ratio` is above 3: the data is probably not shuffled.
    skewed: bool,
}

impl SessionInfo {
    /// Describes a session as of `now`.
    pub(in crate::http) fn new(session: &Arc<Session>, now: Instant, observer: &Observer) -> Self {
        let alone = std::slice::from_ref(session);
        let judgement = observer.judge(alone, now);
        let seconds = session.seconds(now);
        let (sent, (batches_total, (epoch, step))) = (session.sent(), session.progress());
        let (batches_per_second, rows_per_second, bytes_per_second) = session.rates();
        let left = batches_total.saturating_sub(sent.batches) as f64;
        let train = &session.train;
        let report = session.last_report();
        Self {
            id: format!("{:016x}", session.id),
            job_name: train.job_name.clone(),
            dataset: train.dataset.clone(),
            snapshot: train.snapshot.clone(),
            rank: train.rank(),
            world_size: train.world_size.unwrap_or(1),
            lanes: train.lanes.unwrap_or(1),
            started_at: unix_seconds(session.started_at),
            wall_seconds: seconds.sum().as_secs_f64(),
            epoch,
            step,
            batches: sent.batches,
            batches_total,
            progress: if batches_total > 0 { sent.batches as f64 / batches_total as f64 } else { 0.0 },
            eta_seconds: (batches_per_second > 0.0).then(|| left / batches_per_second),
            rows: sent.rows,
            bytes: sent.bytes,
            rows_per_second,
            bytes_per_second,
            loading: session.loading().map(WindowLoadInfo::from),
            client_reports: report.is_some(),
            client: report.map(|report| {
                let fraction = |part: f64| if report.seconds > 0.0 { part / report.seconds } else { 0.0 };
                ClientInfo {
                    wait_fraction: fraction(report.wait_seconds),
                    compute_fraction: fraction(report.compute_seconds),
                    copy_fraction: fraction(report.copy_seconds),
                    gpu_utilization: report.gpu_utilization,
                }
            }),
            seconds: by_bucket(|bucket| seconds[bucket].as_secs_f64()),
            verdict: Verdict::new(&judgement, || observer.facts(alone)),
            label: (!train.label_column.is_empty()).then(|| {
                let skew = session.skew();
                LabelInfo {
                    column: train.label_column.clone(),
                    batches: skew.batches(),
                    mean: skew.mean(),
                    dataset_mean: skew.dataset_mean(),
                    std_ratio: skew.std_ratio(),
                    skewed: skew.is_skewed(),
                }
            }),
        }
    }
}

/// Time of trainers by bucket, one value per interval.
#[derive(Serialize, ToSchema)]
pub(in crate::http) struct Stalls {
    /// Length of an interval, in seconds.
    interval_seconds: f64,
    /// End of each interval, in Unix seconds.
    times: Vec<f64>,
    /// Time of all trainers together in each interval, in seconds.
    wall: Vec<f64>,
    /// Part of `wall` in each bucket, in seconds, by bucket name as in `Verdict.bucket_fractions`.
    seconds: BTreeMap<&'static str, Vec<f64>>,
    /// Fraction of `wall` spent computing, 0 to 1; null for an interval in which a trainer does not report or none is active.
    compute_fraction: Vec<Option<f64>>,
}

impl Stalls {
    /// Adds up several histories of the same seconds.
    pub(in crate::http) fn new(histories: impl IntoIterator<Item = Vec<Interval>>) -> Self {
        let mut sums: BTreeMap<Instant, Buckets> = BTreeMap::new();
        let mut ends: BTreeMap<u64, Instant> = BTreeMap::new();
        for interval in histories.into_iter().flatten() {
            // The seconds of different trainers begin at different times.
            let second = unix_seconds(system_time(interval.end)).round() as u64;
            let end = *ends.entry(second).or_insert(interval.end);
            *sums.entry(end).or_default() += interval.buckets;
        }
        let column = |of: &dyn Fn(&Buckets) -> f64| sums.values().map(of).collect::<Vec<f64>>();
        let compute_fraction = |buckets: &Buckets| {
            let is_known = !buckets.sum().is_zero() && buckets[Bucket::ComputeOrNetwork].is_zero();
            is_known.then(|| buckets.fraction(Bucket::Compute))
        };
        Self {
            interval_seconds: 1.0,
            times: ends.keys().map(|second| *second as f64).collect(),
            wall: column(&|buckets| buckets.sum().as_secs_f64()),
            seconds: by_bucket(|bucket| column(&|buckets| buckets[bucket].as_secs_f64())),
            compute_fraction: sums.values().map(compute_fraction).collect(),
        }
    }
}

/// Maps the name of each bucket to a value.
fn by_bucket<T>(value: impl Fn(Bucket) -> T) -> BTreeMap<&'static str, T> {
    Bucket::ALL.into_iter().map(|bucket| (bucket.name(), value(bucket))).collect()
}

/// Converts a past instant to system time.
fn system_time(time: Instant) -> SystemTime {
    let now = SystemTime::now();
    now.checked_sub(time.elapsed()).unwrap_or(now)
}
