//! Values that a cast must refuse, although Arrow returns a wrong result for them, or fails even in `TRY_CAST`. They are decimals with more
//! digits than their type (to text), dates and timestamps beyond the calendar (to text, `DATE` or `TIME`), and integers outside of a day (to
//! `TIME`).

use arrow_array::{Array, ArrayRef, cast::AsArray, types::Int64Type};
use arrow_cast::cast;
use arrow_schema::DataType;
use datafusion_common::Result;

use crate::{
    digits,
    functions::calendar::{DATED, ends, per_second},
};

/// Returns true if values of the type `from` can be without a result in a cast to the type `to`.
pub(super) fn has_limits(from: &DataType, to: &DataType) -> bool {
    let is_time = matches!(to, DataType::Time32(_) | DataType::Time64(_));
    match from {
        DataType::Dictionary(_, value) => has_limits(value, to),
        decimal if decimal.is_decimal() => to.is_string(),
        DataType::Timestamp(..) => to.is_string() || is_time || *to == DataType::Date32,
        DataType::Date32 | DataType::Date64 | DataType::Time32(_) | DataType::Time64(_) => to.is_string(),
        DataType::Int32 | DataType::Int64 => is_time,
        _ => false,
    }
}

/// Positions of the values that have no result of the type `to`. `values` are no dictionary.
///
/// # Errors
/// Never for types that [have limits](has_limits).
pub(super) fn refused(values: &ArrayRef, to: &DataType) -> Result<Vec<usize>> {
    let from = values.data_type();
    if from.is_decimal() {
        return Ok(digits::rows_beyond(values));
    }
    let Some((least, greatest)) = ends(if from.is_integer() { to } else { from }) else {
        return Ok(Vec::new());
    };
    let units = cast(values, &DataType::Int64)?;
    let units = units.as_primitive::<Int64Type>();
    let beyond = units.values().iter().enumerate().filter(|(_, unit)| **unit < least || **unit > greatest);
    Ok(beyond.map(|(row, _)| row).filter(|row| units.is_valid(*row)).collect())
}

/// Why the value in a row has no result of the type `to`.
///
/// # Errors
/// As [`refused`].
pub(super) fn reason(values: &ArrayRef, row: usize, to: &DataType) -> Result<String> {
    let from = values.data_type();
    if from.is_decimal() {
        let value = digits::shown(values, row);
        return Ok(format!("the value {value} has more digits than its type {from} holds"));
    }
    let units = cast(&values.slice(row, 1), &DataType::Int64)?;
    let value = units.as_primitive::<Int64Type>().value(0);
    Ok(match from {
        DataType::Time32(unit) | DataType::Time64(unit) => {
            let end = 86_400 * per_second(*unit);
            format!("the value {value} of type {from} is no time of day, expected 0 to {}", end - 1)
        }
        integer if integer.is_integer() => {
            let end = ends(to).map_or(0, |(_, greatest)| greatest);
            format!("the integer {value} is no time of day of type {to}, expected 0 to {end}")
        }
        _ => format!("the value {value} of type {from} is beyond the {DATED}"),
    })
}
