//! Rows held in memory for lookups.

pub(crate) mod kept;
pub(crate) mod memory;
pub(crate) mod rows;
