//! Promises of expressions. An integration test, because unit tests would compile the SQL planner a second time.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

mod casts;
mod changed;
mod compile;
mod exact;
mod functions;
mod fuzzed;
mod identity;
mod limits;
mod prune;
mod rounding;
mod rows;
mod sums;

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use forebay_sql::{Error, Expression};
use proptest::test_runner::Config;

/// Configuration of a property test with `number` cases. The environment variable PROPTEST_CASES has precedence.
fn cases(number: u32) -> Config {
    let config = Config::default();
    if std::env::var_os("PROPTEST_CASES").is_some() { config } else { Config { cases: number, ..config } }
}

/// Evaluates an expression for rows with these columns. Its result has the type that the compiled expression names.
fn try_evaluate(text: &str, columns: &[(&str, ArrayRef)]) -> Result<ArrayRef, Error> {
    let columns = columns.iter().map(|(name, column)| (*name, Arc::clone(column), true));
    let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    let expression = Expression::column(&format!("{text} AS y"), &batch.schema())?;
    let values = expression.evaluate(&batch.project(expression.inputs()).unwrap())?;
    assert_eq!(values.data_type(), expression.field().data_type(), "{text}");
    Ok(values)
}
