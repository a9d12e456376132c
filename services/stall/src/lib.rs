//! Where the time of training goes.
//!
//! ```text
//! transport: asks, is served ----+
//! loader: a stage begins, ends --+--> Clock --> Buckets --> History --> judge --> Verdict
//! trainer: its report -----------+    one a     every       the last    pure
//!                                     trainer   instant     minutes
//!                                               in one
//! ```
//!
//! - [`Clock`]: charges every instant of one trainer's streams to exactly one [`Bucket`], so that the buckets sum to wall
//!   time. It is told of events and knows no time of its own.
//! - [`Session`] and [`Lane`]: a clock that several threads tell, one lane for each stream of the trainer.
//! - [`History`]: the buckets of the last minutes, second by second.
//! - [`judge`]: what is the limit, how sure that is, and what would be gained without it.
//! - [`Skew`]: whether a label's mean wanders from batch to batch more than chance makes it, by the [`Moments`] of each.
//!
//! Decisions take the time as an argument; only [`Lane`] reads a clock, under the lock of its session, so that events come in the
//! order of their times. The crate does no I/O, and does not know what a batch is.

#![deny(unsafe_code)]

mod bucket;
mod clock;
mod history;
mod moments;
mod session;
mod skew;
mod verdict;

pub use bucket::{Bucket, Buckets, Stage};
pub use clock::{Clock, Report};
pub use history::{History, Interval};
pub use moments::Moments;
pub use session::{Lane, Session};
pub use skew::{Known, Skew};
pub use verdict::{Confidence, Evidence, Level, Limit, Verdict, WhatIf, judge};
