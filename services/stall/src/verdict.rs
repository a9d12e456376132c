//! What is the limit, and what would be gained without it.

use std::time::Duration;

use serde::Serialize;
use utoipa::ToSchema;

use crate::{Bucket, Buckets};

/// Below this stall the trainer is the limit.
const TRAINER_BOUND: f64 = 0.05;
/// Above this one the input is.
const INPUT_BOUND: f64 = 0.20;
/// Of the wait, a stage that has this part of it is its cause.
const CAUSE: f64 = 0.5;
/// So much of a window has to be there.
const FULL: f64 = 0.8;
/// ... or so many batches in both.
const ENOUGH_BATCHES: u64 = 200;

/// What is known of some time: two windows of the same length, one after the other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evidence {
    /// The time of the newer one, of one trainer or of several.
    pub recent: Buckets,
    /// ... and of the older one.
    pub before: Buckets,
    /// Length of a window.
    pub window: Duration,
    /// Trainers in it.
    pub sessions: usize,
    /// Batches sent in both.
    pub batches: u64,
}

/// What holds trainers back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// Their own computing.
    Consumer,
    /// The way to them.
    Network,
    /// Putting batches together.
    Gather,
    /// Decoding.
    Decode,
    /// The store, or the cache's disk.
    Storage,
    /// Waiting for a thread or for memory.
    Admission,
    /// Their computing, or the way to them: they don't report.
    Downstream,
    /// There are none.
    Idle,
    /// Too little is known yet.
    Unknown,
}

/// How much they wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Less than 5 % of their time.
    None,
    /// 5 to 20 %.
    Moderate,
    /// More.
    InputBound,
}

/// How sure a verdict is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// Not at all: too little time, or two windows that don't agree.
    None,
    /// No stage has half of the wait.
    Low,
    /// Two windows agree on a stage that has.
    High,
}

/// What removing the limit would do.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, ToSchema)]
pub struct WhatIf {
    /// What is removed.
    pub without: Limit,
    /// So many times as fast at most.
    pub speedup: f64,
    /// What limits then.
    pub then: Limit,
}

/// A verdict.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Verdict {
    /// What holds the trainers back.
    pub limit: Limit,
    /// How much.
    pub level: Level,
    /// How sure that is.
    pub confidence: Confidence,
    /// The part of the time in which they compute; `None` if they don't report.
    pub utilization: Option<f64>,
    /// The part in which they wait. Of those that don't report it is what they wait for at least: the network's part of it is not
    /// known.
    pub stall: Option<f64>,
    /// The part of it in which they wait for the limit.
    pub limit_share: f64,
    /// What removing the limit would do, if it is not the trainer.
    pub what_if: Option<WhatIf>,
}

impl Limit {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Consumer,
        Self::Network,
        Self::Gather,
        Self::Decode,
        Self::Storage,
        Self::Admission,
        Self::Downstream,
        Self::Idle,
        Self::Unknown,
    ];

    /// What it is called in metrics and answers.
    pub fn name(self) -> &'static str {
        match self {
            Self::Consumer => "consumer",
            Self::Network => "network",
            Self::Gather => "gather",
            Self::Decode => "decode",
            Self::Storage => "storage",
            Self::Admission => "admission",
            Self::Downstream => "downstream",
            Self::Idle => "idle",
            Self::Unknown => "unknown",
        }
    }
}

impl From<Bucket> for Limit {
    fn from(bucket: Bucket) -> Self {
        match bucket {
            Bucket::Consumer => Self::Consumer,
            Bucket::Network => Self::Network,
            Bucket::Gather => Self::Gather,
            Bucket::Decode => Self::Decode,
            Bucket::Storage => Self::Storage,
            Bucket::Admission => Self::Admission,
            Bucket::Downstream => Self::Downstream,
        }
    }
}

/// Judges by two windows: where they agree, and there is enough of them, there is a verdict.
pub fn judge(evidence: &Evidence) -> Verdict {
    let recent = look(&evidence.recent);
    if evidence.recent.sum().is_zero() {
        return Verdict {
            limit: Limit::Idle,
            level: Level::None,
            confidence: Confidence::None,
            utilization: None,
            stall: None,
            limit_share: 0.0,
            what_if: None,
        };
    }
    let wanted = evidence.window.as_secs_f64() * evidence.sessions as f64 * FULL;
    let is_long =
        [&evidence.recent, &evidence.before].iter().all(|window| window.sum().as_secs_f64() >= wanted);
    let is_enough = is_long || evidence.batches >= ENOUGH_BATCHES && !evidence.before.sum().is_zero();
    if !is_enough || look(&evidence.before).limit != recent.limit {
        return Verdict { limit: Limit::Unknown, confidence: Confidence::None, what_if: None, ..recent };
    }
    recent
}

/// What one window says, all doubts aside.
fn look(window: &Buckets) -> Verdict {
    let share = |bucket| window.share(bucket);
    let downstream = share(Bucket::Downstream);
    // Without a report the consumer's part is not known, and the stall is what the server sees of it.
    let reported = downstream < TRAINER_BOUND;
    let away = share(Bucket::Consumer) + downstream;
    let stall = (1.0 - away).clamp(0.0, 1.0);
    let trainer = if share(Bucket::Consumer) >= downstream { Bucket::Consumer } else { Bucket::Downstream };
    let waits = [Bucket::Network, Bucket::Gather, Bucket::Decode, Bucket::Storage, Bucket::Admission];
    let mut cause = Bucket::Network;
    for bucket in waits {
        if share(bucket) > share(cause) {
            cause = bucket;
        }
    }
    let level = match stall {
        stall if stall < TRAINER_BOUND => Level::None,
        stall if stall <= INPUT_BOUND => Level::Moderate,
        _ => Level::InputBound,
    };
    let limit = if level == Level::None { trainer } else { cause };
    let limit_share = share(limit);
    let confidence = match level {
        Level::None => Confidence::High,
        _ if limit_share >= stall * CAUSE => Confidence::High,
        _ => Confidence::Low,
    };
    Verdict {
        limit: limit.into(),
        level,
        confidence,
        utilization: reported.then(|| share(Bucket::Consumer)),
        stall: Some(stall),
        limit_share,
        what_if: (level != Level::None).then(|| what_if(window, limit, trainer)),
    }
}

/// The time without `removed`: what is left is the bound of what can be gained.
fn what_if(window: &Buckets, removed: Bucket, trainer: Bucket) -> WhatIf {
    let left = 1.0 - window.share(removed);
    let mut then = trainer;
    for bucket in Bucket::ALL {
        if bucket != removed && window.share(bucket) > window.share(then) {
            then = bucket;
        }
    }
    WhatIf { without: removed.into(), speedup: 1.0 / left.max(1e-3), then: then.into() }
}

#[cfg(test)]
mod tests;
