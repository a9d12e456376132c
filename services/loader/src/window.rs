//! Windows: the blocks among which rows are shuffled, loaded once for all ranks of a job.
//!
//! A batch of a mixture takes rows from one window of each dataset. Such a *window set* is reserved at once. While a stream
//! waits for memory it holds no memory, so streams cannot deadlock. A window that has its memory is loaded to the end as
//! long as a stream holds it.

mod acquire;
pub(crate) mod held;
pub(crate) mod orders;
pub(crate) mod stream_windows;
mod wanted;
pub(crate) mod window_set;
pub(crate) mod windows;
