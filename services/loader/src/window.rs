//! Windows: the blocks among which rows are shuffled, loaded once for all ranks of a job.
//!
//! A batch of a mixture takes rows from one window of each dataset. The memory of such a *window set* is reserved in
//! one step. While a stream
//! waits for memory it holds no memory, so streams cannot deadlock. Once a window has its memory, loading stops early
//! only if it fails or if no stream holds the window any more.

mod acquire;
pub(crate) mod held;
pub(crate) mod orders;
pub(crate) mod progress;
pub(crate) mod stream_windows;
mod wanted;
pub(crate) mod window_set;
pub(crate) mod windows;
