//! Conversion of keys to the type of a key column, exactly or not at all.

use std::sync::Arc;

use arrow_array::{Array, ArrayRef, Int64Array, cast::AsArray, make_array, types::Int64Type};
use arrow_cast::cast;
use arrow_ord::cmp::distinct;
use arrow_schema::{ArrowError, DataType, TimeUnit};
use arrow_select::nullif::nullif;

/// Maximum size of keys that share the bytes of their values, after each has its own. Other keys are as large as their message.
const MAX_EXPANDED_BYTES: usize = 16 << 20;

/// Types whose values can be equal.
///
/// Floats are no keys: a double cannot tell 2^53 from 2^53 + 1, and NaN and -0 have no one meaning of equality.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Integers and decimals.
    Number,
    Text,
    Binary,
    Boolean,
    /// Dates, which are their midnight, and times without a time zone.
    LocalTime,
    /// Times with a time zone.
    Instant,
}

/// Returns the kind of a type; `None` for a type that cannot be a key.
pub(super) fn kind(data_type: &DataType) -> Option<Kind> {
    Some(match data_type {
        integer if integer.is_integer() => Kind::Number,
        DataType::Decimal32(..)
        | DataType::Decimal64(..)
        | DataType::Decimal128(..)
        | DataType::Decimal256(..) => Kind::Number,
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Kind::Text,
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(1..) => {
            Kind::Binary
        }
        DataType::Boolean => Kind::Boolean,
        DataType::Date32 | DataType::Date64 | DataType::Timestamp(_, None) => Kind::LocalTime,
        DataType::Timestamp(_, Some(_)) => Kind::Instant,
        _ => return None,
    })
}

/// Bytes of a value, if all values of the type have the same width.
pub(super) fn width(data_type: &DataType) -> Option<usize> {
    match data_type {
        DataType::Boolean => Some(1),
        DataType::FixedSizeBinary(width) => usize::try_from(*width).ok(),
        other => other.primitive_width(),
    }
}

/// Converts keys to the type `to` of a key column. Values that the type cannot hold become null.
///
/// # Errors
/// The reason why the type of the keys is refused, to follow the name of the column.
pub(super) fn converted(keys: &ArrayRef, to: &DataType) -> Result<ArrayRef, String> {
    let failed = |error: ArrowError| format!("cannot be converted to {to}: {error}");
    let values = expanded(keys)?;
    if values.data_type() == to {
        return Ok(values);
    }
    let converted = match (kind(values.data_type()), kind(to)) {
        (Some(Kind::Number), Some(Kind::Number)) => number(&values, to),
        (Some(Kind::Text), Some(Kind::Text)) => cast(&values, to),
        (Some(Kind::Binary), Some(Kind::Binary)) => binary(&values, to),
        (Some(Kind::LocalTime), Some(Kind::LocalTime)) | (Some(Kind::Instant), Some(Kind::Instant)) => {
            time(&values, to)
        }
        (found, expected) => return Err(refused(values.data_type(), found, to, expected)),
    };
    converted.map_err(failed)
}

/// The reason why keys of the type `found_type` are refused in a column of the type `to`.
fn refused(found_type: &DataType, found: Option<Kind>, to: &DataType, expected: Option<Kind>) -> String {
    let advice = match (found, expected) {
        (Some(Kind::LocalTime), Some(Kind::Instant)) => "; times without a time zone name no instant",
        (Some(Kind::Instant), Some(Kind::LocalTime)) => "; the times of the dataset have no time zone",
        (None, Some(Kind::Number)) if found_type.is_floating() => {
            "; floats do not tell all integers apart, send integers or decimals"
        }
        _ => "",
    };
    format!("is of type {found_type}, expected {to}{advice}")
}

/// Converts integers and decimals. A cast wraps, truncates or rounds some values; those do not survive the way back.
fn number(values: &ArrayRef, to: &DataType) -> Result<ArrayRef, ArrowError> {
    let cast_values = cast(values, to)?;
    let differ = distinct(&cast(&cast_values, values.data_type())?, values)?;
    nullif(&cast_values, &differ)
}

/// Converts binary values. A value of another length than that of a fixed-size type becomes null.
fn binary(values: &ArrayRef, to: &DataType) -> Result<ArrayRef, ArrowError> {
    cast(&cast(values, &DataType::LargeBinary)?, to)
}

/// Converts times of one kind to another unit. The time zone does not change the instant.
fn time(values: &ArrayRef, to: &DataType) -> Result<ArrayRef, ArrowError> {
    let (from, into) = (nanoseconds(values.data_type()), nanoseconds(to));
    let counts = match values.data_type() {
        DataType::Date32 => cast(&cast(values, &DataType::Int32)?, &DataType::Int64)?,
        _ => cast(values, &DataType::Int64)?,
    };
    let counts: Int64Array = counts.as_primitive::<Int64Type>().unary_opt(|count| {
        let time = i128::from(count) * from;
        (time % into == 0).then(|| i64::try_from(time / into).ok()).flatten()
    });
    match to {
        DataType::Date32 => cast(&cast(&counts, &DataType::Int32)?, to),
        _ => cast(&counts, to),
    }
}

/// Nanoseconds of a unit of a time type.
fn nanoseconds(time: &DataType) -> i128 {
    match time {
        DataType::Date32 => 86_400_000_000_000,
        DataType::Timestamp(TimeUnit::Second, _) => 1_000_000_000,
        DataType::Date64 | DataType::Timestamp(TimeUnit::Millisecond, _) => 1_000_000,
        DataType::Timestamp(TimeUnit::Microsecond, _) => 1000,
        _ => 1,
    }
}

/// Returns the values of keys without a dictionary, runs or views.
///
/// # Errors
/// If the keys can share bytes, and could be larger than [`MAX_EXPANDED_BYTES`] without.
fn expanded(keys: &ArrayRef) -> Result<ArrayRef, String> {
    let each = |values: &dyn Array| keys.len().saturating_mul(longest(values));
    let (plain, bytes) = match keys.data_type() {
        DataType::Utf8View => (DataType::Utf8, keys.as_string_view().total_bytes_len()),
        DataType::BinaryView => (DataType::Binary, keys.as_binary_view().total_bytes_len()),
        DataType::Dictionary(_, plain) if kind(plain).is_some() => {
            (plain.as_ref().clone(), each(keys.as_any_dictionary().values()))
        }
        DataType::RunEndEncoded(_, plain) if kind(plain.data_type()).is_some() => {
            let values = make_array(keys.to_data().child_data()[1].clone());
            (plain.data_type().clone(), each(&values))
        }
        _ => return Ok(Arc::clone(keys)),
    };
    if bytes > MAX_EXPANDED_BYTES {
        return Err(format!(
            "can take {bytes} bytes as plain values, expected at most {MAX_EXPANDED_BYTES}; send fewer keys at once"
        ));
    }
    let plain = cast(keys, &plain).map_err(|error| format!("cannot be expanded: {error}"))?;
    // The values of a dictionary may be views.
    expanded(&plain)
}

/// Length of the longest value, in bytes.
fn longest(values: &dyn Array) -> usize {
    let lengths = |offsets: &mut dyn Iterator<Item = usize>| offsets.max().unwrap_or(0);
    match values.data_type() {
        DataType::Utf8 => lengths(&mut values.as_string::<i32>().offsets().lengths()),
        DataType::LargeUtf8 => lengths(&mut values.as_string::<i64>().offsets().lengths()),
        DataType::Binary => lengths(&mut values.as_binary::<i32>().offsets().lengths()),
        DataType::LargeBinary => lengths(&mut values.as_binary::<i64>().offsets().lengths()),
        DataType::Utf8View => lengths(&mut values.as_string_view().lengths().map(|length| length as usize)),
        DataType::BinaryView => lengths(&mut values.as_binary_view().lengths().map(|length| length as usize)),
        other => width(other).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests;
