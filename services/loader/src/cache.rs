//! Decoded columns that are shared and kept on disk, and the forecast of their next use.

pub(crate) mod columns;
pub(crate) mod forecast;
pub(crate) mod pins;
