//! Sets of values that filters refer to by name.

use std::{
    fmt::{self, Write},
    sync::Arc,
};

use arrow_array::{
    Array, ArrayRef, ArrowPrimitiveType,
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
use bytes::Bytes;
use forebay_proto::v1::NamedValues;
use ring::digest::{SHA256, digest};

use crate::Error;

/// Maximum size of an encoded set, in bytes. Servers accept no larger ones. 4 million integers fit.
pub const MAX_SET_BYTES: usize = 32 << 20;
/// First bytes of an encoded set.
const MAGIC: [u8; 4] = *b"FBV1";
/// Digits of a decimal that no type exceeds.
const MAX_SCALE: i8 = 76;
const MILLISECONDS_PER_DAY: i64 = 86_400_000;

/// A set of values, such as the keys of the rows to train with. Cheap to clone.
///
/// The filter of a request refers to it by a name, as in `id IN (:ids)`; see [`Client::with_values`](crate::Client::with_values). A set
/// has no type: integers, decimals and floats are compared with columns of each number type exactly, as literals are.
///
/// # Examples
/// ```
/// use arrow_array::{Int32Array, UInt64Array};
/// use forebay_client::ValueSet;
///
/// let ids = ValueSet::new(&Int32Array::from(vec![7, 3, 7]))?;
/// assert_eq!(ids.len(), 2);
/// // Equal values are an equal set.
/// assert_eq!(ids.sha256(), ValueSet::new(&UInt64Array::from(vec![3, 7]))?.sha256());
/// # Ok::<(), forebay_client::Error>(())
/// ```
#[derive(Clone)]
pub struct ValueSet {
    encoded: Bytes,
    sha256: Arc<str>,
    len: usize,
}

impl fmt::Debug for ValueSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ValueSet")
            .field("sha256", &self.sha256)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// Kinds of values, with their numbers in encoded sets.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Empty = 0,
    Numbers = 1,
    Floats = 2,
    Text = 3,
    Bytes = 4,
    Dates = 5,
    LocalTimes = 6,
    Instants = 7,
}

impl ValueSet {
    /// Creates a set of the values of `array`, in any order. Duplicates are removed.
    ///
    /// # Errors
    /// [`Error::Request`] for a null, for NaN, for a type other than numbers, text, bytes, dates and timestamps, and for more than
    /// [`MAX_SET_BYTES`].
    pub fn new(array: &dyn Array) -> Result<Self, Error> {
        if array.is_empty() {
            return Self::encode(Kind::Empty, 0, 0, 0, Vec::new());
        }
        if array.logical_null_count() > 0 {
            return Err(Error::Request(
                "the values have nulls, expected none: a null is equal to no value; drop them".into(),
            ));
        }
        match array.data_type() {
            DataType::Dictionary(..) => {
                let dictionary = array.as_any_dictionary();
                let used: std::collections::BTreeSet<usize> =
                    dictionary.normalized_keys().into_iter().collect();
                let used: Vec<ArrayRef> =
                    used.into_iter().map(|key| dictionary.values().slice(key, 1)).collect();
                Self::of_parts(&used)
            }
            _ => Self::of_parts(&[array.slice(0, array.len())]),
        }
    }

    /// Restores a set from the bytes of [`encoded`](Self::encoded), which are not checked before a server reads them.
    ///
    /// # Errors
    /// [`Error::Request`] if they have no header of a set.
    pub fn from_encoded(encoded: impl Into<Bytes>) -> Result<Self, Error> {
        let encoded = encoded.into();
        let header = encoded.first_chunk::<16>().filter(|header| header.starts_with(&MAGIC));
        let header = header.ok_or_else(|| Error::Request("the bytes are no encoded set of values".into()))?;
        let len = u64::from_le_bytes(*header.last_chunk().expect("8 of 16 bytes"));
        let sha256 = hex(digest(&SHA256, &encoded).as_ref()).into();
        Ok(Self { sha256, len: usize::try_from(len).unwrap_or(usize::MAX), encoded })
    }

    /// SHA-256 of the encoded set, as 64 hexadecimal digits.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are no values.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The set as servers store it.
    pub fn encoded(&self) -> &Bytes {
        &self.encoded
    }

    /// The entry of `Train::values` for this set with a name.
    pub fn named(&self, name: impl Into<String>) -> NamedValues {
        NamedValues { name: name.into(), sha256: self.sha256.to_string(), count: self.len as u64 }
    }

    /// The set of the values of arrays of one type without nulls, at least one.
    fn of_parts(parts: &[ArrayRef]) -> Result<Self, Error> {
        let data_type = parts[0].data_type().clone();
        if let Some(values) = texts(parts, &data_type) {
            let is_text = matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
            return Self::of_bytes(values, if is_text { Kind::Text } else { Kind::Bytes });
        }
        if let Some(values) = floats(parts, &data_type) {
            return Self::of_floats(values);
        }
        let (kind, scale) = match &data_type {
            DataType::Date32 | DataType::Date64 => (Kind::Dates, 0),
            DataType::Timestamp(_, None) => (Kind::LocalTimes, 0),
            DataType::Timestamp(_, Some(_)) => (Kind::Instants, 0),
            DataType::Decimal32(_, scale)
            | DataType::Decimal64(_, scale)
            | DataType::Decimal128(_, scale)
            | DataType::Decimal256(_, scale) => (Kind::Numbers, *scale),
            _ => (Kind::Numbers, 0),
        };
        let unsupported = || {
            Error::Request(format!(
                "the values are of type {data_type}, expected numbers, text, bytes, dates or timestamps"
            ))
        };
        let values = integers(parts, &data_type).ok_or_else(unsupported)?;
        Self::of_integers(values?, scale, kind)
    }

    fn of_integers(mut values: Vec<i256>, mut scale: i8, kind: Kind) -> Result<Self, Error> {
        let ten = i256::from(10);
        let too_large = || Error::Request("the values have more than 76 digits".into());
        while scale < 0 {
            for value in &mut values {
                *value = value.checked_mul(ten).ok_or_else(too_large)?;
            }
            scale += 1;
        }
        if scale > MAX_SCALE {
            return Err(too_large());
        }
        values.sort_unstable();
        values.dedup();
        while scale > 0 && values.iter().all(|value| value.wrapping_rem(ten) == i256::ZERO) {
            values.iter_mut().for_each(|value| *value = value.wrapping_div(ten));
            scale -= 1;
        }
        let width = values.iter().map(|value| width_of(*value)).max().unwrap_or(8);
        let encoded = values.iter().flat_map(|value| value.to_le_bytes().into_iter().take(width));
        Self::encode(kind, scale, width as u8, values.len(), encoded.collect())
    }

    fn of_floats(mut values: Vec<f64>) -> Result<Self, Error> {
        if values.iter().any(|value| value.is_nan()) {
            return Err(Error::Request(
                "the values have a NaN, expected none: it is equal to no value".into(),
            ));
        }
        // The sum of both zeros is positive.
        values.iter_mut().for_each(|value| *value += 0.0);
        values.sort_unstable_by(f64::total_cmp);
        values.dedup();
        let encoded = values.iter().flat_map(|value| value.to_le_bytes());
        Self::encode(Kind::Floats, 0, 8, values.len(), encoded.collect())
    }

    fn of_bytes(mut values: Vec<&[u8]>, kind: Kind) -> Result<Self, Error> {
        values.sort_unstable();
        values.dedup();
        let mut encoded = Vec::new();
        for value in &values {
            if encoded.len() + value.len() > MAX_SET_BYTES {
                return Err(too_large(encoded.len() + value.len()));
            }
            encoded.extend((value.len() as u32).to_le_bytes());
            encoded.extend_from_slice(value);
        }
        Self::encode(kind, 0, 0, values.len(), encoded)
    }

    fn encode(kind: Kind, scale: i8, width: u8, len: usize, values: Vec<u8>) -> Result<Self, Error> {
        let mut encoded = MAGIC.to_vec();
        encoded.extend([kind as u8, scale.to_le_bytes()[0], width, 0]);
        encoded.extend((len as u64).to_le_bytes());
        if encoded.len() + values.len() > MAX_SET_BYTES {
            return Err(too_large(encoded.len() + values.len()));
        }
        encoded.extend(values);
        Self::from_encoded(encoded)
    }
}

fn too_large(bytes: usize) -> Error {
    Error::Request(format!("the values take {bytes} bytes or more, the limit is {MAX_SET_BYTES}"))
}

/// Smallest width of an integer in an encoded set, in bytes.
fn width_of(value: i256) -> usize {
    match value.to_i128() {
        Some(value) if i64::try_from(value).is_ok() => 8,
        Some(_) => 16,
        None => 32,
    }
}

/// The values of text and bytes; `None` for other types.
fn texts<'a>(parts: &'a [ArrayRef], data_type: &DataType) -> Option<Vec<&'a [u8]>> {
    let of = |values: fn(&'a ArrayRef) -> Vec<&'a [u8]>| Some(parts.iter().flat_map(values).collect());
    let text = |value: Option<&'a str>| value.map(str::as_bytes);
    match data_type {
        DataType::Utf8 => {
            Some(parts.iter().flat_map(|part| part.as_string::<i32>().iter().filter_map(text)).collect())
        }
        DataType::LargeUtf8 => {
            Some(parts.iter().flat_map(|part| part.as_string::<i64>().iter().filter_map(text)).collect())
        }
        DataType::Utf8View => {
            Some(parts.iter().flat_map(|part| part.as_string_view().iter().filter_map(text)).collect())
        }
        DataType::Binary => of(|part| part.as_binary::<i32>().iter().flatten().collect()),
        DataType::LargeBinary => of(|part| part.as_binary::<i64>().iter().flatten().collect()),
        DataType::BinaryView => of(|part| part.as_binary_view().iter().flatten().collect()),
        DataType::FixedSizeBinary(_) => of(|part| part.as_fixed_size_binary().iter().flatten().collect()),
        _ => None,
    }
}

/// The values of floats; `None` for other types.
fn floats(parts: &[ArrayRef], data_type: &DataType) -> Option<Vec<f64>> {
    fn of<T: ArrowPrimitiveType<Native: Into<f64>>>(parts: &[ArrayRef]) -> Option<Vec<f64>> {
        let values = parts.iter().flat_map(|part| part.as_primitive::<T>().values().iter().copied());
        Some(values.map(Into::into).collect())
    }
    match data_type {
        DataType::Float16 => of::<Float16Type>(parts),
        DataType::Float32 => of::<Float32Type>(parts),
        DataType::Float64 => of::<Float64Type>(parts),
        _ => None,
    }
}

/// The unscaled values of integers and decimals, the days of dates and the nanoseconds of timestamps; `None` for other types.
fn integers(parts: &[ArrayRef], data_type: &DataType) -> Option<Result<Vec<i256>, Error>> {
    fn of<T: ArrowPrimitiveType>(
        parts: &[ArrayRef],
        value: impl Fn(T::Native) -> i256,
    ) -> Option<Result<Vec<i256>, Error>> {
        let values = parts.iter().flat_map(|part| part.as_primitive::<T>().values().iter().copied());
        Some(Ok(values.map(value).collect()))
    }
    fn small<T: ArrowPrimitiveType<Native: Into<i128>>>(
        parts: &[ArrayRef],
        factor: i128,
    ) -> Option<Result<Vec<i256>, Error>> {
        of::<T>(parts, |value| i256::from_i128(value.into() * factor))
    }
    match data_type {
        DataType::Int8 => small::<Int8Type>(parts, 1),
        DataType::Int16 => small::<Int16Type>(parts, 1),
        DataType::Int32 => small::<Int32Type>(parts, 1),
        DataType::Int64 => small::<Int64Type>(parts, 1),
        DataType::UInt8 => small::<UInt8Type>(parts, 1),
        DataType::UInt16 => small::<UInt16Type>(parts, 1),
        DataType::UInt32 => small::<UInt32Type>(parts, 1),
        DataType::UInt64 => small::<UInt64Type>(parts, 1),
        DataType::Decimal32(..) => small::<Decimal32Type>(parts, 1),
        DataType::Decimal64(..) => small::<Decimal64Type>(parts, 1),
        DataType::Decimal128(..) => small::<Decimal128Type>(parts, 1),
        DataType::Decimal256(..) => of::<Decimal256Type>(parts, |value| value),
        DataType::Date32 => small::<Date32Type>(parts, 1),
        DataType::Date64 => {
            let is_day = |part: &ArrayRef| {
                part.as_primitive::<Date64Type>()
                    .values()
                    .iter()
                    .all(|value| value % MILLISECONDS_PER_DAY == 0)
            };
            if !parts.iter().all(is_day) {
                return Some(Err(Error::Request(
                    "the values have dates with a time, expected whole days".into(),
                )));
            }
            of::<Date64Type>(parts, |value| i256::from_i128((value / MILLISECONDS_PER_DAY).into()))
        }
        DataType::Timestamp(TimeUnit::Second, _) => small::<TimestampSecondType>(parts, 1_000_000_000),
        DataType::Timestamp(TimeUnit::Millisecond, _) => small::<TimestampMillisecondType>(parts, 1_000_000),
        DataType::Timestamp(TimeUnit::Microsecond, _) => small::<TimestampMicrosecondType>(parts, 1000),
        DataType::Timestamp(TimeUnit::Nanosecond, _) => small::<TimestampNanosecondType>(parts, 1),
        _ => None,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string does not fail");
        text
    })
}

#[cfg(test)]
mod tests {
    use arrow_array::{
        BinaryArray, BooleanArray, Date32Array, Decimal128Array, DictionaryArray, Float32Array, Float64Array,
        Int64Array, StringArray, StringViewArray, TimestampMicrosecondArray, TimestampNanosecondArray,
        UInt64Array,
    };

    use super::*;

    fn set(array: &dyn Array) -> ValueSet {
        ValueSet::new(array).unwrap()
    }

    /// The services read these bytes; their test has the same hash.
    #[test]
    fn the_encoded_form_is_frozen() {
        let integers = set(&Int64Array::from(vec![2, 1, 2]));
        assert_eq!(integers.sha256(), "47daa971473a64ee5fb73900de8e6fc6c66c024668bb1a43fb7268ef080bfd6f");
        assert_eq!((integers.len(), integers.encoded().len()), (2, 32));
        let text = set(&StringArray::from(vec!["b", "a"]));
        assert_eq!(&text.encoded()[..], b"FBV1\x03\0\0\0\x02\0\0\0\0\0\0\0\x01\0\0\0a\x01\0\0\0b");
        assert_eq!(&set(&StringArray::new_null(0)).encoded()[..], b"FBV1\0\0\0\0\0\0\0\0\0\0\0\0");
    }

    #[test]
    fn equal_values_of_several_types_are_equal_sets() {
        let same = |arrays: &[&dyn Array]| {
            let sets: Vec<ValueSet> = arrays.iter().map(|array| set(*array)).collect();
            assert!(sets.windows(2).all(|pair| pair[0].encoded() == pair[1].encoded()), "{sets:?}");
        };
        same(&[
            &Int64Array::from(vec![3, 10]),
            &UInt64Array::from(vec![10, 3, 10]),
            &Decimal128Array::from(vec![1000, 300]).with_precision_and_scale(10, 2).unwrap(),
            &DictionaryArray::<Int64Type>::new(
                vec![0, 1, 0].into(),
                Arc::new(Int64Array::from(vec![10, 3, 99])),
            ),
        ]);
        same(&[&Float64Array::from(vec![0.5, -0.0]), &Float32Array::from(vec![0.0, 0.5])]);
        same(&[&StringArray::from(vec!["a"]), &StringViewArray::from(vec!["a"])]);
        same(&[&TimestampNanosecondArray::from(vec![7000]), &TimestampMicrosecondArray::from(vec![7])]);
        let distinct: [&dyn Array; 5] = [
            &Int64Array::from(vec![7]),
            &Float64Array::from(vec![7.0]),
            &Date32Array::from(vec![7]),
            &TimestampNanosecondArray::from(vec![7]),
            &TimestampNanosecondArray::from(vec![7]).with_timezone("UTC"),
        ];
        let hashes: std::collections::BTreeSet<String> =
            distinct.iter().map(|array| set(*array).sha256().to_owned()).collect();
        assert_eq!(hashes.len(), distinct.len());
    }

    #[test]
    fn nulls_and_values_that_are_equal_to_none_are_refused() {
        let refused = |array: &dyn Array| ValueSet::new(array).unwrap_err().to_string();
        assert!(refused(&Int64Array::from(vec![Some(1), None])).contains("the values have nulls"));
        assert!(refused(&Float64Array::from(vec![f64::NAN])).contains("have a NaN"));
        assert!(refused(&BooleanArray::from(vec![true])).contains("are of type Boolean"));
        let long = vec![0_u8; MAX_SET_BYTES];
        assert!(refused(&BinaryArray::from(vec![&long[..]])).contains("the limit is 33554432"));
    }
}
