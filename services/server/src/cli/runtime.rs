//! The Tokio runtime of the commands.

use anyhow::Context;

/// Builds the runtime, which runs everything except CPU work.
pub(super) fn runtime(io_threads: usize, blocking_threads: usize) -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(io_threads)
        .max_blocking_threads(blocking_threads)
        .thread_name("forebay-io")
        .enable_all()
        .build()
        .context("can't start the I/O threads")
}
