//! Settings of the disk tier.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Settings of the disk tier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DiskConfig {
    /// Maximum total size of the cache files in bytes. Each file is rounded up to a multiple of 4 KiB. `None`: half of the disk
    /// space that is free or occupied by these files when the tier is opened. Default: 64 GiB.
    pub capacity_bytes: Option<u64>,
    /// Maximum memory for the index of the files, in bytes: 1 KiB for each file, and 128 bytes for each section. Default: 512 MiB.
    pub max_index_bytes: u64,
    /// Maximum size of the write queue in bytes. Further writes are skipped, or wait if they are required. A write
    /// that is larger than the whole queue is accepted when the queue is empty. Default: 256 MiB.
    pub max_write_queue_bytes: u64,
    /// Maximum number of files that are written concurrently. Default: 2.
    pub concurrent_writes: usize,
    /// Maximum number of concurrent reads. Further reads wait. Default: 16.
    pub concurrent_reads: usize,
    /// Time after which a read counts as a miss. After such a read, reads are skipped for 1 s, and for twice as long after each
    /// further one, up to 60 s. Default: 5 s.
    pub read_timeout: Duration,
}

impl Default for DiskConfig {
    fn default() -> Self {
        Self {
            capacity_bytes: Some(64 << 30),
            max_index_bytes: 512 << 20,
            max_write_queue_bytes: 256 << 20,
            concurrent_writes: 2,
            concurrent_reads: 16,
            read_timeout: Duration::from_secs(5),
        }
    }
}
