//! Reading: from a block and columns to encoded bytes (I/O), and from these to record batches (CPU).

pub(crate) mod chunks;
pub(crate) mod decoder;
pub(crate) mod footer_cache;
mod footer_eviction;
pub(crate) mod footer_files;
pub(crate) mod ranges;
pub(crate) mod reader;
