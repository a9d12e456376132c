//! Settings of a client.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Limits and policies of a [`Client`](crate::Client).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Largest HTTP/2 frame that the server may send, in bytes; 16 KiB to 16 MiB - 1. Default: 1 MiB.
    /// A server sends no larger ones than its client announces, and small ones cost CPU on both sides.
    pub max_frame_bytes: u32,
    /// Bytes of one stream that may be on their way, in the sense of HTTP/2's flow control. Default: 2 MiB, for then
    /// they are still in the processor's cache when they are received. A stream gets at most this much in the time that
    /// a packet takes there and back: for a server further away than a millisecond raise it.
    pub stream_window_bytes: u32,
    /// ... and of all streams of a connection. Default: 8 MiB.
    pub connection_window_bytes: u32,
    /// Received batches that wait for their consumer, in bytes a stream. Default: 64 MiB. One batch is
    /// always received.
    pub prefetch_bytes: u64,
    /// Largest body of a message, in bytes. Default: 1 GiB.
    pub max_batch_bytes: u64,
    /// Largest schema, batch header or metadata, in bytes. Default: 64 MiB.
    pub max_header_bytes: u64,
    /// Memory of bodies that is kept for the next ones, in bytes a stream. Default: 256 MiB.
    pub idle_slab_bytes: u64,
    /// How long a connection may take to be made. Default: 10 s.
    #[serde(with = "humantime_serde")]
    pub connect_timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_frame_bytes: 1 << 20,
            stream_window_bytes: 2 << 20,
            connection_window_bytes: 8 << 20,
            prefetch_bytes: 64 << 20,
            max_batch_bytes: 1 << 30,
            max_header_bytes: 64 << 20,
            idle_slab_bytes: 256 << 20,
            connect_timeout: Duration::from_secs(10),
        }
    }
}
