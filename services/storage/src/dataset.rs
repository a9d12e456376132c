//! Datasets: which files they consist of, and immutable snapshots of them.

pub(crate) mod block;
pub(crate) mod block_ids;
pub(crate) mod column_sizes;
pub(crate) mod extensions;
pub(crate) mod file_columns;
pub(crate) mod intervals;
pub(crate) mod listing;
pub(crate) mod manifest;
pub(crate) mod memory;
pub(crate) mod merged_footers;
pub(crate) mod partitions;
pub(crate) mod schema;
pub(crate) mod snapshot;
pub(crate) mod take;
pub(crate) mod time_zones;
pub(crate) mod version;
