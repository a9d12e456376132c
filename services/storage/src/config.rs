//! Settings of this crate.

use std::time::Duration;

use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

/// Limits and I/O settings for datasets. Every field has a default; unknown fields are rejected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, DocumentedFields)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Maximum number of files in one snapshot. Default: 1,000,000.
    pub max_files: usize,
    /// Maximum number of objects in the folder of a dataset, including those that are skipped. If there are more, the listing fails. A
    /// store that returns the same page again and again is therefore not listed without end. Default: 10,000,000.
    pub max_listed_objects: u64,
    /// Maximum size of a Parquet footer, in bytes. Default: 64 MiB.
    pub max_footer_bytes: u64,
    /// Maximum uncompressed size of a Parquet page, in bytes. Default: 256 MiB.
    pub max_page_bytes: u64,
    /// Maximum size of one block, in bytes, summed over the requested columns. Applies to the encoded and to the
    /// decoded size. Default: 4 GiB.
    pub max_block_bytes: u64,
    /// Maximum number of footers that are read concurrently while a snapshot is taken. Default: 64.
    pub concurrent_footers: usize,
    /// Maximum number of concurrent requests per location, which is a dataset or the state. While the store answers
    /// that it is overloaded (429, 503) or times out, fewer requests are made, at least 1. Default: 64.
    pub concurrent_requests: usize,
    /// Maximum number of concurrent reads of one local dataset, and of requests to a local `state`. Each fails after
    /// `request_timeout` plus 1 s per MiB, and the wait for a free read after `request_timeout`. Default: 8.
    pub concurrent_local_reads: usize,
    /// Maximum number of concurrent calls to one local file system (mount), by all datasets on it and a local `state`.
    /// A file system that hangs blocks at most this number of threads. Up to 16 file systems can hang at a time before
    /// calls to others wait for threads. Default: 64.
    pub concurrent_file_system_calls: usize,
    /// Timeout of one request to an object store, including its body. If the cached copy of a footer cannot be read
    /// within this time, the footer is read from its Parquet file. Cached footers are then ignored for 1 minute.
    /// Default: 30 s.
    #[serde(with = "humantime_serde")]
    pub request_timeout: Duration,
    /// Maximum number of retries of a failed request. `retry_timeout` usually ends the retries earlier. Default: 1,000.
    pub max_retries: usize,
    /// Time after the first attempt during which a failed request is retried, with waits of at most 15 s. A store that
    /// has never answered is retried 5 times. Denied access is not retried. Default: 10 min.
    #[serde(with = "humantime_serde")]
    pub retry_timeout: Duration,
    /// Maximum gap between column chunks that are read by one request, in bytes. All gaps that are read for a block are
    /// together at most as long as its column chunks. For local files the gap is at most 64 KiB. Default: 1 MiB.
    pub coalesce_gap_bytes: u64,
    /// Maximum size of one read request, in bytes. A longer range is split into concurrent requests. Local files are
    /// read in one piece. Default: 16 MiB.
    pub max_request_bytes: u64,
    /// Maximum size of the pool of free read buffers for local files, in bytes per location. Default: 64 MiB.
    pub idle_bytes: u64,
    /// Maximum size of the in-memory cache of parsed footers, in bytes. Default: 256 MiB.
    pub footer_memory_bytes: usize,
    /// Maximum size of the encoded footers that are kept in the folder `footers` of the cache directory, in bytes; the least recently
    /// used are deleted. For a short time they can take an eighth more. Default: 4 GiB.
    pub footer_disk_bytes: u64,
    /// Maximum number of row counts per dataset that are kept in the state, one for each snapshot and filter or key. The oldest are
    /// removed, and rows are counted again when they are needed. Default: 1,024.
    pub max_counts: usize,
}

impl Default for Config {
    fn default() -> Self {
        const MIB: u64 = 1 << 20;
        Self {
            max_files: 1_000_000,
            max_listed_objects: 10_000_000,
            max_footer_bytes: 64 * MIB,
            max_page_bytes: 256 * MIB,
            max_block_bytes: 4096 * MIB,
            concurrent_footers: 64,
            concurrent_requests: 64,
            concurrent_local_reads: 8,
            concurrent_file_system_calls: 64,
            request_timeout: Duration::from_secs(30),
            max_retries: 1000,
            retry_timeout: Duration::from_secs(600),
            coalesce_gap_bytes: MIB,
            max_request_bytes: 16 * MIB,
            idle_bytes: 64 * MIB,
            footer_memory_bytes: 256 << 20,
            footer_disk_bytes: 4096 * MIB,
            max_counts: 1024,
        }
    }
}

/// Number of file systems that can hang at a time while calls to others still get threads.
const HANGING_FILE_SYSTEMS: usize = 16;

impl Config {
    /// Maximum number of threads that calls to local file systems take while 16 file systems hang.
    pub fn local_threads(&self) -> usize {
        self.concurrent_file_system_calls.max(1).saturating_mul(HANGING_FILE_SYSTEMS)
    }
}
