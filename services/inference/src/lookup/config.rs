//! Settings of lookups.

use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

/// Limits of lookups.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, DocumentedFields)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Maximum number of keys per lookup. Default: 65,536.
    pub max_keys: usize,
    /// Maximum number of views (combinations of columns, tensors, expressions and a filter) per dataset that are held in memory in
    /// addition to the declared ones. One token may have 7/8 of them. Above the limit, the least recently used view of
    /// the token that loads a new one is evicted, or one of the token with the most views if that token has no other.
    /// Default: 8.
    pub max_views: usize,
    /// Maximum number of keys of a lookup that runs on the thread of its connection. Such a lookup takes about 0.1 ms, as
    /// long as a switch to another thread and back. Larger lookups run on the lookup threads. Default: 1,024.
    pub max_inline_keys: usize,
    /// Maximum size of the answer to one lookup, in bytes. Default: 16 MiB.
    pub max_answer_bytes: u64,
    /// Number of blocks whose keys are read concurrently while an index is built. Default: 8.
    pub concurrent_blocks: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_keys: 1 << 16,
            max_views: 8,
            max_inline_keys: 1024,
            max_answer_bytes: 16 << 20,
            concurrent_blocks: 8,
        }
    }
}
