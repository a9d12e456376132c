//! The Tokio runtime of the commands.

use anyhow::Context;

/// Number of blocking threads for lookups of host names, which hang if the name servers do not answer. Stores use at most 64 of them. The
/// others are for members and traces.
const NAME_LOOKUPS: usize = 256;

/// Builds the runtime, which runs everything except CPU work.
///
/// Calls to local file systems and lookups of host names can hang. Each kind has threads in addition to `blocking_threads`. Calls to
/// local file systems and lookups for stores never use more than these additional threads. Threads are started when they are needed.
pub(super) fn runtime(
    io_threads: usize,
    blocking_threads: usize,
    storage: &forebay_storage::Config,
) -> anyhow::Result<tokio::runtime::Runtime> {
    let threads = blocking_threads
        .saturating_add(storage.local_threads())
        .saturating_add(NAME_LOOKUPS)
        .min(usize::MAX / 2);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(io_threads)
        .max_blocking_threads(threads)
        .thread_name("forebay-io")
        .enable_all()
        .build()
        .context("can't start the I/O threads")
}
