//! Settings of the training path.

use std::time::Duration;

use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

use crate::FaultInjection;

/// Minimum of [`Config::max_prefetch_bytes`], so that many streams can have a batch even if the cache is small.
const MIN_MAX_PREFETCH_BYTES: u64 = 64 << 20;

/// Limits and policies of a [`Loader`](crate::Loader).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, DocumentedFields)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Memory for row groups that are being fetched and decoded, in bytes. A block of more than half of it is decoded alone.
    /// Columns that are larger in the file than its footer says may take up to half of this limit in addition. Several blocks of one
    /// dataset that are being fetched take at most four fifths of the limit together.
    /// Default: 1/8 of `cache_memory`, at most 256 MiB.
    pub decode_bytes: Option<u64>,
    /// Maximum number of blocks of a window that are fetched concurrently, within `decode_bytes`. Default: 64.
    pub concurrent_blocks: usize,
    /// Maximum size of the finished batches of a stream, in bytes. A batch counts until it is sent. A stream gets one batch of any
    /// size, and another one while all its batches are being sent, if the share of its token has room. At most 128 batches wait to be
    /// sent, and only one before the first is sent. Default: 64 MiB.
    pub prefetch_bytes: u64,
    /// Maximum size of the finished batches, in bytes over all streams. Each token has a share in proportion to its
    /// weight. The streams of a token divide its share evenly. A stream whose batches are all being sent may exceed its
    /// own part while the share of its token has room. The first batch of each stream may also exceed the share: all
    /// batches of a token may then take twice its share, or its share of 64 MiB if that is more. Above that, streams
    /// without a batch wait in the order of arrival. If a stream waits in this way, a client of the same token that
    /// receives no batch completely for `limits.receive_timeout`, plus one second per MiB of the batches that it is receiving, is
    /// disconnected. If a token has no other batch, its next batch may
    /// have any size. Default: 1/8 of `cache_memory`.
    pub total_prefetch_bytes: Option<u64>,
    /// Maximum size of the shuffle windows that are loaded before their use, in bytes per stream. One window is always prefetched
    /// if memory allows. Default: 256 MiB.
    pub window_prefetch_bytes: u64,
    /// Maximum size of the pool of free buffers, in bytes. The buffers of sent batches and of evicted decoded blocks return to the
    /// pool, and new batches and blocks reuse them. Free buffers are released if they and the buffers in use together exceed
    /// `cache_memory` plus `total_prefetch_bytes`. Default: 1/8 of `cache_memory`, at least 64 MiB.
    pub buffer_pool_bytes: Option<u64>,
    /// If a consumer neither takes a batch nor completely receives one for this long, its stream releases its windows. A consumer
    /// that has received all batches so far and waits for the next one is not slow. Default: 1 s.
    #[serde(with = "humantime_serde")]
    pub slow_consumer_timeout: Duration,
    /// Maximum size of the body of a batch, in bytes; 1 to 2 GiB - 1. Default: 256 MiB.
    pub max_batch_bytes: u64,
    /// Maximum number of groups whose row counts are kept in memory for `max_pack_rows`, over all datasets, filters and keys in use.
    /// Each takes 4 bytes, and up to 16 more for the packs of its epochs. Default: 67,108,864.
    pub max_packed_groups: u64,
    /// Decoded columns that are written to the disk cache: `needed` (memory alone will not hold them, or several views share them)
    /// or `always`. Default: needed.
    pub disk_writes: DiskWrites,
    /// Maximum size of the decoded columns that wait to be written to the disk cache, in bytes. Columns beyond it are not written.
    /// Default: 1/8 of `cache_memory`, at least 16 MiB and at most 256 MiB.
    pub disk_write_queue_bytes: Option<u64>,
    /// Maximum memory for the index of the disk cache, in bytes. Each file of the cache takes 1 KiB, and
    /// each column in it 128 bytes. A block has at least one such file. Above the limit,
    /// columns are evicted as if the disk were full. Default: 1/16 of `cache_memory`, at least 64 MiB.
    pub disk_index_bytes: Option<u64>,
    /// Time after which a read of the disk cache counts as a miss. Reads are then skipped for 1 s, and for twice as long after each
    /// further late read, up to 60 s. Default: 5 s.
    #[serde(with = "humantime_serde")]
    pub disk_read_timeout: Duration,
    /// Number of rows decoded per step; one step of all columns should fit the L2 cache. Default: 4,096.
    pub decode_rows: usize,
    /// Delays added on purpose, to test dashboards and alerts.
    pub fault_injection: FaultInjection,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            decode_bytes: None,
            concurrent_blocks: 64,
            prefetch_bytes: 64 << 20,
            total_prefetch_bytes: None,
            window_prefetch_bytes: 256 << 20,
            buffer_pool_bytes: None,
            slow_consumer_timeout: Duration::from_secs(1),
            max_batch_bytes: 256 << 20,
            max_packed_groups: 1 << 26,
            disk_writes: DiskWrites::Needed,
            disk_write_queue_bytes: None,
            disk_index_bytes: None,
            disk_read_timeout: Duration::from_secs(5),
            decode_rows: 4096,
            fault_injection: FaultInjection::default(),
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

    /// Maximum size of the finished batches of all streams, with the first batch of each stream, which may exceed its
    /// share.
    pub(crate) fn max_prefetch_bytes(&self, memory_bytes: u64) -> u64 {
        self.total_prefetch_bytes(memory_bytes).saturating_mul(2).max(MIN_MAX_PREFETCH_BYTES)
    }

    /// `disk_write_queue_bytes`, resolved.
    pub fn disk_write_queue_bytes(&self, memory_bytes: u64) -> u64 {
        self.disk_write_queue_bytes.unwrap_or((memory_bytes / 8).clamp(16 << 20, 256 << 20))
    }

    /// `disk_index_bytes`, resolved.
    pub fn disk_index_bytes(&self, memory_bytes: u64) -> u64 {
        self.disk_index_bytes.unwrap_or((memory_bytes / 16).max(64 << 20))
    }

    /// `buffer_pool_bytes`, resolved.
    pub(crate) fn buffer_pool_bytes(&self, memory_bytes: u64) -> u64 {
        self.buffer_pool_bytes.unwrap_or((memory_bytes / 8).max(64 << 20))
    }
}

/// Which decoded columns are written to the disk tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskWrites {
    /// Columns that memory alone will not hold: the frames of all running jobs exceed it, or several views share the columns.
    /// Writing costs about as much CPU time as decoding.
    Needed,
    /// All columns, so that a restarted server or a later view of the same columns finds them.
    Always,
}
