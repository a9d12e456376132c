//! SQL expressions over the columns of a row: what a view computes, and which rows it keeps.
//!
//! ```text
//! "log1p(delay) AS y" --parse, check, simplify--> Expression --evaluate--> a column
//!  + the dataset's schema                              |
//!                                                      +--prune--> may a block hold such rows at all?
//! ```
//!
//! - [`Expression`]: one expression, compiled. It is a pure function of the columns it names: the same rows give the same
//!   values, whatever lies beside them. What isn't (`random()`, `now()`) is refused, and so are subqueries and aggregates.
//! - [`Bounds`]: what is known of the rows of a block without reading them.
//!
//! Parsing, types and evaluation are DataFusion's expression crates, without its engine; the functions that trainers
//! need beside theirs are in [`functions`]. This crate knows no files, blocks or caches.

#![forbid(unsafe_code)]

mod compile;
mod error;
pub mod functions;
mod nulls;
mod prune;

use arrow_array::Array;
use arrow_schema::{DataType, Field, Schema};

pub use compile::Expression;
pub use datafusion_common::ScalarValue;
pub use error::Error;
pub use prune::{Bounds, Verdict};

/// Makes ready what a process has once, DataFusion's functions above all, which takes some 25 ms: else the first expression would
/// wait for it.
pub fn warm_up() {
    let schema = Schema::new(vec![Field::new("x", DataType::Int64, true)]);
    drop(Expression::filter("x BETWEEN 1 AND 2", &schema));
}

/// The same with false in the place of null.
pub fn not_null(values: &arrow_array::BooleanArray) -> arrow_array::BooleanArray {
    match values.nulls() {
        Some(_) => arrow_select::filter::prep_null_mask_filter(values),
        None => values.clone(),
    }
}
