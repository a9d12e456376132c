//! Intervals: months, days and milliseconds in 12 bytes, three unsigned integers of 32 bits.
//!
//! The `parquet` crate delivers two of the three numbers. Intervals are therefore decoded as bytes and converted here, either exactly or
//! not at all. Without a hint they have nanoseconds instead of milliseconds. Writers of Arrow's shorter intervals store signed numbers
//! and name the type in the embedded schema.

use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, FixedSizeBinaryArray, PrimitiveArray,
    builder::PrimitiveBuilder,
    types::{ArrowPrimitiveType, IntervalDayTimeType, IntervalMonthDayNanoType, IntervalYearMonthType},
};
use arrow_buffer::{IntervalDayTime, IntervalMonthDayNano};
use arrow_schema::{ArrowError, DataType, Field, FieldRef, IntervalUnit};
use parquet::{
    basic::{ConvertedType, Repetition},
    errors::ParquetError,
    schema::types::{Type, TypePtr},
};

use crate::dataset::column_sizes::leaf_types;

/// Size of a stored interval in bytes.
const STORED_BYTES: i32 = 12;
const NANOSECONDS_PER_MILLISECOND: i64 = 1_000_000;

/// True if a type is or contains an interval.
pub(crate) fn contains(root: &TypePtr) -> bool {
    if root.is_primitive() { is_interval(root) } else { root.get_fields().iter().any(contains) }
}

fn is_interval(leaf: &Type) -> bool {
    let is_marked = leaf.get_basic_info().converted_type() == ConvertedType::INTERVAL;
    is_marked && matches!(leaf, Type::PrimitiveType { type_length: STORED_BYTES, .. })
}

/// Returns, for each leaf column below a type, whether it is an interval.
pub(crate) fn leaves(root: &TypePtr) -> Vec<bool> {
    if root.is_primitive() {
        return vec![is_interval(root)];
    }
    root.get_fields().iter().flat_map(leaves).collect()
}

/// Returns a type whose intervals are bytes.
///
/// # Errors
/// If the type cannot be built again.
pub(crate) fn stored_type(root: &TypePtr) -> Result<TypePtr, ParquetError> {
    if !contains(root) {
        return Ok(Arc::clone(root));
    }
    let info = root.get_basic_info();
    let repetition = if info.has_repetition() { info.repetition() } else { Repetition::REQUIRED };
    let id = info.has_id().then(|| info.id());
    let built = match root.as_ref() {
        Type::PrimitiveType { physical_type, type_length, .. } => {
            Type::primitive_type_builder(info.name(), *physical_type)
                .with_repetition(repetition)
                .with_length(*type_length)
                .with_id(id)
                .build()?
        }
        Type::GroupType { fields, .. } => Type::group_type_builder(info.name())
            .with_repetition(repetition)
            .with_converted_type(info.converted_type())
            .with_logical_type(info.logical_type_ref().cloned())
            .with_fields(fields.iter().map(stored_type).collect::<Result<_, _>>()?)
            .with_id(id)
            .build()?,
    };
    Ok(Arc::new(built))
}

/// Units of the leaf columns of a type; `None` for each that is no interval.
pub(crate) fn interval_units(data_type: &DataType) -> Vec<Option<IntervalUnit>> {
    let unit = |leaf: &DataType| if let DataType::Interval(unit) = leaf { Some(*unit) } else { None };
    leaf_types(data_type).into_iter().map(unit).collect()
}

/// True if a type contains intervals that writers store with a sign.
pub(crate) fn is_signed(data_type: &DataType) -> bool {
    let is_signed = |unit: &Option<IntervalUnit>| unit.is_some_and(|unit| unit != IntervalUnit::MonthDayNano);
    interval_units(data_type).iter().any(is_signed)
}

/// Returns a type in stored form with its intervals. `stored` tells which leaf columns are intervals, and `units` their units if the
/// writer chose them.
pub(crate) fn with_intervals(
    data_type: &DataType,
    stored: &[bool],
    units: Option<&[Option<IntervalUnit>]>,
) -> DataType {
    let unit = |leaf: usize| units.and_then(|units| *units.get(leaf)?).unwrap_or(IntervalUnit::MonthDayNano);
    let mut leaf = 0;
    replace(data_type, &mut |old| {
        leaf += 1;
        if stored.get(leaf - 1) == Some(&true) { DataType::Interval(unit(leaf - 1)) } else { old.clone() }
    })
}

/// Returns the form of a type in which the decoder delivers it, with bytes for intervals.
pub(crate) fn decoded_type(data_type: &DataType) -> DataType {
    replace(data_type, &mut |leaf| match leaf {
        DataType::Interval(_) => DataType::FixedSizeBinary(STORED_BYTES),
        other => other.clone(),
    })
}

/// Returns a type with other leaf columns. `of_leaf` is called for each in order.
fn replace(data_type: &DataType, of_leaf: &mut dyn FnMut(&DataType) -> DataType) -> DataType {
    let mut within = |field: &FieldRef| -> FieldRef {
        let data_type = replace(field.data_type(), of_leaf);
        Arc::new(Field::clone(field).with_data_type(data_type))
    };
    match data_type {
        DataType::List(item) => DataType::List(within(item)),
        DataType::LargeList(item) => DataType::LargeList(within(item)),
        DataType::FixedSizeList(item, size) => DataType::FixedSizeList(within(item), *size),
        DataType::Map(entries, sorted) => DataType::Map(within(entries), *sorted),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(within).collect()),
        leaf => of_leaf(leaf),
    }
}

/// Months, days and milliseconds.
#[derive(Clone, Copy)]
struct Parts {
    months: i64,
    days: i64,
    milliseconds: i64,
}

impl Parts {
    fn read(bytes: &[u8], is_signed: bool) -> Self {
        let part = |index: usize| {
            let bytes = bytes[4 * index..4 * index + 4].try_into().expect("an interval has 12 bytes");
            if is_signed { i32::from_le_bytes(bytes).into() } else { u32::from_le_bytes(bytes).into() }
        };
        Self { months: part(0), days: part(1), milliseconds: part(2) }
    }

    fn year_month(self) -> Option<i32> {
        let is_exact = self.days == 0 && self.milliseconds == 0;
        i32::try_from(self.months).ok().filter(|_| is_exact)
    }

    fn day_time(self) -> Option<IntervalDayTime> {
        let (days, milliseconds) = (i32::try_from(self.days).ok()?, i32::try_from(self.milliseconds).ok()?);
        (self.months == 0).then_some(IntervalDayTime { days, milliseconds })
    }

    fn month_day_nano(self) -> Option<IntervalMonthDayNano> {
        let (months, days) = (i32::try_from(self.months).ok()?, i32::try_from(self.days).ok()?);
        Some(IntervalMonthDayNano {
            months,
            days,
            nanoseconds: self.milliseconds * NANOSECONDS_PER_MILLISECOND,
        })
    }
}

/// Converts stored intervals to intervals of `unit`.
///
/// # Errors
/// [`ArrowError::NotYetImplemented`] if an interval has no exact form.
pub(crate) fn convert(
    stored: &FixedSizeBinaryArray,
    unit: IntervalUnit,
    is_signed: bool,
) -> Result<ArrayRef, ArrowError> {
    Ok(match unit {
        IntervalUnit::YearMonth => {
            Arc::new(each::<IntervalYearMonthType>(stored, is_signed, Parts::year_month)?)
        }
        IntervalUnit::DayTime => Arc::new(each::<IntervalDayTimeType>(stored, is_signed, Parts::day_time)?),
        IntervalUnit::MonthDayNano => {
            Arc::new(each::<IntervalMonthDayNanoType>(stored, is_signed, Parts::month_day_nano)?)
        }
    })
}

fn each<T: ArrowPrimitiveType>(
    stored: &FixedSizeBinaryArray,
    is_signed: bool,
    exact: fn(Parts) -> Option<T::Native>,
) -> Result<PrimitiveArray<T>, ArrowError> {
    let mut converted = PrimitiveBuilder::<T>::with_capacity(stored.len());
    for bytes in stored {
        let Some(bytes) = bytes else {
            converted.append_null();
            continue;
        };
        let parts = Parts::read(bytes, is_signed);
        let value = exact(parts).ok_or_else(|| {
            let Parts { months, days, milliseconds } = parts;
            ArrowError::NotYetImplemented(format!(
                "the interval of {months} months, {days} days and {milliseconds} ms has no exact {} form",
                T::DATA_TYPE
            ))
        })?;
        converted.append_value(value);
    }
    Ok(converted.finish())
}

#[cfg(test)]
mod tests {
    use arrow_array::cast::AsArray;

    use super::*;

    fn stored(parts: [u32; 3]) -> FixedSizeBinaryArray {
        let bytes: Vec<u8> = parts.iter().flat_map(|part| part.to_le_bytes()).collect();
        FixedSizeBinaryArray::try_from_iter([bytes].into_iter()).unwrap()
    }

    #[test]
    fn an_interval_is_exact_or_refused() {
        let exact = convert(&stored([14, 2, 2_520_000_000]), IntervalUnit::MonthDayNano, false).unwrap();
        let expected = IntervalMonthDayNano::new(14, 2, 2_520_000_000_000_000);
        assert_eq!(exact.as_primitive::<IntervalMonthDayNanoType>().value(0), expected);
        for (parts, unit, is_signed) in [
            ([u32::MAX, 0, 0], IntervalUnit::MonthDayNano, false),
            ([0, u32::MAX, 0], IntervalUnit::MonthDayNano, false),
            ([1, 0, 1], IntervalUnit::YearMonth, true),
            ([1, 1, 0], IntervalUnit::DayTime, true),
            ([0, 1, u32::MAX], IntervalUnit::DayTime, false),
        ] {
            let error = convert(&stored(parts), unit, is_signed).unwrap_err().to_string();
            assert!(error.contains("has no exact"), "{error}");
        }
    }

    #[test]
    fn signed_intervals_keep_their_sign() {
        let negative = convert(&stored([0, u32::MAX, u32::MAX - 1]), IntervalUnit::DayTime, true).unwrap();
        assert_eq!(negative.as_primitive::<IntervalDayTimeType>().value(0), IntervalDayTime::new(-1, -2));
        let wider = convert(&stored([0, u32::MAX, u32::MAX - 1]), IntervalUnit::MonthDayNano, true).unwrap();
        let expected = IntervalMonthDayNano::new(0, -1, -2_000_000);
        assert_eq!(wider.as_primitive::<IntervalMonthDayNanoType>().value(0), expected);
    }
}
