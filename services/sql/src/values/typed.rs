//! The values of one column type that are equal to a value of a set.

use std::{any::Any, fmt, sync::Arc};

use arrow_array::{
    Array, ArrayRef, ArrowNativeTypeOp, ArrowPrimitiveType, PrimitiveArray,
    cast::AsArray,
    types::{
        Date32Type, Date64Type, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, Float16Type,
        Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, TimestampMicrosecondType,
        TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type,
        UInt32Type, UInt64Type,
    },
};
use arrow_buffer::i256;
use arrow_schema::{DataType, TimeUnit};
use datafusion_common::{Result, ScalarValue, exec_err};
use half::f16;

use super::{Content, ValueSet, What};
use crate::exact::{
    floats::{nearest, nearest_f16, nearest_f32},
    place::{integers, scale},
};

/// Days as milliseconds, the unit of 64-bit dates.
const MILLISECONDS_PER_DAY: i64 = 86_400_000;
/// Bits of the mantissa of a double after its first one.
const MANTISSA_BITS: i32 = 52;

/// Position of a value in a sorted list, or the position at which it is missing.
pub(crate) type Found = Result<usize, usize>;

/// Reason why a set cannot be used with a type.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unusable {
    /// The type cannot be compared with the values. The values that were expected.
    Type(&'static str),
    /// There is no memory for the values of the type, with both sizes.
    Memory(String),
}

/// Values of a type, and their memory.
pub(crate) struct Typed {
    pub(crate) values: TypedSet,
    _memory: Option<Box<dyn Any + Send + Sync>>,
}

impl fmt::Debug for Typed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.values.fmt(f)
    }
}

impl Typed {
    /// The values of `set` that `data_type` has. Expressions share them. They are charged to the memory of the set until the last of these
    /// expressions is dropped.
    ///
    /// # Errors
    /// If the type cannot be compared with the values, or there is no memory for them.
    pub(crate) fn of(set: &Arc<ValueSet>, data_type: &DataType) -> Result<Arc<Self>, Unusable> {
        set.shared(data_type, || Self::new(set, data_type))
    }

    fn new(set: &Arc<ValueSet>, data_type: &DataType) -> Result<Self, Unusable> {
        let width = match (set.content(), data_type) {
            // They are searched in the set.
            (Content::Empty | Content::Bytes { .. }, _) => 0,
            (_, DataType::Decimal256(..)) => size_of::<i256>(),
            (_, DataType::UInt64 | DataType::Decimal128(..)) => size_of::<i128>(),
            _ => size_of::<i64>(),
        };
        let _memory = set.take((set.len() * width) as u64).map_err(Unusable::Memory)?;
        let values = TypedSet::new(set, data_type).map_err(Unusable::Type)?;
        Ok(Self { values, _memory })
    }
}

/// Sorted values of a type, without duplicates. All of them are values of the type.
#[derive(Debug)]
pub(crate) enum TypedSet {
    Small(Vec<i64>),
    Medium(Vec<i128>),
    Large(Vec<i256>),
    /// Floats of any width. Zeros are positive.
    Floats(Vec<f64>),
    /// Text or bytes, which are read from the encoded set.
    Bytes(Arc<ValueSet>),
}

impl TypedSet {
    /// The values of `set` that `data_type` has. Floats of the type are those that are nearest to a value, as for literals.
    ///
    /// # Errors
    /// The values that were expected, if the type cannot be compared with those of the set.
    pub(crate) fn new(set: &Arc<ValueSet>, data_type: &DataType) -> Result<Self, &'static str> {
        let is_empty = set.is_empty();
        let found = |what: What| match set.content() {
            Content::Integers { what: found, width, .. } if *found == what => Some(*width),
            Content::Empty => Some(8),
            _ => None,
        };
        match data_type {
            other if other.is_floating() => floats(set, other).ok_or("numbers"),
            other if other.is_integer() || other.is_decimal() => {
                exact(set, other).map(|values| of_integers(set.len(), values, other)).ok_or("numbers")
            }
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => match set.content() {
                Content::Bytes { is_text: true, .. } => Ok(Self::Bytes(Arc::clone(set))),
                _ if is_empty => Ok(Self::Small(Vec::new())),
                _ => Err("text"),
            },
            DataType::Binary
            | DataType::LargeBinary
            | DataType::BinaryView
            | DataType::FixedSizeBinary(_) => match set.content() {
                Content::Bytes { is_text: false, .. } => Ok(Self::Bytes(Arc::clone(set))),
                _ if is_empty => Ok(Self::Small(Vec::new())),
                _ => Err("bytes"),
            },
            DataType::Date32 | DataType::Date64 => {
                let width = found(What::Dates).ok_or("dates")?;
                let days = if *data_type == DataType::Date32 { 1 } else { MILLISECONDS_PER_DAY };
                let least = if days == 1 { i64::from(i32::MIN) } else { i64::MIN };
                let greatest = if days == 1 { i64::from(i32::MAX) } else { i64::MAX };
                let values = (0..set.len()).filter_map(|index| {
                    let value =
                        i64::try_from(set.integer(width, index).to_i128()?).ok()?.checked_mul(days)?;
                    (least..=greatest).contains(&value).then_some(value)
                });
                Ok(Self::Small(values.collect()))
            }
            DataType::Timestamp(unit, of) => {
                let (what, expected) = match of {
                    Some(_) => (What::Instants, "timestamps with a time zone"),
                    None => (What::LocalTimes, "timestamps without a time zone"),
                };
                let width = found(what).ok_or(expected)?;
                let nanoseconds = match unit {
                    TimeUnit::Second => 1_000_000_000,
                    TimeUnit::Millisecond => 1_000_000,
                    TimeUnit::Microsecond => 1000,
                    TimeUnit::Nanosecond => 1,
                };
                let values = (0..set.len()).filter_map(|index| {
                    let value = set.integer(width, index).to_i128()?;
                    (value % nanoseconds == 0).then(|| i64::try_from(value / nanoseconds).ok())?
                });
                Ok(Self::Small(values.collect()))
            }
            _ if is_empty => Ok(Self::Small(Vec::new())),
            _ => Err("a number, text, bytes, a date or a timestamp to compare with"),
        }
    }

    /// Number of values.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Small(values) => values.len(),
            Self::Medium(values) => values.len(),
            Self::Large(values) => values.len(),
            Self::Floats(values) => values.len(),
            Self::Bytes(set) => set.len(),
        }
    }

    /// The values as constants of their type, for types that Bloom filters know; `None` for other types.
    pub(crate) fn scalars(&self, data_type: &DataType) -> Option<Vec<ScalarValue>> {
        let of_text = |set: &ValueSet, scalar: fn(String) -> ScalarValue| {
            let Content::Bytes { starts, .. } = set.content() else { return None };
            let text = |start: &u32| {
                std::str::from_utf8(set.bytes_at(*start)).ok().map(|text| scalar(text.to_owned()))
            };
            starts.iter().map(text).collect()
        };
        match (self, data_type) {
            (Self::Small(keys), DataType::Int32) => {
                keys.iter().map(|key| Some(ScalarValue::Int32(Some(i32::try_from(*key).ok()?)))).collect()
            }
            (Self::Small(keys), DataType::Int64) => {
                Some(keys.iter().map(|key| ScalarValue::Int64(Some(*key))).collect())
            }
            (Self::Bytes(set), DataType::Utf8) => of_text(set, |text| ScalarValue::Utf8(Some(text))),
            (Self::Bytes(set), DataType::LargeUtf8) => {
                of_text(set, |text| ScalarValue::LargeUtf8(Some(text)))
            }
            _ => None,
        }
    }

    /// Returns the search for the value of each row of `array`, which has the type of this set. The result for a null is arbitrary.
    ///
    /// # Errors
    /// If the array has another type.
    pub(crate) fn search<'a>(&'a self, array: &'a ArrayRef) -> Result<Box<dyn Fn(usize) -> Found + 'a>> {
        fn of<'a, T: ArrowPrimitiveType, K: Ord>(
            keys: &'a [K],
            array: &'a ArrayRef,
            key: impl Fn(T::Native) -> K + 'a,
        ) -> Box<dyn Fn(usize) -> Found + 'a> {
            let values = array.as_primitive::<T>().values();
            Box::new(move |row| keys.binary_search(&key(values[row])))
        }
        fn small<'a, T: ArrowPrimitiveType>(
            keys: &'a [i64],
            array: &'a ArrayRef,
        ) -> Box<dyn Fn(usize) -> Found + 'a>
        where
            T::Native: Into<i64>,
        {
            of::<T, i64>(keys, array, Into::into)
        }
        fn floats<'a, T: ArrowPrimitiveType>(
            keys: &'a [f64],
            array: &'a PrimitiveArray<T>,
        ) -> Box<dyn Fn(usize) -> Found + 'a>
        where
            T::Native: Into<f64>,
        {
            let values = array.values();
            Box::new(move |row| {
                // The sum of both zeros is positive.
                let value = values[row].into() + 0.0;
                keys.binary_search_by(|key| key.total_cmp(&value))
            })
        }
        Ok(match (self, array.data_type()) {
            (Self::Small(keys), DataType::Int8) => small::<Int8Type>(keys, array),
            (Self::Small(keys), DataType::Int16) => small::<Int16Type>(keys, array),
            (Self::Small(keys), DataType::Int32) => small::<Int32Type>(keys, array),
            (Self::Small(keys), DataType::Int64) => small::<Int64Type>(keys, array),
            (Self::Small(keys), DataType::UInt8) => small::<UInt8Type>(keys, array),
            (Self::Small(keys), DataType::UInt16) => small::<UInt16Type>(keys, array),
            (Self::Small(keys), DataType::UInt32) => small::<UInt32Type>(keys, array),
            (Self::Small(keys), DataType::Decimal32(..)) => small::<Decimal32Type>(keys, array),
            (Self::Small(keys), DataType::Decimal64(..)) => small::<Decimal64Type>(keys, array),
            (Self::Small(keys), DataType::Date32) => small::<Date32Type>(keys, array),
            (Self::Small(keys), DataType::Date64) => small::<Date64Type>(keys, array),
            (Self::Small(keys), DataType::Timestamp(TimeUnit::Second, _)) => {
                small::<TimestampSecondType>(keys, array)
            }
            (Self::Small(keys), DataType::Timestamp(TimeUnit::Millisecond, _)) => {
                small::<TimestampMillisecondType>(keys, array)
            }
            (Self::Small(keys), DataType::Timestamp(TimeUnit::Microsecond, _)) => {
                small::<TimestampMicrosecondType>(keys, array)
            }
            (Self::Small(keys), DataType::Timestamp(TimeUnit::Nanosecond, _)) => {
                small::<TimestampNanosecondType>(keys, array)
            }
            (Self::Medium(keys), DataType::UInt64) => of::<UInt64Type, i128>(keys, array, i128::from),
            (Self::Medium(keys), DataType::Decimal128(..)) => {
                of::<Decimal128Type, i128>(keys, array, |value| value)
            }
            (Self::Large(keys), DataType::Decimal256(..)) => {
                of::<Decimal256Type, i256>(keys, array, |value| value)
            }
            (Self::Floats(keys), DataType::Float16) => floats(keys, array.as_primitive::<Float16Type>()),
            (Self::Floats(keys), DataType::Float32) => floats(keys, array.as_primitive::<Float32Type>()),
            (Self::Floats(keys), DataType::Float64) => floats(keys, array.as_primitive::<Float64Type>()),
            (Self::Bytes(set), _) => {
                let Content::Bytes { starts, .. } = set.content() else {
                    return exec_err!("a set of {}, expected text or bytes", set.what());
                };
                let value = bytes_of(array)?;
                Box::new(move |row| {
                    let value = value(row);
                    starts.binary_search_by(|start| set.bytes_at(*start).cmp(value))
                })
            }
            (Self::Small(none), _) if none.is_empty() => Box::new(|_| Err(0)),
            (_, other) => return exec_err!("a value of type {other}, expected another one"),
        })
    }
}

/// Returns a function of a row that returns its text or bytes.
fn bytes_of<'a>(array: &'a ArrayRef) -> Result<Box<dyn Fn(usize) -> &'a [u8] + 'a>> {
    Ok(match array.data_type() {
        DataType::Utf8 => {
            let array = array.as_string::<i32>();
            Box::new(|row| array.value(row).as_bytes())
        }
        DataType::LargeUtf8 => {
            let array = array.as_string::<i64>();
            Box::new(|row| array.value(row).as_bytes())
        }
        DataType::Utf8View => {
            let array = array.as_string_view();
            Box::new(|row| array.value(row).as_bytes())
        }
        DataType::Binary => {
            let array = array.as_binary::<i32>();
            Box::new(|row| array.value(row))
        }
        DataType::LargeBinary => {
            let array = array.as_binary::<i64>();
            Box::new(|row| array.value(row))
        }
        DataType::BinaryView => {
            let array = array.as_binary_view();
            Box::new(|row| array.value(row))
        }
        DataType::FixedSizeBinary(_) => {
            let array = array.as_fixed_size_binary();
            Box::new(|row| array.value(row))
        }
        other => return exec_err!("a value of type {other}, expected text or bytes"),
    })
}

/// The unscaled integers of an integer or decimal type that are equal to a value of the set; `None` for sets of other values.
fn exact<'a>(set: &'a ValueSet, data_type: &DataType) -> Option<Box<dyn Iterator<Item = i256> + 'a>> {
    let (least, greatest) = integers(data_type)?;
    let to = scale(data_type);
    let unscaled: Box<dyn Fn(usize) -> Option<i256> + 'a> = match set.content() {
        Content::Empty => return Some(Box::new(std::iter::empty())),
        Content::Integers { what: What::Numbers, scale, width } => {
            let (power, width) = (i16::from(to) - i16::from(*scale), *width);
            let factor = i256::from(10).pow_checked(u32::from(power.unsigned_abs())).ok();
            Box::new(move |index| {
                let value = set.integer(width, index);
                match (factor, power >= 0) {
                    (Some(factor), true) => value.checked_mul(factor),
                    (Some(factor), false) => {
                        (value.checked_rem(factor)? == i256::ZERO).then(|| value.checked_div(factor))?
                    }
                    // The power of ten is greater than all values.
                    (None, _) => (value == i256::ZERO).then_some(value),
                }
            })
        }
        Content::Floats => Box::new(move |index| unscaled_of_float(set.float(index), to)),
        _ => return None,
    };
    let values = (0..set.len()).filter_map(unscaled);
    Some(Box::new(values.filter(move |value| (least..=greatest).contains(value))))
}

/// The integer that is a float times ten to the power of `scale`; `None` if it is not an integer of 256 bits.
fn unscaled_of_float(float: f64, scale: i8) -> Option<i256> {
    if !float.is_finite() {
        return None;
    }
    if float == 0.0 {
        return Some(i256::ZERO);
    }
    let bits = float.to_bits();
    let (exponent, fraction) = ((bits >> MANTISSA_BITS) as i32 & 0x7ff, bits & ((1 << MANTISSA_BITS) - 1));
    let (mantissa, exponent) = match exponent {
        0 => (fraction, -1074),
        _ => (fraction | 1 << MANTISSA_BITS, exponent - 1075),
    };
    let zeros = mantissa.trailing_zeros();
    let (mantissa, exponent) = (mantissa >> zeros, exponent + zeros.cast_signed());
    // The float is an odd mantissa times a power of two, and the result the mantissa times powers of two and five.
    let (twos, fives) = (exponent + i32::from(scale), i32::from(scale));
    let mut value = i256::from_i128(mantissa.into());
    if !(0..255).contains(&twos) {
        return None;
    }
    value = value.checked_mul(i256::ONE << twos as u8)?;
    let power = i256::from(5).pow_checked(fives.unsigned_abs()).ok()?;
    value = match fives >= 0 {
        true => value.checked_mul(power)?,
        false if value.checked_rem(power)? == i256::ZERO => value.checked_div(power)?,
        false => return None,
    };
    Some(if float < 0.0 { value.wrapping_neg() } else { value })
}

/// At most `most` values of an integer or decimal type, as integers of the width in which arrays of the type are searched.
fn of_integers(most: usize, values: impl Iterator<Item = i256>, data_type: &DataType) -> TypedSet {
    fn list<T>(most: usize, values: impl Iterator<Item = T>) -> Vec<T> {
        // A vector that grows has up to twice the memory that was charged.
        let mut list = Vec::with_capacity(most);
        list.extend(values);
        list
    }
    let small = |value: i256| value.to_i128().expect("a value of the type has this width");
    match data_type {
        DataType::Decimal256(..) => TypedSet::Large(list(most, values)),
        DataType::UInt64 | DataType::Decimal128(..) => TypedSet::Medium(list(most, values.map(small))),
        _ => {
            let small = |value| i64::try_from(small(value)).expect("a value of the type has this width");
            TypedSet::Small(list(most, values.map(small)))
        }
    }
}

/// The floats of a type that are nearest to a value of the set; `None` for sets of other values.
fn floats(set: &ValueSet, data_type: &DataType) -> Option<TypedSet> {
    let value: Box<dyn Fn(usize) -> f64> = match (set.content(), data_type) {
        (Content::Empty, _) => return Some(TypedSet::Floats(Vec::new())),
        (Content::Integers { what: What::Numbers, scale, width }, _) => {
            let (scale, width) = (*scale, *width);
            match data_type {
                DataType::Float16 => {
                    Box::new(move |index| nearest_f16(set.integer(width, index), scale).into())
                }
                DataType::Float32 => {
                    Box::new(move |index| nearest_f32(set.integer(width, index), scale).into())
                }
                _ => Box::new(move |index| nearest(set.integer(width, index), scale)),
            }
        }
        (Content::Floats, DataType::Float16) => {
            Box::new(move |index| in_range(set.float(index), f16::from_f64(set.float(index)).into()))
        }
        (Content::Floats, DataType::Float32) => {
            Box::new(move |index| in_range(set.float(index), (set.float(index) as f32).into()))
        }
        (Content::Floats, _) => Box::new(move |index| set.float(index)),
        _ => return None,
    };
    let is_integer = !matches!(set.content(), Content::Floats);
    // A number beyond the range is equal to no float. Infinities are values only of sets of floats.
    let is_value = |value: &f64| !(value.is_nan() || is_integer && value.is_infinite());
    let mut values: Vec<f64> = (0..set.len()).map(value).filter(is_value).map(|value| value + 0.0).collect();
    values.dedup();
    Some(TypedSet::Floats(values))
}

/// `rounded`, or NaN if a finite value was rounded to an infinite one.
fn in_range(value: f64, rounded: f64) -> f64 {
    if value.is_finite() && rounded.is_infinite() { f64::NAN } else { rounded }
}
