//! NaNs. Expressions, and all of their parts, see and return one NaN per float type.
//!
//! Stored floats can have NaNs of both signs and with any payload, and x86 returns a negative NaN for 0/0. Arrow compares
//! floats by their bits, so that two NaNs would differ, and negative ones would sort before all numbers.

use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, ArrowPrimitiveType, FixedSizeListArray, GenericListArray, MapArray, OffsetSizeTrait,
    RecordBatch, RecordBatchOptions, StructArray,
    cast::AsArray,
    types::{Float16Type, Float32Type, Float64Type},
};
use arrow_schema::{ArrowError, DataType};
use datafusion_common::ScalarValue;

/// A float of 16 bits.
type Half = <Float16Type as ArrowPrimitiveType>::Native;

/// Returns `batch` with one NaN per float type.
///
/// # Errors
/// [`ArrowError`] if Arrow can't rebuild a nested column, which no valid batch causes.
pub(crate) fn batch_with_one_nan(batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    if !batch.schema_ref().fields().iter().any(|field| has_floats(field.data_type())) {
        return Ok(batch.clone());
    }
    let columns = batch.columns().iter().map(with_one_nan).collect::<Result<_, _>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(batch.schema(), columns, &options)
}

/// Returns `array` with one NaN per float type, at any depth.
///
/// # Errors
/// As [`batch_with_one_nan`].
pub(crate) fn with_one_nan(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    if !has_floats(array.data_type()) {
        return Ok(Arc::clone(array));
    }
    Ok(match array.data_type() {
        DataType::Float16 => floats::<Float16Type>(array, Half::NAN, Half::is_nan, |x| x.to_bits().into()),
        DataType::Float32 => floats::<Float32Type>(array, f32::NAN, f32::is_nan, |x| x.to_bits().into()),
        DataType::Float64 => floats::<Float64Type>(array, f64::NAN, f64::is_nan, f64::to_bits),
        DataType::List(_) => list(array.as_list::<i32>())?,
        DataType::LargeList(_) => list(array.as_list::<i64>())?,
        DataType::FixedSizeList(..) => {
            let rows = array.len();
            let (field, size, values, nulls) = array.as_fixed_size_list().clone().into_parts();
            let values = with_one_nan(&values)?;
            Arc::new(FixedSizeListArray::try_new_with_length(field, size, values, nulls, rows)?)
        }
        DataType::Struct(_) => Arc::new(fields(array.as_struct())?),
        DataType::Map(..) => {
            let (field, offsets, entries, nulls, ordered) = array.as_map().clone().into_parts();
            Arc::new(MapArray::try_new(field, offsets, fields(&entries)?, nulls, ordered)?)
        }
        _ => Arc::clone(array),
    })
}

/// Returns true if values of the type contain floats, at any depth.
pub(crate) fn has_floats(data_type: &DataType) -> bool {
    match data_type {
        DataType::Float16 | DataType::Float32 | DataType::Float64 => true,
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _) => has_floats(item.data_type()),
        DataType::Struct(fields) => fields.iter().any(|field| has_floats(field.data_type())),
        _ => false,
    }
}

fn floats<T: ArrowPrimitiveType>(
    array: &ArrayRef,
    nan: T::Native,
    is_nan: impl Fn(T::Native) -> bool,
    bits: impl Fn(T::Native) -> u64,
) -> ArrayRef {
    let array_of = array.as_primitive::<T>();
    let is_other = |value: &T::Native| is_nan(*value) && bits(*value) != bits(nan);
    if !array_of.values().iter().any(is_other) {
        return Arc::clone(array);
    }
    Arc::new(array_of.unary::<_, T>(|value| if is_nan(value) { nan } else { value }))
}

fn list<O: OffsetSizeTrait>(list: &GenericListArray<O>) -> Result<ArrayRef, ArrowError> {
    let (field, offsets, values, nulls) = list.clone().into_parts();
    Ok(Arc::new(GenericListArray::<O>::try_new(field, offsets, with_one_nan(&values)?, nulls)?))
}

fn fields(array: &StructArray) -> Result<StructArray, ArrowError> {
    let rows = array.len();
    let (fields, columns, nulls) = array.clone().into_parts();
    let columns = columns.iter().map(with_one_nan).collect::<Result<_, _>>()?;
    StructArray::try_new_with_length(fields, columns, nulls, rows)
}

/// The value of a float of any width.
pub(crate) fn float(value: &ScalarValue) -> Option<f64> {
    match value {
        ScalarValue::Float64(value) => *value,
        ScalarValue::Float32(value) => value.map(f64::from),
        ScalarValue::Float16(value) => value.map(f64::from),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
