//! Columns as plain values for arrays: numbers, booleans, times and decimals, and lists of them.

use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, FixedSizeListArray, Float64Array, Int32Array, Int64Array, PrimitiveArray, UInt8Array,
    cast::AsArray,
    types::{ArrowPrimitiveType, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, Int64Type},
};
use arrow_buffer::{NullBuffer, i256};
use arrow_schema::{DataType, Field, TimeUnit};
use arrow_select::take::take;

use crate::types::plain;

/// Plain values of a column.
pub(crate) struct Numbers {
    /// Values without nulls: one per row, or a fixed-size list per row. Those of nulls are unspecified.
    pub(crate) values: ArrayRef,
    /// NumPy type to view `values` as. Empty if their own type is right.
    pub(crate) dtype: &'static str,
    /// Byte per value, 0 for a null. `None` without nulls.
    pub(crate) valid: Option<ArrayRef>,
}

/// Lists of plain values: the items of all rows, and where the list of each row starts.
pub(crate) struct Lists {
    pub(crate) items: Numbers,
    pub(crate) offsets: Int64Array,
    /// Byte per row, 0 for a null list. `None` without null lists.
    pub(crate) valid: Option<ArrayRef>,
}

/// Returns the plain values of `array`, as views where the layout allows; `None` for text and nested types.
pub(crate) fn numbers(array: &ArrayRef) -> Option<Numbers> {
    let (values, dtype): (ArrayRef, _) = match array.data_type() {
        DataType::FixedSizeList(..) => return matrix(array.as_fixed_size_list()),
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            return numbers(&take(dictionary.values(), dictionary.keys(), None).ok()?);
        }
        DataType::Null => {
            let (rows, valid) = (array.len(), UInt8Array::from(vec![0; array.len()]));
            let valid: Option<ArrayRef> = (rows > 0).then(|| Arc::new(valid) as ArrayRef);
            return Some(Numbers { values: Arc::new(Float64Array::from(vec![0.0; rows])), dtype: "", valid });
        }
        DataType::Boolean => {
            let bytes = array.as_boolean().values().iter().map(u8::from);
            (Arc::new(UInt8Array::from_iter_values(bytes)), "|b1")
        }
        DataType::Date32 => (Arc::new(whole(array)?), "<M8[D]"),
        DataType::Time32(TimeUnit::Second) => (Arc::new(whole(array)?), "<m8[s]"),
        DataType::Time32(_) => (Arc::new(whole(array)?), "<m8[ms]"),
        DataType::Time64(TimeUnit::Microsecond) => (Arc::new(whole(array)?), "<m8[us]"),
        DataType::Time64(_) => (Arc::new(whole(array)?), "<m8[ns]"),
        DataType::Decimal32(_, scale) => {
            (decimals(array.as_primitive::<Decimal32Type>(), *scale, |value| Some(i128::from(value))), "")
        }
        DataType::Decimal64(_, scale) => {
            (decimals(array.as_primitive::<Decimal64Type>(), *scale, |value| Some(i128::from(value))), "")
        }
        DataType::Decimal128(_, scale) => {
            (decimals(array.as_primitive::<Decimal128Type>(), *scale, Some), "")
        }
        DataType::Decimal256(_, scale) => {
            (decimals(array.as_primitive::<Decimal256Type>(), *scale, i256::to_i128), "")
        }
        other => {
            plain(other)?;
            let valued = array.to_data().into_builder().nulls(None).build().ok()?;
            (arrow_array::make_array(valued), "")
        }
    };
    Some(Numbers { values, dtype, valid: bytes(array.nulls()) })
}

/// Returns the lists of plain values that `array` has; `None` for other types.
pub(crate) fn lists(array: &ArrayRef) -> Option<Lists> {
    let (items, offsets): (_, Vec<i64>) = if let Some(lists) = array.as_list_opt::<i32>() {
        (lists.values(), lists.offsets().iter().map(|offset| i64::from(*offset)).collect())
    } else {
        let lists = array.as_list_opt::<i64>()?;
        (lists.values(), lists.offsets().to_vec())
    };
    Some(Lists { items: numbers(items)?, offsets: Int64Array::from(offsets), valid: bytes(array.nulls()) })
}

fn matrix(rows: &FixedSizeListArray) -> Option<Numbers> {
    let length = rows.value_length();
    let Numbers { values, dtype, valid } = numbers(rows.values())?;
    if matches!(values.data_type(), DataType::FixedSizeList(..)) {
        return None;
    }
    let valid = match (rows.nulls().filter(|nulls| nulls.null_count() > 0), valid) {
        (None, valid) => valid,
        (Some(nulls), valid) => {
            let mut bytes = valid.map_or_else(
                || vec![1; values.len()],
                |valid| valid.as_primitive::<arrow_array::types::UInt8Type>().values().to_vec(),
            );
            let width = length as usize;
            for row in (0..rows.len()).filter(|row| nulls.is_null(*row)) {
                bytes[row * width..][..width].fill(0);
            }
            Some(Arc::new(UInt8Array::from(bytes)) as ArrayRef)
        }
    };
    let shaped = |values: ArrayRef| {
        let item = Arc::new(Field::new("item", values.data_type().clone(), false));
        let made = FixedSizeListArray::try_new_with_length(item, length, values, None, rows.len());
        made.ok().map(|made| Arc::new(made) as ArrayRef)
    };
    let valid = match valid {
        Some(valid) => Some(shaped(valid)?),
        None => None,
    };
    Some(Numbers { values: shaped(values)?, dtype, valid })
}

/// Returns integers or times of 32 or 64 bits as 64-bit integers, without nulls. 64-bit values are a view.
pub(crate) fn whole(array: &dyn Array) -> Option<Int64Array> {
    let plain = array.to_data().into_builder().nulls(None);
    if array.data_type().primitive_width()? == 8 {
        return Some(Int64Array::from(plain.data_type(DataType::Int64).build().ok()?));
    }
    let narrow = Int32Array::from(plain.data_type(DataType::Int32).build().ok()?);
    Some(narrow.unary::<_, Int64Type>(i64::from))
}

/// Converts decimals to the nearest floats. `integer` returns the unscaled value, or `None` if it has more than 128 bits.
fn decimals<T: ArrowPrimitiveType>(
    array: &PrimitiveArray<T>,
    scale: i8,
    integer: impl Fn(T::Native) -> Option<i128>,
) -> ArrayRef
where
    T::Native: std::fmt::Debug + ToString,
{
    /// Largest power of ten, and bound of the integers, that a float represents exactly. One division rounds once.
    const EXACT_SCALE: i8 = 22;
    const EXACT_BOUND: u128 = 1 << f64::MANTISSA_DIGITS;

    let power = 10f64.powi(i32::from(scale));
    let nearest = |value: &T::Native| match integer(*value) {
        Some(whole) if (0..=EXACT_SCALE).contains(&scale) && whole.unsigned_abs() <= EXACT_BOUND => {
            whole as f64 / power
        }
        _ => format!("{}e{}", value.to_string(), -i32::from(scale)).parse().unwrap_or(f64::NAN),
    };
    Arc::new(array.values().iter().map(nearest).collect::<Float64Array>())
}

fn bytes(nulls: Option<&NullBuffer>) -> Option<ArrayRef> {
    let nulls = nulls.filter(|nulls| nulls.null_count() > 0)?;
    Some(Arc::new(UInt8Array::from_iter_values(nulls.iter().map(u8::from))))
}
