//! Rows that a filter keeps and groups of rows, which must be counted before rows can be ordered.

pub(crate) mod counts;
pub(crate) mod group_lengths;
pub(crate) mod groups;
pub(crate) mod prune;
