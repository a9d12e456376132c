//! Time accounts of all sessions, and the bottlenecks derived from them.

mod demand;
mod facts;
mod gauges;
mod judgement;
mod observer;
mod ranks;
mod summary;

pub(crate) use facts::Facts;
pub(crate) use judgement::Judgement;
pub(crate) use observer::Observer;
pub(crate) use ranks::JobRanks;
pub(crate) use summary::summary;
