//! The place of a number among the values of a type. Dates and times are numbers of seconds.

use arrow_buffer::i256;
use arrow_schema::DataType;
use datafusion_common::ScalarValue;
use half::f16;

use super::{
    moment::{self, DAY},
    number::{Floor, Number},
};

/// The place of a number among the values of a type.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Place {
    /// The number is this value. For a float type, it is the nearest value.
    At(ScalarValue),
    /// The number is greater than this value, and less than all greater values.
    Above(ScalarValue),
    /// The number is less than all values.
    BelowAll,
}

/// Returns the place of `number` among the values of a type; `None` for types that are not compared as numbers.
///
/// A decimal type has all values of its unscaled integers, also those with more digits than its precision, which a file may contain.
pub(super) fn place(number: &Number, data_type: &DataType) -> Option<Place> {
    if data_type.is_floating() {
        return Some(place_of_float(number, data_type));
    }
    let scale = scale(data_type);
    let (least, greatest) = integers(data_type)?;
    let floor = match number.scaled(scale).floor() {
        floor if *data_type == DataType::Date32 => days(floor)?,
        floor => floor,
    };
    let (floor, is_equal) = match floor {
        Floor::Below => return Some(Place::BelowAll),
        Floor::Above => (greatest, false),
        Floor::Equal(integer) if integer > greatest => (greatest, false),
        Floor::Between(integer) if integer > greatest => (greatest, false),
        Floor::Equal(integer) => (integer, true),
        Floor::Between(integer) => (integer, false),
    };
    if floor < least {
        return Some(Place::BelowAll);
    }
    let value = scalar(floor, data_type)?;
    Some(if is_equal { Place::At(value) } else { Place::Above(value) })
}

/// Number of days in a number of seconds; `None` if no type of times has as many.
fn days(seconds: Floor) -> Option<Floor> {
    let (seconds, is_whole) = match seconds {
        Floor::Equal(seconds) => (seconds.to_i128()?, true),
        Floor::Between(seconds) => (seconds.to_i128()?, false),
        beyond => return Some(beyond),
    };
    let days = i256::from(seconds.div_euclid(DAY));
    let is_equal = is_whole && seconds.rem_euclid(DAY) == 0;
    Some(if is_equal { Floor::Equal(days) } else { Floor::Between(days) })
}

/// The least value of a type; `None` for types that are not compared as numbers.
pub(super) fn least(data_type: &DataType) -> Option<ScalarValue> {
    match data_type {
        DataType::Float16 => Some(ScalarValue::Float16(Some(f16::NEG_INFINITY))),
        DataType::Float32 => Some(ScalarValue::Float32(Some(f32::NEG_INFINITY))),
        DataType::Float64 => Some(ScalarValue::Float64(Some(f64::NEG_INFINITY))),
        other => scalar(integers(other)?.0, other),
    }
}

/// The value of a decimal type that is nearest to `number`; `None` for other types, and if it has more digits than the type.
pub(super) fn decimal(number: &Number, data_type: &DataType) -> Option<ScalarValue> {
    let (DataType::Decimal32(precision, _)
    | DataType::Decimal64(precision, _)
    | DataType::Decimal128(precision, _)
    | DataType::Decimal256(precision, _)) = data_type
    else {
        return None;
    };
    let rounded = number.scaled(scale(data_type)).rounded()?;
    let digits = rounded.to_string().trim_start_matches('-').len();
    (digits <= usize::from(*precision)).then(|| scalar(rounded, data_type))?
}

fn place_of_float(number: &Number, data_type: &DataType) -> Place {
    // Numbers beyond the range lie between the greatest finite value and infinity, and are equal to neither.
    let (nearest, is_infinite, greatest, lowest) = match data_type {
        DataType::Float16 => {
            let nearest = number.nearest_f16();
            let of = |value| ScalarValue::Float16(Some(value));
            (of(nearest), nearest.is_infinite(), of(f16::MAX), of(f16::NEG_INFINITY))
        }
        DataType::Float32 => {
            let nearest = number.nearest_f32();
            let of = |value| ScalarValue::Float32(Some(value));
            (of(nearest), nearest.is_infinite(), of(f32::MAX), of(f32::NEG_INFINITY))
        }
        _ => {
            let nearest = number.nearest();
            let of = |value| ScalarValue::Float64(Some(value));
            (of(nearest), nearest.is_infinite(), of(f64::MAX), of(f64::NEG_INFINITY))
        }
    };
    match (is_infinite, nearest == lowest) {
        (false, _) => Place::At(nearest),
        (true, false) => Place::Above(greatest),
        (true, true) => Place::Above(lowest),
    }
}

/// Scale of a decimal type; 0 for other types.
pub(crate) fn scale(data_type: &DataType) -> i8 {
    match data_type {
        DataType::Decimal32(_, scale)
        | DataType::Decimal64(_, scale)
        | DataType::Decimal128(_, scale)
        | DataType::Decimal256(_, scale) => *scale,
        other => moment::digits(other).unwrap_or(0),
    }
}

/// Least and greatest integer of an integer type, of the unscaled values of a decimal type, and of the units of dates and times.
pub(crate) fn integers(data_type: &DataType) -> Option<(i256, i256)> {
    let of = |least: i128, greatest: i128| Some((least.into(), greatest.into()));
    match data_type {
        DataType::Int8 => of(i8::MIN.into(), i8::MAX.into()),
        DataType::Int16 => of(i16::MIN.into(), i16::MAX.into()),
        DataType::Int32 | DataType::Decimal32(..) | DataType::Date32 | DataType::Time32(_) => {
            of(i32::MIN.into(), i32::MAX.into())
        }
        DataType::Int64
        | DataType::Decimal64(..)
        | DataType::Date64
        | DataType::Time64(_)
        | DataType::Timestamp(..)
        | DataType::Duration(_) => of(i64::MIN.into(), i64::MAX.into()),
        DataType::UInt8 => of(0, u8::MAX.into()),
        DataType::UInt16 => of(0, u16::MAX.into()),
        DataType::UInt32 => of(0, u32::MAX.into()),
        DataType::UInt64 => of(0, u64::MAX.into()),
        DataType::Decimal128(..) => of(i128::MIN, i128::MAX),
        DataType::Decimal256(..) => Some((i256::MIN, i256::MAX)),
        _ => None,
    }
}

/// The value with this unscaled integer; `None` if the type has no such value.
fn scalar(unscaled: i256, data_type: &DataType) -> Option<ScalarValue> {
    let small = unscaled.to_i128();
    Some(match data_type {
        DataType::Int8 => ScalarValue::Int8(Some(small?.try_into().ok()?)),
        DataType::Int16 => ScalarValue::Int16(Some(small?.try_into().ok()?)),
        DataType::Int32 => ScalarValue::Int32(Some(small?.try_into().ok()?)),
        DataType::Int64 => ScalarValue::Int64(Some(small?.try_into().ok()?)),
        DataType::UInt8 => ScalarValue::UInt8(Some(small?.try_into().ok()?)),
        DataType::UInt16 => ScalarValue::UInt16(Some(small?.try_into().ok()?)),
        DataType::UInt32 => ScalarValue::UInt32(Some(small?.try_into().ok()?)),
        DataType::UInt64 => ScalarValue::UInt64(Some(small?.try_into().ok()?)),
        DataType::Decimal32(digits, scale) => {
            ScalarValue::Decimal32(Some(small?.try_into().ok()?), *digits, *scale)
        }
        DataType::Decimal64(digits, scale) => {
            ScalarValue::Decimal64(Some(small?.try_into().ok()?), *digits, *scale)
        }
        DataType::Decimal128(digits, scale) => ScalarValue::Decimal128(Some(small?), *digits, *scale),
        DataType::Decimal256(digits, scale) => ScalarValue::Decimal256(Some(unscaled), *digits, *scale),
        other => return moment::value(small?.try_into().ok()?, other),
    })
}
