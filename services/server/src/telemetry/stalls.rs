//! Time accounts of all sessions, and the bottlenecks derived from them.

mod demand;
mod facts;
mod gauges;
mod observer;
mod summary;

pub(crate) use facts::Facts;
pub(crate) use observer::Observer;
pub(crate) use summary::summary;
