//! Decision on the bottleneck, and the speedup from removing it.

use std::time::Duration;

use serde::Serialize;

use crate::bucket::{Bucket, Buckets};

/// Wait fraction below which the trainer is the bottleneck.
const TRAINER_BOUND: f64 = 0.05;
/// Wait fraction above which the job is input-bound.
const INPUT_BOUND: f64 = 0.20;
/// Fraction of the wait that a stage needs for a verdict of high confidence.
const CAUSE: f64 = 0.5;
/// Fraction of a window that must be accounted for.
const FULL: f64 = 0.8;
/// Number of batches in both windows that replaces a complete window.
const ENOUGH_BATCHES: u64 = 200;
/// Smallest fraction of the time, without the bottleneck, from which a speedup is estimated. Below it, the trainers do so little else that
/// their own speed is unknown.
const LEAST_REST: f64 = 0.02;
/// Time without an answer after which a store counts as silent.
pub const SILENT_AFTER: Duration = Duration::from_secs(3);

/// Input of [`judge`]: two consecutive windows of the same length.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evidence {
    /// Time in the newer window, of one or several trainers.
    pub recent: Buckets,
    /// Time in the older window.
    pub before: Buckets,
    /// Length of a window.
    pub window: Duration,
    /// Number of trainers.
    pub sessions: usize,
    /// Number of batches sent in both windows.
    pub batches: u64,
}

/// Stage or activity that limits the throughput of the trainers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bottleneck {
    /// The trainers' own computation.
    Compute,
    /// The network between server and trainers.
    Network,
    /// Gathering rows into batches.
    Gather,
    /// Decoding.
    Decode,
    /// The store or the disk cache.
    Storage,
    /// Waiting for a thread or for memory.
    Queued,
    /// Computation or network; a trainer does not report which.
    ComputeOrNetwork,
    /// No trainer is active.
    Idle,
    /// Too little data, or two windows that disagree.
    Unknown,
}

/// Severity of the wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// The wait fraction is below 5%.
    None,
    /// The wait fraction is between 5% and 20%.
    Moderate,
    /// The wait fraction is above 20%.
    InputBound,
}

/// Confidence in a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// Too little data, or two windows that disagree.
    None,
    /// No stage accounts for half of the wait.
    Low,
    /// Two windows agree on a bottleneck that accounts for at least half of the wait.
    High,
}

/// Effect of removing the bottleneck.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct WhatIf {
    /// Bottleneck that is removed.
    pub removed: Bottleneck,
    /// Upper bound of the speedup, as a factor of at least 1.
    pub speedup: f64,
    /// Bottleneck after the removal.
    pub next_bottleneck: Bottleneck,
}

/// Result of [`judge`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Verdict {
    /// Stage or activity that limits the throughput.
    pub bottleneck: Bottleneck,
    /// Severity of the wait.
    pub level: Level,
    /// Confidence in the bottleneck.
    pub confidence: Confidence,
    /// Fraction of the time spent computing, 0 to 1; `None` if a trainer does not report.
    pub compute_fraction: Option<f64>,
    /// Fraction of the time spent waiting, 0 to 1; `None` without active trainers. A lower bound if a trainer does not report,
    /// because its wait for the network is unknown.
    pub wait_fraction: Option<f64>,
    /// Fraction of the time charged to the bottleneck, 0 to 1.
    pub bottleneck_fraction: f64,
    /// Effect of removing the bottleneck; `None` if the trainers themselves are the bottleneck, if they do too little besides waiting for
    /// it, or while a store is silent.
    pub what_if: Option<WhatIf>,
    /// Time for which the store that the trainers wait for has not answered; `None` unless it is silent.
    pub silence: Option<Duration>,
}

impl Bottleneck {
    /// All values: one per bucket, in the order of [`Bucket::ALL`], and then those without a bucket.
    pub const ALL: [Self; 9] = [
        Self::Compute,
        Self::Network,
        Self::Gather,
        Self::Decode,
        Self::Storage,
        Self::Queued,
        Self::ComputeOrNetwork,
        Self::Idle,
        Self::Unknown,
    ];

    /// Returns the name in metrics and in the HTTP API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Unknown => "unknown",
            bucket => Bucket::ALL[bucket as usize].name(),
        }
    }
}

impl From<Bucket> for Bottleneck {
    fn from(bucket: Bucket) -> Self {
        Self::ALL[bucket as usize]
    }
}

/// Returns the bottleneck if both windows agree on it and are sufficiently complete, and [`Bottleneck::Unknown`] otherwise.
pub fn judge(evidence: &Evidence) -> Verdict {
    let recent = judge_window(&evidence.recent);
    if evidence.recent.sum().is_zero() {
        return Verdict {
            bottleneck: Bottleneck::Idle,
            level: Level::None,
            confidence: Confidence::None,
            compute_fraction: None,
            wait_fraction: None,
            bottleneck_fraction: 0.0,
            what_if: None,
            silence: None,
        };
    }
    let required = evidence.window.as_secs_f64() * evidence.sessions as f64 * FULL;
    let is_long =
        [&evidence.recent, &evidence.before].iter().all(|window| window.sum().as_secs_f64() >= required);
    let is_enough = is_long || evidence.batches >= ENOUGH_BATCHES && !evidence.before.sum().is_zero();
    if !is_enough || judge_window(&evidence.before).bottleneck != recent.bottleneck {
        return Verdict {
            bottleneck: Bottleneck::Unknown,
            confidence: Confidence::None,
            what_if: None,
            ..recent
        };
    }
    recent
}

/// Judges one window without regard to its length.
fn judge_window(window: &Buckets) -> Verdict {
    let fraction = |bucket| window.fraction(bucket);
    let unreported = fraction(Bucket::ComputeOrNetwork);
    // Without reports the compute time is unknown, and the wait is what the server observes of it.
    let reported = unreported < TRAINER_BOUND;
    let away = fraction(Bucket::Compute) + unreported;
    let wait_fraction = (1.0 - away).clamp(0.0, 1.0);
    let trainer =
        if fraction(Bucket::Compute) >= unreported { Bucket::Compute } else { Bucket::ComputeOrNetwork };
    let waits = [Bucket::Network, Bucket::Gather, Bucket::Decode, Bucket::Storage, Bucket::Queued];
    let mut cause = Bucket::Network;
    for bucket in waits {
        if fraction(bucket) > fraction(cause) {
            cause = bucket;
        }
    }
    let level = match wait_fraction {
        wait if wait < TRAINER_BOUND => Level::None,
        wait if wait <= INPUT_BOUND => Level::Moderate,
        _ => Level::InputBound,
    };
    let bottleneck = if level == Level::None { trainer } else { cause };
    let bottleneck_fraction = fraction(bottleneck);
    let confidence = match level {
        Level::None => Confidence::High,
        _ if bottleneck_fraction >= wait_fraction * CAUSE => Confidence::High,
        _ => Confidence::Low,
    };
    Verdict {
        bottleneck: bottleneck.into(),
        level,
        confidence,
        compute_fraction: reported.then(|| fraction(Bucket::Compute)),
        wait_fraction: Some(wait_fraction),
        bottleneck_fraction,
        what_if: if level == Level::None { None } else { what_if(window, bottleneck, trainer) },
        silence: None,
    }
}

/// Returns the verdict while a store has not answered for `silence`: if that is longer than [`SILENT_AFTER`] and the trainers wait for
/// storage, the silence is the bottleneck, which is certain and needs no second window. Nothing is predicted, because nothing was measured.
pub fn while_silent(verdict: Verdict, recent: &Buckets, silence: Option<Duration>) -> Verdict {
    let Some(silence) = silence.filter(|silence| *silence >= SILENT_AFTER) else { return verdict };
    let storage = recent.fraction(Bucket::Storage);
    if storage < TRAINER_BOUND {
        return verdict;
    }
    Verdict {
        bottleneck: Bottleneck::Storage,
        confidence: Confidence::High,
        bottleneck_fraction: storage,
        what_if: None,
        silence: Some(silence),
        ..judge_window(recent)
    }
}

/// Returns the effect of removing the time of `removed` from the window; `None` if hardly any other time is left.
fn what_if(window: &Buckets, removed: Bucket, trainer: Bucket) -> Option<WhatIf> {
    let rest = 1.0 - window.fraction(removed);
    if rest < LEAST_REST {
        return None;
    }
    let mut next = trainer;
    for bucket in Bucket::ALL {
        if bucket != removed && window.fraction(bucket) > window.fraction(next) {
            next = bucket;
        }
    }
    Some(WhatIf { removed: removed.into(), speedup: 1.0 / rest, next_bottleneck: next.into() })
}

#[cfg(test)]
mod tests;
