//! Conversion of columns to the element type of a tensor.
//!
//! Overflow is an error, and so is NaN converted to an integer. Floating-point values may be rounded. Fractions are
//! truncated when converted to integers.

use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, ArrowPrimitiveType, FixedSizeListArray, GenericListArray, OffsetSizeTrait, UInt64Array,
    cast::AsArray,
    make_array,
    types::{Float16Type, Float32Type, Float64Type},
};
use arrow_buffer::{Buffer, OffsetBuffer};
use arrow_cast::CastOptions;
use arrow_data::ArrayData;
use arrow_schema::{DataType, Field};
use arrow_select::take::take;

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

/// Returns the element type of the tensor of `field`: `requested`, or the common type of all `columns` if `requested`
/// is empty.
pub(crate) fn dtype(field: &str, requested: &str, columns: &[&DataType]) -> Result<DataType, Error> {
    let field = format!("{field}.dtype");
    let known = || DTYPES.map(|(word, _)| word).join(", ");
    if !requested.is_empty() {
        let found = DTYPES.iter().find(|(word, _)| *word == requested);
        return found.map(|(_, data_type)| data_type.clone()).ok_or_else(|| {
            Error::invalid(field, format!("'{requested}' is not supported, expected one of {}", known()))
        });
    }
    let first = columns.first().copied().unwrap_or(&DataType::Null);
    let other = columns.iter().find(|other| **other != first);
    if let Some((kind, remedy)) = columns.iter().find_map(|column| unfit(column)) {
        let reason = match other {
            Some(other) => format!("the columns are of types {first} and {other}; one of them is {kind}"),
            None => format!("the columns are of type {first} ({kind})"),
        };
        return Err(Error::invalid(field, format!("{reason}, which a tensor cannot hold; {remedy}")));
    }
    let found = match other {
        Some(other) => format!("types {first} and {other}"),
        None => format!("type {first}"),
    };
    if other.is_some() || !DTYPES.iter().any(|(_, data_type)| data_type == first) {
        return Err(Error::invalid(
            field,
            format!("the columns are of {found}; set dtype to one of {}", known()),
        ));
    }
    Ok(first.clone())
}

/// Returns an error if values of type `from` cannot be converted to the tensor's `dtype`.
pub(crate) fn check_convertible(
    field: &str,
    column: &str,
    from: &DataType,
    dtype: &DataType,
) -> Result<(), Error> {
    let Some((kind, remedy)) = unfit(from) else { return Ok(()) };
    let reason = format!(
        "column '{column}' of type {from} cannot be converted to {dtype}, because it is {kind}, which a tensor cannot hold; \
         {remedy}"
    );
    Err(Error::invalid(field, reason))
}

/// For a type that no tensor can hold, whatever its `dtype`: what it is, and what to do. `None` for numbers and booleans.
fn unfit(from: &DataType) -> Option<(&'static str, &'static str)> {
    match from {
        DataType::Boolean => None,
        number if number.is_numeric() => None,
        text if is_text(text) => {
            Some(("text", "leave it out, or select numbers such as hash_bucket(COLUMN, 100000) AS bucket"))
        }
        DataType::Date32 | DataType::Date64 | DataType::Timestamp(..) => Some((
            "a point in time",
            "leave it out, or select numbers such as to_unixtime(COLUMN) AS seconds",
        )),
        DataType::Duration(_) => Some((
            "a duration",
            "leave it out, or select numbers such as EXTRACT(EPOCH FROM COLUMN) AS seconds",
        )),
        DataType::Struct(_) => {
            Some(("a struct", "leave it out, or select a field of it, such as COLUMN['field'] AS field"))
        }
        _ => Some(("no number", "leave it out")),
    }
}

fn is_text(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, values) => is_text(values),
        other => other.is_string(),
    }
}

/// Returns an error if `fill` is not representable in `dtype`.
pub(crate) fn check_fill(field: &str, fill: f64, dtype: &DataType) -> Result<(), Error> {
    let fits = match dtype {
        DataType::Float64 => true,
        DataType::Float32 => !(fill.is_finite() && (fill as f32).is_infinite()),
        DataType::Float16 => !(fill.is_finite() && float16(fill).is_infinite()),
        integer => {
            let (low, past) = integer_range(integer);
            fill.fract() == 0.0 && fill >= low && fill < past
        }
    };
    if fits {
        return Ok(());
    }
    Err(Error::invalid(format!("{field}.null_value"), format!("{fill} is not a valid {dtype}")))
}

/// Returns the smallest value of an integer type and the largest value plus one. Both are 0 or powers of two, so they
/// are exact.
fn integer_range(data_type: &DataType) -> (f64, f64) {
    let bits = 8 * data_type.primitive_width().unwrap_or(1) as i32;
    if data_type.is_signed_integer() {
        (-(2f64.powi(bits - 1)), 2f64.powi(bits - 1))
    } else {
        (0.0, 2f64.powi(bits))
    }
}

/// Encodes `fill` as the little-endian bytes of one `dtype` value. `fill` must have passed [`check_fill`].
pub(crate) fn fill_bytes(fill: f64, dtype: &DataType) -> Vec<u8> {
    match dtype {
        DataType::Float64 => fill.to_le_bytes().to_vec(),
        DataType::Float32 => (fill as f32).to_le_bytes().to_vec(),
        DataType::Float16 => float16(fill).to_le_bytes().to_vec(),
        integer => {
            let width = integer.primitive_width().unwrap_or(1);
            (fill as i128).to_le_bytes()[..width].to_vec()
        }
    }
}

/// Rounds to float32 and then to float16, as Arrow converts float64. A direct conversion rounds once or twice,
/// depending on the CPU.
fn float16(value: f64) -> half::f16 {
    half::f16::from_f32(value as f32)
}

/// Converts `array` to `dtype`. Nulls stay null. Returns the reason if a value does not fit.
pub(crate) fn convert(array: &ArrayRef, dtype: &DataType) -> Result<ArrayRef, String> {
    if array.data_type() == dtype {
        return Ok(ArrayRef::clone(array));
    }
    let options = CastOptions { safe: false, ..CastOptions::default() };
    let converted = forebay_sql::cast(array, dtype, &options);
    let converted = converted.map_err(|error| format!("{error}, expected {dtype}"))?;
    if dtype.is_floating() && has_new_infinity(array, &converted) {
        return Err(format!("a finite {} value overflows {dtype}", array.data_type()));
    }
    Ok(converted)
}

/// Converts the first `most` items of each list of `array` to `dtype`, and replaces null items by `fill`. A null list
/// has no items. Items after the first `most` are not converted, so they need not fit. Returns the reason if the
/// conversion fails.
pub(crate) fn convert_lists(
    array: &ArrayRef,
    dtype: &DataType,
    fill: Option<f64>,
    most: usize,
) -> Result<ArrayRef, String> {
    if let Some(lists) = array.as_list_opt::<i32>() {
        lists_of(lists, dtype, fill, most)
    } else if let Some(lists) = array.as_list_opt::<i64>() {
        lists_of(lists, dtype, fill, most)
    } else {
        Err(format!("decoded as {}, expected lists", array.data_type()))
    }
}

fn lists_of<O: OffsetSizeTrait>(
    lists: &GenericListArray<O>,
    dtype: &DataType,
    fill: Option<f64>,
    most: usize,
) -> Result<ArrayRef, String> {
    let ranges = || {
        lists.offsets().windows(2).enumerate().map(|(row, ends)| {
            let (start, end) = (ends[0].as_usize(), ends[1].as_usize());
            start..if lists.is_null(row) { start } else { end.min(start.saturating_add(most)) }
        })
    };
    let (first, last) = (lists.offsets()[0].as_usize(), lists.offsets()[lists.len()].as_usize());
    let taken: usize = ranges().map(|range| range.len()).sum();
    let items = if taken == last - first {
        lists.values().slice(first, taken)
    } else {
        let taken: UInt64Array = ranges().flatten().map(|item| item as u64).collect();
        take(lists.values(), &taken, None).map_err(|error| error.to_string())?
    };
    let items = convert(&items, dtype)?;
    let items = match (fill, items.null_count()) {
        (_, 0) => items,
        (None, _) => return Err("a null among the items of a list; set null_value for the tensor".into()),
        (Some(fill), _) => filled(&items, &fill_bytes(fill, dtype))?,
    };
    let offsets = OffsetBuffer::from_lengths(ranges().map(|range| range.len()));
    let item = Arc::new(Field::new("item", dtype.clone(), false));
    let lists = GenericListArray::<O>::try_new(item, offsets, items, lists.nulls().cloned());
    Ok(Arc::new(lists.map_err(|error| error.to_string())?))
}

/// Replaces the nulls of `array` by `fill`.
fn filled(array: &ArrayRef, fill: &[u8]) -> Result<ArrayRef, String> {
    let data = array.to_data();
    let width = fill.len();
    let mut bytes = data.buffers()[0].as_slice()[data.offset() * width..][..data.len() * width].to_vec();
    for (row, value) in bytes.chunks_exact_mut(width).enumerate() {
        if array.is_null(row) {
            value.copy_from_slice(fill);
        }
    }
    let filled = ArrayData::builder(data.data_type().clone()).len(data.len()).add_buffer(Buffer::from(bytes));
    filled.align_buffers(true).build().map(make_array).map_err(|error| error.to_string())
}

/// Converts the items of all fixed-size lists to `dtype`, and returns them as bytes. Null items are replaced by `fill`; items of null lists
/// can be anything. Returns the reason if the conversion fails.
pub(crate) fn fixed_size_items(
    lists: &FixedSizeListArray,
    dtype: &DataType,
    fill: Option<f64>,
) -> Result<Vec<u8>, String> {
    let items = lists.values().slice(0, lists.len() * lists.value_length() as usize);
    let items = convert(&items, dtype)?;
    let items = match (fill, items.null_count()) {
        (_, 0) => items,
        (None, _) => return Err("a null among the items of a list; set null_value for the tensor".into()),
        (Some(fill), _) => filled(&items, &fill_bytes(fill, dtype))?,
    };
    let width = dtype.primitive_width().ok_or_else(|| format!("{dtype} has no width"))?;
    let items = items.to_data();
    Ok(items.buffers()[0].as_slice()[items.offset() * width..][..items.len() * width].to_vec())
}

/// Concatenates the first `len` items of each list as bytes, and appends `padding` to shorter lists. A null list is all
/// padding.
pub(crate) fn padded(lists: &ArrayRef, len: usize, padding: &[u8]) -> Result<Vec<u8>, String> {
    let width = padding.len();
    let items = items(lists)?.to_data();
    let items = &items.buffers()[0].as_slice()[items.offset() * width..][..items.len() * width];
    let mut out = Vec::with_capacity(lists.len() * len * width);
    for_each_list(lists, |range| {
        let present = range.len().min(len);
        out.extend_from_slice(&items[range.start * width..(range.start + present) * width]);
        (present..len).for_each(|_| out.extend_from_slice(padding));
    })?;
    Ok(out)
}

/// Returns `len` bytes per list: 1 for each item that exists, 0 for padding.
pub(crate) fn mask(lists: &ArrayRef, len: usize) -> Result<Vec<u8>, String> {
    let mut out = Vec::with_capacity(lists.len() * len);
    for_each_list(lists, |range| {
        let end = out.len() + len;
        out.resize(out.len() + range.len().min(len), 1);
        out.resize(end, 0);
    })?;
    Ok(out)
}

fn items(lists: &ArrayRef) -> Result<&ArrayRef, String> {
    let small = lists.as_list_opt::<i32>().map(GenericListArray::values);
    let large = || lists.as_list_opt::<i64>().map(GenericListArray::values);
    small.or_else(large).ok_or_else(|| format!("decoded as {}, expected lists", lists.data_type()))
}

/// Calls `visit` with the range of items of each list. The range of a null list is empty.
fn for_each_list(lists: &ArrayRef, mut visit: impl FnMut(std::ops::Range<usize>)) -> Result<(), String> {
    let mut each = |row: usize, start: usize, end: usize| {
        visit(if lists.is_null(row) { start..start } else { start..end });
    };
    if let Some(lists) = lists.as_list_opt::<i32>() {
        lists
            .offsets()
            .windows(2)
            .enumerate()
            .for_each(|(row, at)| each(row, at[0] as usize, at[1] as usize));
    } else if let Some(lists) = lists.as_list_opt::<i64>() {
        lists
            .offsets()
            .windows(2)
            .enumerate()
            .for_each(|(row, at)| each(row, at[0] as usize, at[1] as usize));
    } else {
        return Err(format!("decoded as {}, expected lists", lists.data_type()));
    }
    Ok(())
}

/// Returns true if the conversion turned a finite value into an infinity.
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
