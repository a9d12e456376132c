//! What the API tells of sessions and their time.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant, SystemTime},
};

use forebay_stall::{Bucket, Buckets, Confidence, Interval, Level, Limit, Verdict, WhatIf};
use serde::Serialize;
use utoipa::ToSchema;

use super::words::{Advice, Facts, sentence};
use crate::sessions::{Session, WINDOW};

/// What holds trainers back, how sure that is, and what to do.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = Verdict)]
pub(crate) struct VerdictAnswer {
    /// What holds them back.
    pub(crate) limit: Limit,
    /// How much they wait.
    pub(crate) level: Level,
    /// It in words.
    pub(crate) sentence: String,
    /// How sure it is.
    pub(crate) confidence: Confidence,
    /// The part of the time in which they compute; null if they don't report.
    #[schema(required)]
    pub(crate) utilization: Option<f64>,
    /// The part in which they wait, as far as it is known.
    #[schema(required)]
    pub(crate) stall: Option<f64>,
    /// The part of the time in each bucket.
    pub(crate) shares: BTreeMap<&'static str, f64>,
    /// What removing the limit would gain.
    #[schema(required)]
    pub(crate) what_if: Option<WhatIf>,
    /// Settings to change.
    pub(crate) advice: Vec<Advice>,
    /// By how much time it was judged.
    pub(crate) window_seconds: f64,
    /// Trainers that it is about.
    pub(crate) sessions: usize,
}

impl VerdictAnswer {
    pub(crate) fn new(verdict: &Verdict, judged: &Buckets, sessions: usize, facts: &Facts) -> Self {
        Self {
            limit: verdict.limit,
            level: verdict.level,
            sentence: sentence(verdict, sessions),
            confidence: verdict.confidence,
            utilization: verdict.utilization,
            stall: verdict.stall,
            shares: named(|bucket| judged.share(bucket)),
            what_if: verdict.what_if,
            advice: facts.advice(verdict),
            window_seconds: WINDOW.as_secs_f64() * 2.0,
            sessions,
        }
    }
}

/// One trainer.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = Session)]
pub(crate) struct SessionAnswer {
    /// 16 hexadecimal digits.
    pub(crate) id: String,
    /// As its request names it.
    pub(crate) job: String,
    pub(crate) dataset: String,
    pub(crate) snapshot: String,
    pub(crate) rank: u64,
    pub(crate) world_size: u64,
    pub(crate) lanes: u64,
    /// Unix seconds.
    pub(crate) started_at: f64,
    /// Seconds in which it had a stream.
    pub(crate) wall_seconds: f64,
    /// Of its latest batch.
    pub(crate) epoch: u64,
    pub(crate) step: u64,
    pub(crate) batches: u64,
    /// That its streams will send in all.
    pub(crate) batches_total: u64,
    pub(crate) progress: f64,
    #[schema(required)]
    pub(crate) eta_seconds: Option<f64>,
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
    /// Over the last ten seconds.
    pub(crate) rows_per_second: f64,
    pub(crate) bytes_per_second: f64,
    /// Whether its client reports.
    pub(crate) reports: bool,
    #[schema(required)]
    pub(crate) client: Option<ClientAnswer>,
    /// Seconds in each bucket; their sum is `wall_seconds`.
    pub(crate) seconds: BTreeMap<&'static str, f64>,
    pub(crate) verdict: VerdictAnswer,
    #[schema(required)]
    pub(crate) label: Option<LabelAnswer>,
}

/// Parts of the time, as its client reported them last.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = Client)]
pub(crate) struct ClientAnswer {
    pub(crate) wait: f64,
    pub(crate) compute: f64,
    pub(crate) copy: f64,
    /// Of its GPU, where the client can tell.
    #[schema(required)]
    pub(crate) gpu_utilization: Option<f64>,
}

/// How the label wanders from batch to batch.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = Label)]
pub(crate) struct LabelAnswer {
    pub(crate) column: String,
    /// That were looked at.
    pub(crate) batches: u64,
    #[schema(required)]
    pub(crate) mean: Option<f64>,
    #[schema(required)]
    pub(crate) dataset_mean: Option<f64>,
    /// How many times as much the means of batches vary as those of random rows.
    #[schema(required)]
    pub(crate) spread: Option<f64>,
    /// Whether that is far more than chance makes it.
    pub(crate) skewed: bool,
}

impl SessionAnswer {
    pub(crate) fn new(session: &Session, now: Instant, facts: &Facts) -> Self {
        let (verdict, judged) = session.verdict(now);
        let seconds = session.seconds(now);
        let (sent, batches_total, (epoch, step)) = (session.sent(), session.batches_total(), session.at());
        let (batches_per_second, rows_per_second, bytes_per_second) = session.rates();
        let left = batches_total.saturating_sub(sent.batches) as f64;
        let train = &session.train;
        let report = session.last_report();
        Self {
            id: format!("{:016x}", session.id),
            job: train.job.clone(),
            dataset: train.dataset.clone(),
            snapshot: train.snapshot.clone(),
            rank: train.rank(),
            world_size: train.world_size.unwrap_or(1),
            lanes: train.lanes.unwrap_or(1),
            started_at: unix(session.started_at),
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
            reports: report.is_some(),
            client: report.map(|report| {
                let share = |part: f64| if report.seconds > 0.0 { part / report.seconds } else { 0.0 };
                ClientAnswer {
                    wait: share(report.wait_seconds),
                    compute: share(report.compute_seconds),
                    copy: share(report.copy_seconds),
                    gpu_utilization: report.gpu_utilization,
                }
            }),
            seconds: named(|bucket| seconds[bucket].as_secs_f64()),
            verdict: VerdictAnswer::new(&verdict, &judged, 1, facts),
            label: (!train.label.is_empty()).then(|| {
                let skew = session.skew();
                LabelAnswer {
                    column: train.label.clone(),
                    batches: skew.batches(),
                    mean: skew.mean(),
                    dataset_mean: skew.dataset_mean(),
                    spread: skew.spread(),
                    skewed: skew.is_skewed(),
                }
            }),
        }
    }
}

/// Where time went, interval by interval.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = Stalls)]
pub(crate) struct StallsAnswer {
    /// Length of an interval.
    pub(crate) interval_seconds: f64,
    /// When each ended, in Unix seconds.
    pub(crate) times: Vec<f64>,
    /// Seconds of all trainers in it.
    pub(crate) wall: Vec<f64>,
    /// Of these, those in each bucket.
    pub(crate) seconds: BTreeMap<&'static str, Vec<f64>>,
    /// The part in which they computed; null if one of them doesn't report.
    pub(crate) utilization: Vec<Option<f64>>,
}

impl StallsAnswer {
    /// Of several histories of the same seconds, added up.
    pub(crate) fn new(histories: impl IntoIterator<Item = Vec<Interval>>) -> Self {
        let mut sums: BTreeMap<Instant, Buckets> = BTreeMap::new();
        let mut ends: BTreeMap<u64, Instant> = BTreeMap::new();
        for interval in histories.into_iter().flatten() {
            // Histories of different trainers have seconds that begin at different times.
            let second = unix(at(interval.end)).round() as u64;
            let end = *ends.entry(second).or_insert(interval.end);
            *sums.entry(end).or_default() += interval.buckets;
        }
        let column = |of: &dyn Fn(&Buckets) -> f64| sums.values().map(of).collect::<Vec<f64>>();
        let utilization = |buckets: &Buckets| {
            let is_known = !buckets.sum().is_zero() && buckets[Bucket::Downstream].is_zero();
            is_known.then(|| buckets.share(Bucket::Consumer))
        };
        Self {
            interval_seconds: 1.0,
            times: ends.keys().map(|second| *second as f64).collect(),
            wall: column(&|buckets| buckets.sum().as_secs_f64()),
            seconds: named(|bucket| column(&|buckets| buckets[bucket].as_secs_f64())),
            utilization: sums.values().map(utilization).collect(),
        }
    }
}

/// Something of every bucket, by its name.
fn named<T>(of: impl Fn(Bucket) -> T) -> BTreeMap<&'static str, T> {
    Bucket::ALL.into_iter().map(|bucket| (bucket.name(), of(bucket))).collect()
}

/// What a clock on the wall showed at a time that is past.
fn at(time: Instant) -> SystemTime {
    let now = SystemTime::now();
    now.checked_sub(time.elapsed()).unwrap_or(now)
}

/// Unix seconds.
pub(crate) fn unix(time: SystemTime) -> f64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs_f64()
}
