//! Conversion of columns to the one type of a tensor: overflow, and NaN to an integer, are errors;
//! the rounding of floating point is allowed; a fraction is cut off on its way to an integer.

use arrow_array::{
    Array, ArrayRef, ArrowPrimitiveType,
    cast::AsArray,
    types::{Float16Type, Float32Type, Float64Type},
};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{DataType, Field};

use crate::Error;

const DTYPES: [(&str, DataType); 11] = [
    ("float16", DataType::Float16),
    ("float32", DataType::Float32),
    ("float64", DataType::Float64),
    ("int8", DataType::Int8),
    ("int16", DataType::Int16),
    ("int32", DataType::Int32),
    ("int64", DataType::Int64),
    ("uint8", DataType::UInt8),
    ("uint16", DataType::UInt16),
    ("uint32", DataType::UInt32),
    ("uint64", DataType::UInt64),
];

/// The element type of tensor `name`: the one that is asked for, or the one that all columns have.
pub(crate) fn dtype(name: &str, requested: &str, columns: &[&DataType]) -> Result<DataType, Error> {
    let field = format!("tensors.{name}.dtype");
    let known = || DTYPES.map(|(word, _)| word).join(", ");
    if !requested.is_empty() {
        let found = DTYPES.iter().find(|(word, _)| *word == requested);
        return found
            .map(|(_, data_type)| data_type.clone())
            .ok_or_else(|| Error::invalid(field, format!("'{requested}' is none of {}", known())));
    }
    let first = columns.first().copied().unwrap_or(&DataType::Null);
    if let Some(other) = columns.iter().find(|other| **other != first) {
        let reason = format!("the columns are of types {first} and {other}; say which of {}", known());
        return Err(Error::invalid(field, reason));
    }
    if !DTYPES.iter().any(|(_, data_type)| data_type == first) {
        let reason = format!("the columns are of type {first}; say which of {}", known());
        return Err(Error::invalid(field, reason));
    }
    Ok(first.clone())
}

pub(crate) fn check_convertible(name: &str, field: &Field, dtype: &DataType) -> Result<(), Error> {
    let from = field.data_type();
    if from == &DataType::Boolean || from.is_numeric() {
        return Ok(());
    }
    let reason = format!("column '{}' of type {from} can't become {dtype}", field.name());
    Err(Error::invalid(format!("tensors.{name}"), reason))
}

/// Whether `fill` is a value of `dtype`.
pub(crate) fn check_fill(name: &str, fill: f64, dtype: &DataType) -> Result<(), Error> {
    let fits = match dtype {
        DataType::Float64 => true,
        DataType::Float32 => !(fill.is_finite() && (fill as f32).is_infinite()),
        DataType::Float16 => !(fill.is_finite() && half::f16::from_f64(fill).is_infinite()),
        integer => {
            let (low, past) = integer_range(integer);
            fill.fract() == 0.0 && fill >= low && fill < past
        }
    };
    if fits {
        return Ok(());
    }
    Err(Error::invalid(format!("tensors.{name}.fill"), format!("{fill} is not a value of {dtype}")))
}

/// Smallest value, and the one after the largest; both are powers of two or 0, so exact.
fn integer_range(data_type: &DataType) -> (f64, f64) {
    let bits = 8 * data_type.primitive_width().unwrap_or(1) as i32;
    if data_type.is_signed_integer() {
        (-(2f64.powi(bits - 1)), 2f64.powi(bits - 1))
    } else {
        (0.0, 2f64.powi(bits))
    }
}

/// `fill` as the little-endian bytes of one value of `dtype`; it has passed [`check_fill`].
pub(crate) fn fill_bytes(fill: f64, dtype: &DataType) -> Vec<u8> {
    match dtype {
        DataType::Float64 => fill.to_le_bytes().to_vec(),
        DataType::Float32 => (fill as f32).to_le_bytes().to_vec(),
        DataType::Float16 => half::f16::from_f64(fill).to_le_bytes().to_vec(),
        integer => {
            let width = integer.primitive_width().unwrap_or(1);
            (fill as i128).to_le_bytes()[..width].to_vec()
        }
    }
}

/// `array` as `dtype`; the reason when a value does not fit. Nulls stay nulls.
pub(crate) fn convert(array: &ArrayRef, dtype: &DataType) -> Result<ArrayRef, String> {
    if array.data_type() == dtype {
        return Ok(ArrayRef::clone(array));
    }
    let options = CastOptions { safe: false, ..CastOptions::default() };
    let converted = cast_with_options(array.as_ref(), dtype, &options)
        .map_err(|error| format!("{error}, expected {dtype}"))?;
    if dtype.is_floating() && has_new_infinity(array, &converted) {
        return Err(format!("a finite {} value overflows {dtype}", array.data_type()));
    }
    Ok(converted)
}

/// Whether a value became infinite that was not so before.
fn has_new_infinity(before: &ArrayRef, after: &ArrayRef) -> bool {
    let infinite = |row: usize| match before.data_type() {
        DataType::Float64 => before.as_primitive::<Float64Type>().value(row).is_infinite(),
        DataType::Float32 => before.as_primitive::<Float32Type>().value(row).is_infinite(),
        DataType::Float16 => before.as_primitive::<Float16Type>().value(row).is_infinite(),
        _ => false,
    };
    match after.data_type() {
        DataType::Float32 => {
            any_row::<Float32Type>(after, |row, value| value.is_infinite() && !infinite(row))
        }
        DataType::Float16 => {
            any_row::<Float16Type>(after, |row, value| value.is_infinite() && !infinite(row))
        }
        _ => false,
    }
}

fn any_row<T: ArrowPrimitiveType>(array: &ArrayRef, test: impl Fn(usize, T::Native) -> bool) -> bool {
    let array = array.as_primitive::<T>();
    array.values().iter().enumerate().any(|(row, value)| array.is_valid(row) && test(row, *value))
}

#[cfg(test)]
mod tests;
