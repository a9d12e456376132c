//! Rows held in memory for lookups.

mod kept;
pub(crate) mod memory;
pub(crate) mod rows;
