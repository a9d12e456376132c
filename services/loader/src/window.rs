//! Windows: the blocks among which rows are shuffled, loaded once for all ranks of a job.

pub(crate) mod held;
pub(crate) mod prefetch;
pub(crate) mod windows;
