//! Settings of the training path.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Limits and policies of a [`Loader`](crate::Loader).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Memory for row groups that are being fetched and decoded, in bytes. Default: 1 GiB. One block
    /// is always let through alone, however large.
    pub decode_bytes: u64,
    /// Blocks of a window that are fetched at the same time. Default: 16.
    pub concurrent_blocks: usize,
    /// Finished batches that wait for a slow consumer, in bytes a stream. Default: 64 MiB. One batch
    /// is always let through alone.
    pub prefetch_bytes: u64,
    /// Windows that are made ahead of their use, in bytes a stream. Default: 256 MiB; one window is
    /// always made ahead if there is room for it.
    pub read_ahead_bytes: u64,
    /// Memory of batches that were sent and of frames that were evicted, kept for the next ones, in bytes.
    /// Default: 64 MiB.
    pub idle_bytes: u64,
    /// How long a stream whose consumer takes nothing keeps its window in memory. Default: 1 s.
    #[serde(with = "humantime_serde")]
    pub stall_timeout: Duration,
    /// Largest batch, in bytes of its body; at most 2 GiB - 1. Default: 256 MiB.
    pub max_batch_bytes: u64,
    /// Rows decoded at a time; a chunk of all columns should fit the second-level cache. Default: 4,096.
    pub decode_rows: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            decode_bytes: 1 << 30,
            concurrent_blocks: 16,
            prefetch_bytes: 64 << 20,
            read_ahead_bytes: 256 << 20,
            idle_bytes: 64 << 20,
            stall_timeout: Duration::from_secs(1),
            max_batch_bytes: 256 << 20,
            decode_rows: 4096,
        }
    }
}
