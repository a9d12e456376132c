//! CPU work: threads, fair queueing and prefetching into the CPU cache.

pub(crate) mod fair_queue;
pub(crate) mod off_io;
pub(crate) mod pool;
pub(crate) mod prefetch;
pub(crate) mod scheduling;
mod shares;
pub(crate) mod turns;
