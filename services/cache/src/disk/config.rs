//! Settings of the disk tier.

use serde::{Deserialize, Serialize};

/// Limits of a [`Disk`](crate::Disk).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DiskConfig {
    /// Bytes that the files may take, each rounded up to whole blocks of 4 KiB. Default: 64 GiB.
    pub capacity_bytes: u64,
    /// Bytes that may wait to be written; what comes on top is not kept. One write is always let through
    /// alone. Default: 256 MiB.
    pub max_write_queue_bytes: u64,
    /// Files that are written at the same time. Default: 2.
    pub concurrent_writes: usize,
    /// Reads that run at the same time; further ones wait in line. Default: 16.
    pub concurrent_reads: usize,
}

impl Default for DiskConfig {
    fn default() -> Self {
        Self {
            capacity_bytes: 64 << 30,
            max_write_queue_bytes: 256 << 20,
            concurrent_writes: 2,
            concurrent_reads: 16,
        }
    }
}
