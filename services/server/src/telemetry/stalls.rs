//! Time accounts of all sessions, and the bottlenecks derived from them.

mod gauges;
mod messages;
mod observer;
mod pipeline;

pub(crate) use messages::{Advice, Facts, summary};
pub(crate) use observer::Observer;
pub(crate) use pipeline::{Pipeline, StageStatus};
