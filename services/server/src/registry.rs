//! Objects that the server keeps by name: datasets, lookup indexes, batch queues, and records of training jobs.

pub(crate) mod datasets;
pub(crate) mod jobs;
pub(crate) mod online;
mod panics;
pub(crate) mod queues;
mod retry_delays;
pub(crate) mod values;
