//! Conversion of decimals to the nearest floats, and of decimals of 256 bits to integers.
//!
//! To convert a decimal to a float, Arrow divides a rounded integer by a rounded power of ten. The result is often a neighbour of the nearest
//! float. To convert a decimal of 256 bits to an integer, Arrow takes its lowest 64 bits, also if the value is out of range.

use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, Decimal128Array, FixedSizeListArray, GenericListArray, OffsetSizeTrait, StructArray,
    cast::AsArray,
    types::{
        Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, DecimalType, Float16Type, Float32Type,
        Float64Type,
    },
};
use arrow_buffer::i256;
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{ArrowError, DataType, Field, TimeUnit};
use half::f16;

use super::number::Number;

/// Powers of ten that a double represents exactly.
const POWERS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18,
    1e19, 1e20, 1e21, 1e22,
];
/// Powers of ten that a float of 32 bits represents exactly.
const POWERS_F32: [f32; 11] = [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10];

/// Converts values as Arrow does, except that decimals become the nearest floats, also in lists and structs. Beyond the range of the
/// float type they become infinite. Decimals of 256 bits become integers and times, and dates of 64 bits timestamps, only if they fit.
///
/// # Errors
/// As `arrow_cast::cast_with_options`.
pub fn cast(array: &ArrayRef, to: &DataType, options: &CastOptions<'_>) -> Result<ArrayRef, ArrowError> {
    let array = prepared(array, to)?;
    if array.data_type() == to { Ok(array) } else { cast_with_options(&array, to, options) }
}

/// Returns true if [`cast`] differs from the conversion of Arrow.
pub(crate) fn differs(from: &DataType, to: &DataType) -> bool {
    match (from, to) {
        (DataType::Decimal256(..), to) if has_whole(to) => true,
        (DataType::Date64, DataType::Timestamp(..)) => true,
        (from, to) if from.is_decimal() => to.is_floating(),
        (DataType::Dictionary(_, from), to) => differs(from, to),
        (DataType::Struct(from), DataType::Struct(to)) => {
            from.iter().zip(to).any(|(from, to)| differs(from.data_type(), to.data_type()))
        }
        (from, to) => match (item(from), item(to)) {
            (Some(from), Some(to)) => differs(from, to),
            _ => false,
        },
    }
}

/// The double that is nearest to an integer divided by ten to the power of `scale`. Of two equally near ones, that with an even
/// mantissa.
pub(crate) fn nearest(unscaled: impl Into<i256>, scale: i8) -> f64 {
    let unscaled = unscaled.into();
    // An operation on exact operands rounds once.
    match (unscaled.to_i128(), usize::try_from(scale)) {
        (Some(whole), Ok(0)) => whole as f64,
        (Some(whole), Ok(scale @ ..=22)) if whole.unsigned_abs() <= 1 << f64::MANTISSA_DIGITS => {
            whole as f64 / POWERS[scale]
        }
        _ => number(unscaled, scale).nearest(),
    }
}

/// The float of 32 bits that is nearest to an integer divided by ten to the power of `scale`; see [`nearest`].
pub(crate) fn nearest_f32(unscaled: i256, scale: i8) -> f32 {
    match (unscaled.to_i128(), usize::try_from(scale)) {
        (Some(whole), Ok(0)) => whole as f32,
        (Some(whole), Ok(scale @ ..=10)) if whole.unsigned_abs() <= 1 << f32::MANTISSA_DIGITS => {
            whole as f32 / POWERS_F32[scale]
        }
        _ => number(unscaled, scale).nearest_f32(),
    }
}

/// The float of 16 bits that is nearest to an integer divided by ten to the power of `scale`; see [`nearest`].
pub(crate) fn nearest_f16(unscaled: i256, scale: i8) -> f16 {
    number(unscaled, scale).nearest_f16()
}

fn number(unscaled: i256, scale: i8) -> Number {
    let text = format!("{unscaled}e{}", -i16::from(scale));
    Number::parse(&text).expect("an integer and an exponent are a number")
}

/// Converts the parts of an array that Arrow would not convert correctly to the type `to`: decimals to floats if `to` has floats, decimals of 256
/// bits to decimals of 128 bits if `to` has integers or times, and dates of 64 bits to milliseconds if `to` has timestamps. Other parts keep their types.
fn prepared(array: &ArrayRef, to: &DataType) -> Result<ArrayRef, ArrowError> {
    if !differs(array.data_type(), to) {
        return Ok(Arc::clone(array));
    }
    let unexpected = || ArrowError::CastError(format!("no conversion of {} to {to}", array.data_type()));
    Ok(match (array.data_type(), to) {
        (DataType::Decimal32(..), to) => floats::<Decimal32Type>(array, to),
        (DataType::Decimal64(..), to) => floats::<Decimal64Type>(array, to),
        (DataType::Decimal128(..), to) => floats::<Decimal128Type>(array, to),
        (DataType::Decimal256(..), to) if has_whole(to) => Arc::new(whole(array)?),
        // The product of milliseconds would wrap around. Timestamps are converted with a check.
        (DataType::Date64, DataType::Timestamp(..)) => cast_with_options(
            array,
            &DataType::Timestamp(TimeUnit::Millisecond, None),
            &CastOptions::default(),
        )?,
        (DataType::Decimal256(..), to) => floats::<Decimal256Type>(array, to),
        (DataType::Dictionary(_, value), to) => {
            prepared(&cast_with_options(array, value, &CastOptions::default())?, to)?
        }
        (DataType::Struct(_), DataType::Struct(to)) => {
            let rows = array.len();
            let (fields, columns, nulls) = array.as_struct().clone().into_parts();
            let columns = columns.iter().zip(to).map(|(column, to)| prepared(column, to.data_type()));
            let columns = columns.collect::<Result<Vec<_>, _>>()?;
            let fields = fields.iter().zip(&columns).map(|(field, column)| retyped(field, column)).collect();
            Arc::new(StructArray::try_new_with_length(fields, columns, nulls, rows)?)
        }
        (DataType::FixedSizeList(..), to) => {
            let rows = array.len();
            let (field, size, values, nulls) = array.as_fixed_size_list().clone().into_parts();
            let values = prepared(&values, item(to).ok_or_else(unexpected)?)?;
            let field = retyped(&field, &values);
            Arc::new(FixedSizeListArray::try_new_with_length(field, size, values, nulls, rows)?)
        }
        (DataType::List(_), to) => list(array.as_list::<i32>(), item(to).ok_or_else(unexpected)?)?,
        (DataType::LargeList(_), to) => list(array.as_list::<i64>(), item(to).ok_or_else(unexpected)?)?,
        _ => return Err(unexpected()),
    })
}

/// True if the values of a type are integers of up to 64 bits.
fn has_whole(to: &DataType) -> bool {
    to.is_integer() || matches!(to, DataType::Timestamp(..) | DataType::Duration(_))
}

/// Removes the fractions of decimals. A value beyond 128 bits becomes the limit of 128 bits. The cast that follows rejects it, because no
/// integer type holds it.
fn whole(array: &ArrayRef) -> Result<Decimal128Array, ArrowError> {
    let decimals = array.as_primitive::<Decimal256Type>();
    let scale = decimals.scale();
    let power = i256::from_i128(10).wrapping_pow(scale.unsigned_abs().into());
    let whole: Decimal128Array = decimals.unary(|value| {
        let whole = if scale < 0 { value.checked_mul(power) } else { value.checked_div(power) };
        let beyond = if value < i256::ZERO { i128::MIN } else { i128::MAX };
        whole.and_then(i256::to_i128).unwrap_or(beyond)
    });
    whole.with_precision_and_scale(38, 0)
}

fn list<O: OffsetSizeTrait>(list: &GenericListArray<O>, item: &DataType) -> Result<ArrayRef, ArrowError> {
    let (field, offsets, values, nulls) = list.clone().into_parts();
    let values = prepared(&values, item)?;
    Ok(Arc::new(GenericListArray::<O>::try_new(retyped(&field, &values), offsets, values, nulls)?))
}

fn retyped(field: &Field, values: &ArrayRef) -> Arc<Field> {
    Arc::new(field.clone().with_data_type(values.data_type().clone()))
}

/// Type of the items of a list type; `None` for other types.
pub(super) fn item(list: &DataType) -> Option<&DataType> {
    match list {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            Some(item.data_type())
        }
        _ => None,
    }
}

/// Converts decimals to a float type.
fn floats<D: DecimalType>(array: &ArrayRef, to: &DataType) -> ArrayRef
where
    D::Native: Into<i256>,
{
    let decimals = array.as_primitive::<D>();
    let scale = decimals.scale();
    match to {
        DataType::Float16 => {
            Arc::new(decimals.unary::<_, Float16Type>(|value| number(value.into(), scale).nearest_f16()))
        }
        DataType::Float32 => {
            Arc::new(decimals.unary::<_, Float32Type>(|value| nearest_f32(value.into(), scale)))
        }
        _ => Arc::new(decimals.unary::<_, Float64Type>(|value| nearest(value, scale))),
    }
}
