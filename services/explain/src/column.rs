//! Statistics of the columns of a batch.

use arrow_array::{Array, ArrayRef, GenericListArray, OffsetSizeTrait, cast::AsArray, types::Float64Type};
use arrow_cast::{
    CastOptions, cast,
    display::{ArrayFormatter, FormatOptions},
};
use arrow_ord::ord::make_comparator;
use arrow_schema::{ArrowError, DECIMAL256_MAX_PRECISION, DataType, Field, SortOptions};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// Maximum length of a value, in characters.
const MAX_SHOWN_CHARS: usize = 64;

/// Statistics of a column of a batch. For tensors and lists, all except `nulls` are statistics of their items.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = BatchColumn)]
pub struct Column {
    /// Name of the column.
    pub name: String,
    /// Arrow data type, such as `Int64`.
    #[serde(rename = "type")]
    pub data_type: String,
    /// Number of null values.
    pub nulls: usize,
    /// Number of NaNs, which all other statistics ignore; null for columns without floating-point values.
    #[schema(required)]
    pub nans: Option<usize>,
    /// Minimum: a number, a boolean, or text for strings, times, decimals and infinities; null if there are no comparable values.
    pub min: Value,
    /// Maximum, of the same type as `min`.
    pub max: Value,
    /// Mean of numbers, and of booleans as 0 and 1; null for other types and without values.
    pub mean: Value,
}

impl Column {
    /// Computes the statistics of `array`.
    ///
    /// # Errors
    /// Errors of Arrow's kernels.
    pub fn new(field: &Field, array: &ArrayRef) -> Result<Self, ArrowError> {
        let items = items(array);
        let mut column = Self {
            name: field.name().clone(),
            data_type: field.data_type().to_string(),
            nulls: array.logical_null_count(),
            nans: None,
            min: Value::Null,
            max: Value::Null,
            mean: Value::Null,
        };
        let data_type = items.data_type();
        if data_type.is_floating() {
            column.floats(&cast(&items, &DataType::Float64)?);
        } else if data_type.is_numeric() || data_type == &DataType::Boolean {
            column.extremes(&items)?;
            column.mean = mean(&forebay_loader::cast(&items, &DataType::Float64, &CastOptions::default())?);
        } else if is_ordered(data_type) {
            column.extremes(&items)?;
        }
        Ok(column)
    }

    fn floats(&mut self, values: &ArrayRef) {
        let values = values.as_primitive::<Float64Type>();
        let (mut nans, mut count, mut sum) = (0, 0_u64, 0.0);
        let (mut least, mut greatest) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.iter().flatten() {
            if value.is_nan() {
                nans += 1;
                continue;
            }
            (count, sum) = (count + 1, sum + value);
            (least, greatest) = (least.min(value), greatest.max(value));
        }
        self.nans = Some(nans);
        if count > 0 {
            (self.min, self.max, self.mean) = (number(least), number(greatest), number(sum / count as f64));
        }
    }

    fn extremes(&mut self, items: &ArrayRef) -> Result<(), ArrowError> {
        let compare = make_comparator(items, items, SortOptions::default())?;
        let valid = || (0..items.len()).filter(|at| items.is_valid(*at));
        let least = valid().min_by(|a, b| compare(*a, *b));
        let greatest = valid().max_by(|a, b| compare(*a, *b));
        if let (Some(least), Some(greatest)) = (least, greatest) {
            (self.min, self.max) = (shown(items, least)?, shown(items, greatest)?);
        }
        Ok(())
    }
}

/// Items of a list or tensor, recursively; any other array as it is.
fn items(array: &ArrayRef) -> ArrayRef {
    match array.data_type() {
        DataType::FixedSizeList(_, _) => items(array.as_fixed_size_list().values()),
        DataType::List(_) => list_items(array.as_list::<i32>()),
        DataType::LargeList(_) => list_items(array.as_list::<i64>()),
        _ => ArrayRef::clone(array),
    }
}

fn list_items<O: OffsetSizeTrait>(list: &GenericListArray<O>) -> ArrayRef {
    let offsets = list.value_offsets();
    let (start, end) = (offsets[0].as_usize(), offsets[list.len()].as_usize());
    items(&list.values().slice(start, end - start))
}

fn is_ordered(data_type: &DataType) -> bool {
    use DataType::{LargeUtf8, Utf8};
    matches!(data_type, Utf8 | LargeUtf8)
        || (data_type.is_temporal() && !matches!(data_type, DataType::Interval(_)))
}

fn mean(values: &ArrayRef) -> Value {
    let values = values.as_primitive::<Float64Type>();
    let count = values.len() - values.null_count();
    if count == 0 {
        return Value::Null;
    }
    number(values.iter().flatten().sum::<f64>() / count as f64)
}

/// A JSON number, or text for infinities, which JSON lacks.
fn number(value: f64) -> Value {
    serde_json::Number::from_f64(value).map_or_else(|| Value::String(value.to_string()), Value::Number)
}

/// The value at index `at`, as a JSON boolean, integer or string.
fn shown(array: &ArrayRef, at: usize) -> Result<Value, ArrowError> {
    if array.data_type() == &DataType::Boolean {
        return Ok(Value::Bool(array.as_boolean().value(at)));
    }
    let text = match text_of(array, at) {
        // A time may have no text, such as a date after the last year or a timestamp in an unknown time zone. Its number is shown
        // instead.
        Err(_) if array.data_type().is_temporal() => {
            let number = cast(&array.slice(at, 1), &DataType::Int64)?;
            text_of(&number, 0)?
        }
        text => text?,
    };
    if array.data_type().is_integer() {
        return Ok(serde_json::from_str(&text).unwrap_or(Value::String(text)));
    }
    Ok(Value::String(match text.char_indices().nth(MAX_SHOWN_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }))
}

fn text_of(array: &ArrayRef, at: usize) -> Result<String, ArrowError> {
    let mut value = array.slice(at, 1);
    if let DataType::Decimal32(_, scale)
    | DataType::Decimal64(_, scale)
    | DataType::Decimal128(_, scale)
    | DataType::Decimal256(_, scale) = array.data_type()
    {
        // Arrow drops the last digits of a value that has more than its type. A file can contain such values.
        value = cast(&value, &DataType::Decimal256(DECIMAL256_MAX_PRECISION, *scale))?;
    }
    ArrayFormatter::try_new(&value, &FormatOptions::default())?.value(0).try_to_string()
}

#[cfg(test)]
mod tests;
