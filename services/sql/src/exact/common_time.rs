//! The common types of dates and timestamps, of times of day, and of durations.
//!
//! Its unit is the finest one of the columns, or a finer one that a constant needs. DataFusion would use nanoseconds for each constant, which
//! have the years 1677 to 2262, and has no common type of times of day.

use arrow_schema::{DataType, TimeUnit};
use datafusion_common::{Result, plan_err};
use datafusion_expr::{Expr, ExprSchemable};

use super::{
    constants::{constant, read, text},
    kind::shown,
    moment::Seconds,
    number::Number,
    place::{Place, place},
    side::Scope,
};

const UTC: &str = "+00:00";

/// Gives dates, timestamps and texts one type. A date becomes its midnight, which is one in UTC if the timestamps have a zone.
///
/// # Errors
/// If a text is not a timestamp or date, and if the type does not have the value of a constant.
pub(super) fn moments(mut parts: Vec<Expr>, types: &[DataType], scope: Scope<'_>) -> Result<Vec<Expr>> {
    let is_column = |part: &Expr| !part.column_refs().is_empty();
    let columns = || parts.iter().zip(types).filter(move |(part, _)| is_column(part)).map(|(_, own)| own);
    if !columns().any(|data_type| !data_type.is_null()) {
        return Ok(parts);
    }
    let is_timestamp = |data_type: &DataType| matches!(data_type, DataType::Timestamp(..));
    if !types.iter().any(is_timestamp) {
        let is_long = types.contains(&DataType::Date64);
        let common = if is_long { DataType::Date64 } else { DataType::Date32 };
        for (part, data_type) in parts.iter_mut().zip(types) {
            *part = match text(part) {
                Some(text) => constant(read(&text, &common)?),
                None if data_type.is_null() => continue,
                None => part.clone().cast_to(&common, scope.schema)?,
            };
        }
        return Ok(parts);
    }
    let zone = columns().chain(types).find_map(|data_type| match data_type {
        DataType::Timestamp(_, zone) => zone.clone(),
        _ => None,
    });
    let with_unit = |unit| DataType::Timestamp(unit, zone.clone());
    let values = constants(&parts, &with_unit(TimeUnit::Nanosecond), scope)?;
    let of_columns = columns().filter_map(|data_type| match data_type {
        DataType::Timestamp(unit, _) => Some(*unit),
        _ => None,
    });
    // A date with a constant becomes a timestamp with microseconds, as a date with an interval does.
    let of_columns = of_columns.max_by_key(digits).unwrap_or(TimeUnit::Microsecond);
    let common = with_unit(finest(of_columns, &values));
    for ((part, data_type), value) in parts.iter_mut().zip(types).zip(values) {
        *part = match value {
            Some(value) => at(&value, part, &common)?,
            None if data_type.is_null() => continue,
            None if zone.is_some() && !is_timestamp(data_type) => {
                let midnight = DataType::Timestamp(TimeUnit::Microsecond, Some(UTC.into()));
                part.clone().cast_to(&midnight, scope.schema)?.cast_to(&common, scope.schema)?
            }
            None => part.clone().cast_to(&common, scope.schema)?,
        };
    }
    Ok(parts)
}

/// Gives times of day and texts one type.
///
/// # Errors
/// If a text is not a time of day.
pub(super) fn times(mut parts: Vec<Expr>, types: &[DataType], scope: Scope<'_>) -> Result<Vec<Expr>> {
    let finest_type = DataType::Time64(TimeUnit::Nanosecond);
    let values = constants(&parts, &finest_type, scope)?;
    let of_columns = types.iter().zip(&values).filter_map(|(data_type, value)| match data_type {
        DataType::Time32(unit) | DataType::Time64(unit) if value.is_none() => Some(*unit),
        _ => None,
    });
    let Some(of_columns) = of_columns.max_by_key(digits) else { return Ok(parts) };
    let common = match finest(of_columns, &values) {
        unit @ (TimeUnit::Second | TimeUnit::Millisecond) => DataType::Time32(unit),
        unit => DataType::Time64(unit),
    };
    for ((part, data_type), value) in parts.iter_mut().zip(types).zip(values) {
        *part = match value {
            Some(value) => at(&value, part, &common)?,
            None if data_type.is_null() => continue,
            None => part.clone().cast_to(&common, scope.schema)?,
        };
    }
    Ok(parts)
}

/// The duration type of the finest unit; `None` if a value is neither a duration nor a null.
pub(super) fn finest_duration(types: &[DataType]) -> Option<DataType> {
    let mut finest: Option<TimeUnit> = None;
    for data_type in types {
        match data_type {
            DataType::Duration(unit) => finest = finest.into_iter().chain([*unit]).max_by_key(digits),
            DataType::Null => {}
            _ => return None,
        }
    }
    finest.map(DataType::Duration)
}

/// The exact values of the constants among `parts`, whose common type has at most the unit of `data_type`.
fn constants(parts: &[Expr], data_type: &DataType, scope: Scope<'_>) -> Result<Vec<Option<Number>>> {
    let mut values = Vec::with_capacity(parts.len());
    for part in parts {
        let value = match (text(part), scope.constant_for(part, data_type)?) {
            // A timestamp is read as a literal is, also outside of the range of the type.
            (_, Some(value)) => Some(value),
            (Some(text), None) => Seconds::of_value(&read(&text, data_type)?).map(Seconds::number),
            (None, None) => None,
        };
        values.push(value);
    }
    Ok(values)
}

/// The unit of the columns, or a finer one in which all constants are exact.
fn finest(of_columns: TimeUnit, values: &[Option<Number>]) -> TimeUnit {
    let needed = values.iter().flatten().map(|value| match value.fraction_digits() {
        ..=0 => TimeUnit::Second,
        1..=3 => TimeUnit::Millisecond,
        4..=6 => TimeUnit::Microsecond,
        _ => TimeUnit::Nanosecond,
    });
    needed.chain([of_columns]).max_by_key(digits).unwrap_or(of_columns)
}

/// Number of decimal digits of a second.
fn digits(unit: &TimeUnit) -> u8 {
    match unit {
        TimeUnit::Second => 0,
        TimeUnit::Millisecond => 3,
        TimeUnit::Microsecond => 6,
        TimeUnit::Nanosecond => 9,
    }
}

fn at(value: &Number, part: &Expr, data_type: &DataType) -> Result<Expr> {
    match place(value, data_type) {
        Some(Place::At(found)) => Ok(constant(found)),
        _ => plan_err!("{} is beyond the range of {data_type}, which the other values have", shown(part)),
    }
}
