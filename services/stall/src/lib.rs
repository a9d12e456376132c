//! Accounts for the time of training jobs and finds their bottleneck.
//!
//! ```text
//! transport: batch requested, sent --+
//! loader: stage begins, ends --------+--> Clock --> Buckets --> History --> judge --> Verdict
//! client: its report ----------------+    one per   every       recent      pure
//!                                         session   instant in  minutes     function
//!                                                   one bucket
//! ```
//!
//! - [`Clock`]: charges every instant of one trainer's streams to exactly one [`Bucket`], so that the buckets sum to wall
//!   time. The clock is driven by events and never reads the system time.
//! - [`Session`] and [`Lane`]: a [`Clock`] shared by several threads, with one lane per stream of the trainer.
//! - [`History`]: the buckets of the last minutes, second by second.
//! - [`judge`]: the bottleneck, the confidence in it, and the speedup from removing it.
//! - [`while_silent`]: the verdict while a store does not answer.
//! - [`straggler`]: the rank that the other ranks of its job wait for.
//! - [`wanted_servers`]: the demand of the trainers, in servers at full load, for an autoscaler.
//! - [`Skew`]: detects a label whose mean varies between batches by more than chance explains, from the [`Moments`] of
//!   each batch.
//!
//! Decisions take the time as an argument. Only [`Lane`] reads the system clock, under the lock of its session, so that
//! events are recorded in the order of their times. The crate does no I/O and does not depend on the format of a batch.
//!
//! # Example
//!
//! A trainer computes for two seconds and then waits six seconds for storage, in two windows in a row:
//!
//! ```
//! use std::time::{Duration, Instant};
//!
//! use forebay_stall::{Bottleneck, Bucket, Clock, Evidence, Report, Stage, judge};
//!
//! let start = Instant::now();
//! let at = |seconds| start + Duration::from_secs(seconds);
//! let mut clock = Clock::new(start, true);
//! let lane = 0;
//! clock.enter(start, lane, (0, 0));
//!
//! clock.batch_requested(at(2), lane);
//! clock.begin(at(2), lane, Stage::Storage);
//! clock.end(at(8), lane, Stage::Storage);
//! clock.batch_sent(at(8), lane, (0, 1));
//! let charged = clock.report(at(8), Report { seconds: 8.0, wait_seconds: 6.0 });
//! assert_eq!(charged[Bucket::Compute], Duration::from_secs(2));
//! assert_eq!(charged[Bucket::Storage], Duration::from_secs(6));
//!
//! let window = Duration::from_secs(8);
//! let verdict = judge(&Evidence { recent: charged, before: charged, window, sessions: 1, batches: 2 });
//! assert_eq!(verdict.bottleneck, Bottleneck::Storage);
//! assert_eq!(verdict.wait_fraction, Some(0.75));
//! assert_eq!(verdict.what_if.map(|what_if| what_if.speedup), Some(4.0));
//! ```

#![deny(unsafe_code)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::iter_over_hash_type)] // Time is an argument; see clippy.toml.

mod bucket;
mod clock;
mod demand;
mod history;
mod moments;
mod session;
mod skew;
mod straggler;
mod verdict;

pub use bucket::{Bucket, Buckets, Stage};
pub use clock::{Clock, Report};
pub use demand::{Load, TARGET_LOAD, Trainer, wanted_servers};
pub use history::{History, Interval};
pub use moments::Moments;
pub use session::{Lane, Session};
pub use skew::{Known, Skew};
pub use straggler::straggler;
pub use verdict::{
    Bottleneck, Confidence, Evidence, Level, SILENT_AFTER, Verdict, WhatIf, judge, while_silent,
};
