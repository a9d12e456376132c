//! Windows: the blocks among which rows are shuffled, loaded once for all ranks of a job.
//!
//! A step of a job needs one window of each of its datasets. A stream reserves the memory of all of them at once and
//! waits only while it holds none, so streams cannot deadlock. A window that has its memory is loaded to the end as long as
//! a stream holds it.

pub(crate) mod held;
pub(crate) mod orders;
pub(crate) mod prefetch;
pub(crate) mod step;
pub(crate) mod windows;
