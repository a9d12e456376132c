//! Settings of the training path.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Limits and policies of a [`Loader`](crate::Loader).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Memory for row groups that are being fetched and decoded, in bytes. Default: an eighth of the memory for
    /// frames, at most 256 MiB. One block is always let through alone, however large.
    pub decode_bytes: Option<u64>,
    /// Blocks of a window that are fetched at the same time, as far as `decode_bytes` allows. Default: 64.
    pub concurrent_blocks: usize,
    /// Finished batches that wait for a slow consumer, in bytes a stream. Default: 64 MiB. One batch
    /// is always let through alone.
    pub prefetch_bytes: u64,
    /// ... and in bytes of all streams, shared out evenly. Default: an eighth of the memory for frames.
    pub total_prefetch_bytes: Option<u64>,
    /// Windows that are made ahead of their use, in bytes a stream. Default: 256 MiB; one window is
    /// always made ahead if there is room for it.
    pub read_ahead_bytes: u64,
    /// Memory of batches that were sent and of frames that were evicted, kept for the next ones, in bytes, as far
    /// as frames and batches leave any. Default: an eighth of the memory for frames, at least 64 MiB.
    pub idle_bytes: Option<u64>,
    /// How long a stream whose consumer takes nothing keeps its window in memory. Default: 1 s.
    #[serde(with = "humantime_serde")]
    pub stall_timeout: Duration,
    /// Largest batch, in bytes of its body; at most 2 GiB - 1. Default: 256 MiB.
    pub max_batch_bytes: u64,
    /// Groups of which the number of rows is kept in memory for `batch_rows`, over all datasets, filters and keys in use; each takes
    /// 4 bytes, and up to 16 more for the packs of its epochs. Default: 67,108,864.
    pub max_packed_groups: u64,
    /// Which decoded columns are written to the disk tier. Default: `needed`.
    pub disk_writes: DiskWrites,
    /// Rows decoded at a time; a chunk of all columns should fit the second-level cache. Default: 4,096.
    pub decode_rows: usize,
    /// Delays that are added on purpose, to see what the page makes of them. Default: none.
    pub delays: Delays,
}

/// Delays for drills: what would the page say if a stage were slower? They change no byte.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Delays {
    /// Added to decoding a block, on the thread that does it. Default: 0.
    #[serde(with = "humantime_serde")]
    pub decode: Duration,
    /// Added to gathering a batch. Default: 0.
    #[serde(with = "humantime_serde")]
    pub gather: Duration,
}

impl Delays {
    pub(crate) fn before_decode(&self) {
        pause(self.decode);
    }

    pub(crate) fn before_gather(&self) {
        pause(self.gather);
    }
}

/// Only on the threads for CPU work, which have nothing else to do meanwhile.
fn pause(time: Duration) {
    if !time.is_zero() {
        std::thread::sleep(time);
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            decode_bytes: None,
            concurrent_blocks: 64,
            prefetch_bytes: 64 << 20,
            total_prefetch_bytes: None,
            read_ahead_bytes: 256 << 20,
            idle_bytes: None,
            stall_timeout: Duration::from_secs(1),
            max_batch_bytes: 256 << 20,
            max_packed_groups: 1 << 26,
            disk_writes: DiskWrites::Needed,
            decode_rows: 4096,
            delays: Delays::default(),
        }
    }
}

impl Config {
    /// `decode_bytes`, resolved.
    pub(crate) fn decode_bytes(&self, memory_bytes: u64) -> u64 {
        self.decode_bytes.unwrap_or((memory_bytes / 8).min(256 << 20))
    }

    /// `total_prefetch_bytes`, resolved.
    pub(crate) fn total_prefetch_bytes(&self, memory_bytes: u64) -> u64 {
        self.total_prefetch_bytes.unwrap_or(memory_bytes / 8)
    }

    /// `idle_bytes`, resolved.
    pub(crate) fn idle_bytes(&self, memory_bytes: u64) -> u64 {
        self.idle_bytes.unwrap_or((memory_bytes / 8).max(64 << 20))
    }
}

/// Which decoded columns are written to the disk tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskWrites {
    /// Those that memory alone won't keep: when the frames of all running jobs exceed it, or several views share
    /// the columns. Writing costs about as much CPU as decoding.
    Needed,
    /// All of them, so that also a restarted server, or a later view of the same columns, finds them.
    Always,
}
