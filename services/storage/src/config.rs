//! Limits and policies of this crate, as plain data.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Limits and policies. Every field has a default; unknown fields are refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Most files one snapshot may hold. Default 1,000,000.
    pub max_files: usize,
    /// Largest Parquet footer that is read, in bytes. Default 64 MiB.
    pub max_footer_bytes: u64,
    /// Largest page that is decompressed, in uncompressed bytes. Default 256 MiB.
    pub max_page_bytes: u64,
    /// Most decoded bytes one block may come to, over its projected columns. Default 4 GiB.
    pub max_block_bytes: u64,
    /// Footers read at a time while a snapshot is taken. Default 64.
    pub concurrent_footers: usize,
    /// Requests in flight per location. Default 64.
    pub concurrent_requests: usize,
    /// Time one request may take, its body included. Default 30 s.
    #[serde(with = "humantime_serde")]
    pub request_timeout: Duration,
    /// Times a failed request is tried again. Default 5.
    pub max_retries: usize,
    /// Time after the first try beyond which a request is not tried again. Default 60 s.
    #[serde(with = "humantime_serde")]
    pub retry_timeout: Duration,
    /// Column chunks closer than this are read by one request, in bytes. Default 1 MiB.
    pub coalesce_gap_bytes: u64,
    /// Largest single request; a longer range is read by several at once, in bytes. Default 16 MiB.
    pub max_request_bytes: u64,
    /// Memory that local files were read into, kept for the next ones, in bytes a location. Default 64 MiB.
    pub idle_bytes: u64,
    /// Parsed footers kept in memory, in bytes. Default 256 MiB.
    pub footer_memory_bytes: usize,
}

impl Default for Config {
    fn default() -> Self {
        const MIB: u64 = 1 << 20;
        Self {
            max_files: 1_000_000,
            max_footer_bytes: 64 * MIB,
            max_page_bytes: 256 * MIB,
            max_block_bytes: 4096 * MIB,
            concurrent_footers: 64,
            concurrent_requests: 64,
            request_timeout: Duration::from_secs(30),
            max_retries: 5,
            retry_timeout: Duration::from_secs(60),
            coalesce_gap_bytes: MIB,
            max_request_bytes: 16 * MIB,
            idle_bytes: 64 * MIB,
            footer_memory_bytes: 256 << 20,
        }
    }
}
