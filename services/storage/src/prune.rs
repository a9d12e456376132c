//! Pruning: statistics, bloom filters and page indexes, which rule out blocks and rows without reading them.

pub(crate) mod bloom;
pub(crate) mod page_index;
pub(crate) mod statistics;
