//! Values that a cast must refuse, although Arrow returns a wrong result for them, or fails even in `TRY_CAST`. They are decimals with more
//! digits than their type (to text), dates and timestamps beyond the calendar (to text, `DATE` or `TIME`), long durations (to text), integers
//! outside of a day (to `TIME`), and texts that Arrow reads as something else (to `TIME` or `INTERVAL`): a number without a unit is a number of
//! months for it, or of nanoseconds since midnight, and the second 60 is one.

use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, BooleanArray, FixedSizeListArray, GenericListArray, OffsetSizeTrait, StructArray,
    cast::AsArray, types::Int64Type,
};
use arrow_cast::{cast, display::array_value_to_string};
use arrow_schema::{DataType, Field, TimeUnit};
use arrow_select::nullif::nullif;
use datafusion_common::{Result, exec_datafusion_err};

use super::floats::item;
use crate::{
    digits,
    functions::calendar::{DATED, ends, per_second},
};

/// Returns true if values of the type `from` can be without a result in a cast to the type `to`. Items of lists are cast alike.
pub(super) fn has_limits(from: &DataType, to: &DataType) -> bool {
    let is_time = matches!(to, DataType::Time32(_) | DataType::Time64(_));
    match from {
        DataType::Dictionary(_, value) => has_limits(value, to),
        decimal if decimal.is_decimal() => to.is_string(),
        text if text.is_string() => is_time || matches!(to, DataType::Interval(_)),
        DataType::Timestamp(..) => to.is_string() || is_time || *to == DataType::Date32,
        DataType::Date32 | DataType::Date64 | DataType::Time32(_) | DataType::Time64(_) => to.is_string(),
        DataType::Duration(TimeUnit::Second | TimeUnit::Millisecond) => to.is_string(),
        DataType::Int32 | DataType::Int64 => is_time,
        DataType::Struct(fields) => match to {
            DataType::Struct(to) => {
                fields.iter().zip(to).any(|(from, to)| has_limits(from.data_type(), to.data_type()))
            }
            _ => false,
        },
        list => match (item(list), item_of(to)) {
            (Some(from), Some(to)) => has_limits(from, to),
            _ => false,
        },
    }
}

/// The type to which the items of a list are cast, with the list or in its text.
fn item_of(to: &DataType) -> Option<&DataType> {
    if to.is_string() { Some(to) } else { item(to) }
}

/// Returns values all of which have a result of the type `to`. Those without one become null with `safe`.
///
/// # Errors
/// Why the first value without a result has none, unless `safe` is set.
pub(super) fn within(values: &ArrayRef, to: &DataType, safe: bool) -> Result<ArrayRef> {
    if !has_limits(values.data_type(), to) {
        return Ok(Arc::clone(values));
    }
    let unexpected = || exec_datafusion_err!("no conversion of {} to {to}", values.data_type());
    Ok(match values.data_type() {
        DataType::Dictionary(_, value) => within(&cast(values, value)?, to, safe)?,
        DataType::List(_) => list(values.as_list::<i32>(), item_of(to).ok_or_else(unexpected)?, safe)?,
        DataType::LargeList(_) => list(values.as_list::<i64>(), item_of(to).ok_or_else(unexpected)?, safe)?,
        DataType::FixedSizeList(..) => {
            let rows = values.len();
            let (field, size, items, nulls) = values.as_fixed_size_list().clone().into_parts();
            let items = within(&items, item_of(to).ok_or_else(unexpected)?, safe)?;
            let field = of_values(&field, &items);
            Arc::new(FixedSizeListArray::try_new_with_length(field, size, items, nulls, rows)?)
        }
        DataType::Struct(_) => {
            let DataType::Struct(to) = to else { return Err(unexpected()) };
            let rows = values.len();
            let (fields, columns, nulls) = values.as_struct().clone().into_parts();
            let columns = columns.iter().zip(to).map(|(column, to)| within(column, to.data_type(), safe));
            let columns = columns.collect::<Result<Vec<_>>>()?;
            let fields = fields.iter().zip(&columns).map(|(field, column)| of_values(field, column));
            Arc::new(StructArray::try_new_with_length(fields.collect(), columns, nulls, rows)?)
        }
        _ => {
            let refused = refused(values, to)?;
            match refused.first() {
                None => Arc::clone(values),
                Some(first) if !safe => return Err(exec_datafusion_err!("{}", reason(values, *first, to)?)),
                Some(_) => {
                    let mut without_result = vec![false; values.len()];
                    refused.into_iter().for_each(|row| without_result[row] = true);
                    nullif(values, &BooleanArray::from(without_result))?
                }
            }
        }
    })
}

fn list<O: OffsetSizeTrait>(list: &GenericListArray<O>, to: &DataType, safe: bool) -> Result<ArrayRef> {
    let (field, offsets, items, nulls) = list.clone().into_parts();
    let items = within(&items, to, safe)?;
    let field = of_values(&field, &items);
    Ok(Arc::new(GenericListArray::<O>::try_new(field, offsets, items, nulls)?))
}

/// The field of values of which some may have become null.
fn of_values(field: &Field, values: &ArrayRef) -> Arc<Field> {
    Arc::new(field.clone().with_data_type(values.data_type().clone()).with_nullable(true))
}

/// Positions of the values that have no result of the type `to`.
fn refused(values: &ArrayRef, to: &DataType) -> Result<Vec<usize>> {
    let from = values.data_type();
    if from.is_decimal() {
        return Ok(digits::rows_beyond(values));
    }
    if from.is_string() {
        let texts = cast(values, &DataType::LargeUtf8)?;
        let texts = texts.as_string::<i64>().iter().enumerate();
        return Ok(texts
            .filter(|(_, text)| text.is_some_and(|text| !is_read(text, to)))
            .map(|(row, _)| row)
            .collect());
    }
    let ends = match from {
        integer if integer.is_integer() => ends(to),
        DataType::Duration(unit) => {
            let longest = i64::MAX / (1_000 / per_second(*unit));
            Some((-longest, longest))
        }
        other => ends(other),
    };
    let Some((least, greatest)) = ends else { return Ok(Vec::new()) };
    let units = cast(values, &DataType::Int64)?;
    let units = units.as_primitive::<Int64Type>();
    let beyond = units.values().iter().enumerate().filter(|(_, unit)| **unit < least || **unit > greatest);
    Ok(beyond.map(|(row, _)| row).filter(|row| units.is_valid(*row)).collect())
}

/// Returns false for a text that Arrow reads although it is no time of day, or no interval.
fn is_read(text: &str, to: &DataType) -> bool {
    if matches!(to, DataType::Interval(_)) {
        // Each number has a unit.
        let is_unit = |word: &str| word.starts_with(|letter: char| letter.is_ascii_alphabetic());
        let is_number = |word: &str| !word.contains(|letter: char| letter.is_ascii_alphabetic());
        let words: Vec<&str> = text.split_whitespace().collect();
        let has_unit = |at: usize| words.get(at + 1).is_some_and(|next| is_unit(next));
        return !words.is_empty() && (0..words.len()).all(|at| !is_number(words[at]) || has_unit(at));
    }
    let mut parts = text.split(':').skip(1);
    parts.next().is_some() && parts.next().is_none_or(|seconds| !seconds.starts_with("60"))
}

/// Why the value in a row has no result of the type `to`.
fn reason(values: &ArrayRef, row: usize, to: &DataType) -> Result<String> {
    let from = values.data_type();
    if from.is_decimal() {
        let value = digits::shown(values, row);
        return Ok(format!("the value {value} has more digits than its type {from} holds"));
    }
    if from.is_string() {
        let text = array_value_to_string(values, row)?;
        return Ok(match to {
            DataType::Interval(_) => {
                format!("the text '{text}' is no interval, expected numbers with units, such as '5 seconds'")
            }
            _ => format!("the text '{text}' is no time of day, expected hours:minutes:seconds"),
        });
    }
    let units = cast(&values.slice(row, 1), &DataType::Int64)?;
    let value = units.as_primitive::<Int64Type>().value(0);
    Ok(match from {
        DataType::Time32(unit) | DataType::Time64(unit) => {
            let end = 86_400 * per_second(*unit);
            format!("the value {value} of type {from} is no time of day, expected 0 to {}", end - 1)
        }
        DataType::Duration(_) => format!("the value {value} of type {from} is too long for a text"),
        integer if integer.is_integer() => {
            let end = ends(to).map_or(0, |(_, greatest)| greatest);
            format!("the integer {value} is no time of day of type {to}, expected 0 to {end}")
        }
        _ => format!("the value {value} of type {from} is beyond the {DATED}"),
    })
}
