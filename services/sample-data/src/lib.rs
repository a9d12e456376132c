//! Generated Parquet data for the demo, tests and load tests.
//!
//! - [`lineitem`]: the table `lineitem` of TPC-H.
//! - [`ranking`]: a log of rankings, with features of queries and items.
//! - [`once`]: folders that are generated once and kept.
//!
//! The data is a pure function of its size.

#![forbid(unsafe_code)]

mod file;
pub mod lineitem;
pub mod once;
pub mod ranking;
