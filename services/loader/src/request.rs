//! Requests: validation, and jobs resolved against a snapshot.

pub(crate) mod admission;
pub(crate) mod footprint;
pub(crate) mod job;
pub(crate) mod mixture;
pub(crate) mod order;
pub(crate) mod packing;
pub(crate) mod positions;
pub(crate) mod quoted;
pub(crate) mod rows;
mod semantics;
pub(crate) mod shared;
pub(crate) mod summary;
pub(crate) mod validate;
