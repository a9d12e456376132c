//! SQL expressions over the columns of a row: computed columns and row filters of a view.
//!
//! ```text
//! "log1p(delay) AS y" --parse, check, simplify--> Expression --evaluate--> a column
//!  + the dataset's schema                              |
//!                                                      +--prune--> can a block contain matching rows?
//! ```
//!
//! - [`Expression`]: a compiled expression, a pure function of the columns it names: a row's values do not depend on other
//!   rows. Impure functions (`random()`, `now()`), subqueries and aggregates are errors.
//! - [`ValueSet`]: values that a filter refers to by name.
//! - [`Bounds`]: statistics of a block's rows, known without reading them.
//!
//! Parsing, types and evaluation use DataFusion's expression crates, without its query engine. [`functions`] adds functions for
//! feature engineering. This crate names no files, blocks or caches.

#![forbid(unsafe_code)]

mod compile;
mod dialect;
mod digits;
mod error;
mod evaluation;
mod exact;
mod expression_identity;
mod followed;
pub mod functions;
mod growth;
mod guard;
mod hints;
mod identity;
mod intervals;
mod literal_text;
mod lower;
mod nan;
mod nulls;
mod planner;
mod prune;
mod supported;
mod values;

use arrow_array::Array;
use arrow_schema::{DataType, Field, Schema};

pub use compile::{Expression, MAX_COMPLEXITY};
pub use datafusion_common::ScalarValue;
pub use error::Error;
pub use evaluation::Evaluation;
pub use exact::floats::cast;
pub use expression_identity::SEMANTICS;
pub use growth::{SLICE_COST, array_bytes, slices};
pub use identity::Identity;
pub use prune::{Bounds, Verdict};
pub use values::{SetMemory, ValueSet};

/// Versions of the libraries that compute expressions. Values on disk are named by it, so that a later version of a library
/// does not read what an earlier one computed. A test compares it with `Cargo.lock`.
pub const COMPUTED_BY: &str = "arrow 59.3.2, datafusion 55.2.0";

/// Initializes process-wide state, mainly DataFusion's functions. It takes about 25 ms, which otherwise delay the first
/// expression.
pub fn warm_up() {
    let schema = Schema::new(vec![Field::new("x", DataType::Int64, true)]);
    drop(Expression::filter("x BETWEEN 1 AND 2", &schema));
}

/// Replaces nulls by false.
pub fn not_null(values: &arrow_array::BooleanArray) -> arrow_array::BooleanArray {
    match values.nulls() {
        Some(_) => arrow_select::filter::prep_null_mask_filter(values),
        None => values.clone(),
    }
}
