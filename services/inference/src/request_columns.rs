//! Columns that callers of a queue send with their keys, for values that are known only at the time of the request.

use std::{collections::HashSet, sync::Arc};

use arrow_array::{Array, ArrayRef, FixedSizeListArray, RecordBatch, UInt32Array, cast::AsArray, make_array};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_data::ArrayData;
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};
use arrow_select::{concat::concat_batches, take::take_record_batch};
use documented::DocumentedFields;
use forebay_loader::{Error, WireBatch};
use serde::{Deserialize, Serialize};

use crate::keys::column_named;

/// A column that callers send with their keys, from `forebay.toml`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, DocumentedFields)]
#[serde(deny_unknown_fields)]
pub struct RequestColumn {
    /// Name of the column. It must differ from the names of the key columns and of the features. Required.
    pub name: String,
    /// Type of the values: `bool`, `float16` to `float64`, `int8` to `int64`, `uint8` to `uint64`, `string` or `binary`. Required.
    pub dtype: Dtype,
    /// Number of values per row, at least 1, for vectors such as embeddings. Default: none, one value per row.
    #[serde(default)]
    pub length: Option<u32>,
}

/// Type of the values of a [`RequestColumn`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names are those of the types")]
pub enum Dtype {
    Bool,
    Float16,
    Float32,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
    String,
    Binary,
}

/// The request columns of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestColumns {
    columns: Vec<RequestColumn>,
    schema: SchemaRef,
}

impl RequestColumns {
    /// Maximum number of columns.
    pub const MAX_COLUMNS: usize = 1024;
    /// Maximum number of values per row and column.
    pub const MAX_LENGTH: u32 = 1 << 20;

    /// Validates the columns.
    ///
    /// # Errors
    /// The first invalid column, its value and what was expected.
    pub fn new(columns: &[RequestColumn]) -> Result<Self, String> {
        if columns.len() > Self::MAX_COLUMNS {
            return Err(format!("has {} columns, expected at most {}", columns.len(), Self::MAX_COLUMNS));
        }
        let mut names = HashSet::new();
        let mut fields = Vec::new();
        for (place, RequestColumn { name, dtype, length }) in columns.iter().enumerate() {
            if name.is_empty() {
                return Err(format!("[{place}].name: is empty, expected the name of a column"));
            }
            if !names.insert(name) {
                return Err(format!("[{place}].name: '{name}' appears twice"));
            }
            let item = dtype.data_type();
            let data_type = match length {
                None => item,
                Some(length) if (1..=Self::MAX_LENGTH).contains(length) => {
                    let item = Arc::new(Field::new("item", item, false));
                    DataType::FixedSizeList(item, length.cast_signed())
                }
                Some(length) => {
                    return Err(format!(
                        "[{place}].length: is {length}, expected 1 to {}, or no length for one value per row",
                        Self::MAX_LENGTH
                    ));
                }
            };
            fields.push(Field::new(name, data_type, false));
        }
        Ok(Self { columns: columns.to_vec(), schema: Arc::new(Schema::new(fields)) })
    }

    /// Columns as configured.
    pub fn columns(&self) -> &[RequestColumn] {
        &self.columns
    }

    /// Bytes per row of the values of fixed width.
    pub fn row_bytes(&self) -> u64 {
        let bytes = |data_type: &DataType| match data_type {
            DataType::Boolean => 1,
            other => other.primitive_width().unwrap_or(0) as u64,
        };
        let fields = self.schema.fields().iter();
        let bytes = fields.map(|field| match field.data_type() {
            DataType::FixedSizeList(item, length) => {
                u64::from(length.unsigned_abs()) * bytes(item.data_type())
            }
            other => bytes(other),
        });
        bytes.sum()
    }

    /// Checks that padding to the sizes `pad_to` does not make a batch larger than `max_answer_bytes`.
    ///
    /// # Errors
    /// The size of such a batch and what was expected.
    pub fn check_padding(&self, pad_to: &[u64], max_answer_bytes: u64) -> Result<(), String> {
        let rows = pad_to.iter().max().copied().unwrap_or(0);
        let bytes = rows.saturating_mul(self.row_bytes());
        if bytes > max_answer_bytes {
            return Err(format!(
                "pad_to has {rows} rows, whose request columns have {bytes} bytes, expected at most {max_answer_bytes} \
                 (lookups.max_answer_bytes)"
            ));
        }
        Ok(())
    }

    /// Names and types of the columns.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Copies the columns out of a request, converted to their types. Other columns of the request are ignored.
    ///
    /// Floating-point values may be rounded or become infinite, and integers may become floating-point values. All other conversions are
    /// exact.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a column that is missing, has another type or another number of values per row, or contains a null or an
    /// integer that its type cannot represent.
    pub(crate) fn read(&self, request: &RecordBatch) -> Result<RecordBatch, Error> {
        let column = |field: &Arc<Field>| {
            let found = column_named(request, field.name())?;
            converted(found, field.data_type())
                .map_err(|reason| Error::invalid(format!("request column '{}'", field.name()), reason))
        };
        let columns = self.schema.fields().iter().map(column).collect::<Result<Vec<_>, _>>()?;
        let rows = u32::try_from(request.num_rows()).map_err(|_| Error::invalid("keys", "too many rows"))?;
        let read =
            RecordBatch::try_new(Arc::clone(&self.schema), columns).map_err(|error| internal(&error))?;
        // Taken rows are copies: the values do not keep the request's message in memory.
        take_record_batch(&read, &UInt32Array::from_iter_values(0..rows)).map_err(|error| internal(&error))
    }

    /// Concatenates the columns of several requests and pads them with zeros, false and empty strings to at least `min_rows` rows.
    ///
    /// # Errors
    /// [`Error::Internal`] if the batches are not of [`read`](Self::read) or do not fit into one batch.
    pub(crate) fn join(&self, requests: &[RecordBatch], min_rows: usize) -> Result<WireBatch, Error> {
        let joined = concat_batches(&self.schema, requests).map_err(|error| internal(&error))?;
        let padding = min_rows.saturating_sub(joined.num_rows());
        let joined = if padding > 0 {
            let zeros = self.schema.fields().iter().map(|field| zeros(field.data_type(), padding));
            let zeros = zeros.collect::<Result<Vec<_>, _>>().map_err(|error| internal(&error))?;
            let zeros =
                RecordBatch::try_new(Arc::clone(&self.schema), zeros).map_err(|error| internal(&error))?;
            concat_batches(&self.schema, [&joined, &zeros]).map_err(|error| internal(&error))?
        } else {
            joined
        };
        WireBatch::encode(&joined)
    }
}

impl Dtype {
    fn data_type(self) -> DataType {
        match self {
            Self::Bool => DataType::Boolean,
            Self::Float16 => DataType::Float16,
            Self::Float32 => DataType::Float32,
            Self::Float64 => DataType::Float64,
            Self::Int8 => DataType::Int8,
            Self::Int16 => DataType::Int16,
            Self::Int32 => DataType::Int32,
            Self::Int64 => DataType::Int64,
            Self::UInt8 => DataType::UInt8,
            Self::UInt16 => DataType::UInt16,
            Self::UInt32 => DataType::UInt32,
            Self::UInt64 => DataType::UInt64,
            Self::String => DataType::Utf8,
            Self::Binary => DataType::Binary,
        }
    }
}

fn internal(error: &ArrowError) -> Error {
    Error::Internal(format!("request columns: {error}"))
}

/// Converts a column to `to`, without nulls.
fn converted(values: &ArrayRef, to: &DataType) -> Result<ArrayRef, String> {
    let mismatch = || format!("is of type {}, expected {}", values.data_type(), described(to));
    if let DataType::FixedSizeList(field, length) = to {
        without_nulls(values, 1)?;
        let (items, lengths) = items(values).ok_or_else(mismatch)?;
        if let Some((row, found)) = lengths.enumerate().find(|(_, found)| *found != *length as usize) {
            return Err(format!("row {row} has {found} values, expected {length}"));
        }
        let items = converted_items(&items, field.data_type(), *length as usize)?;
        let list =
            FixedSizeListArray::try_new_with_length(Arc::clone(field), *length, items, None, values.len());
        return list.map(|list| Arc::new(list) as ArrayRef).map_err(|error| error.to_string());
    }
    converted_items(values, to, 1)
}

/// Converts values, of which each row has `length`, to `to`, without nulls.
fn converted_items(values: &ArrayRef, to: &DataType, length: usize) -> Result<ArrayRef, String> {
    let from = values.data_type();
    let is_convertible = from == to
        || from.is_integer() && to.is_numeric()
        || from.is_floating() && to.is_floating()
        || is_text(from) && is_text(to)
        || is_binary(from) && is_binary(to);
    if !is_convertible {
        return Err(format!("is of type {from}, expected {}", described(to)));
    }
    without_nulls(values, length)?;
    let options = CastOptions { safe: false, ..CastOptions::default() };
    let cast = cast_with_options(values, to, &options).map_err(|error| error.to_string())?;
    // A value that a type of the same class cannot represent may have become null.
    without_nulls(&cast, length).map_err(|_| format!("has a value that exceeds {}", described(to)))?;
    Ok(cast)
}

/// Items of a list column, and the number of items of each row.
fn items(lists: &ArrayRef) -> Option<(ArrayRef, Box<dyn Iterator<Item = usize> + '_>)> {
    match lists.data_type() {
        DataType::FixedSizeList(_, length) => {
            let length = usize::try_from(*length).ok()?;
            let list = lists.as_fixed_size_list();
            let items = list.values().slice(list.offset() * length, list.len() * length);
            Some((items, Box::new(std::iter::repeat_n(length, list.len()))))
        }
        DataType::List(_) => {
            let list = lists.as_list::<i32>();
            let (start, end) = (*list.offsets().first()? as usize, *list.offsets().last()? as usize);
            Some((list.values().slice(start, end - start), Box::new(list.offsets().lengths())))
        }
        DataType::LargeList(_) => {
            let list = lists.as_list::<i64>();
            let (start, end) = (*list.offsets().first()? as usize, *list.offsets().last()? as usize);
            Some((list.values().slice(start, end - start), Box::new(list.offsets().lengths())))
        }
        _ => None,
    }
}

/// Checks that no value is null. Each row has `length` values.
fn without_nulls(values: &ArrayRef, length: usize) -> Result<(), String> {
    match values.nulls().and_then(|nulls| nulls.iter().position(|is_valid| !is_valid)) {
        Some(place) if length == 1 => Err(format!("row {place} is null, expected no nulls")),
        Some(place) => {
            let (row, item) = (place / length, place % length);
            Err(format!("value {item} of row {row} is null, expected no nulls"))
        }
        None => Ok(()),
    }
}

// Views are not accepted: many of them may refer to the same bytes, so a small message could become a huge column.
fn is_text(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8 | DataType::LargeUtf8)
}

fn is_binary(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Binary | DataType::LargeBinary)
}

/// Name of a type of a request column, as in the configuration.
fn described(data_type: &DataType) -> String {
    match data_type {
        DataType::FixedSizeList(item, length) => {
            format!("{length} values of {} per row", described(item.data_type()))
        }
        DataType::Boolean => "bool".to_owned(),
        DataType::Utf8 => "string".to_owned(),
        other => other.to_string().to_lowercase(),
    }
}

/// Creates a column of zeros, false or empty strings.
fn zeros(data_type: &DataType, rows: usize) -> Result<ArrayRef, ArrowError> {
    if let DataType::FixedSizeList(item, length) = data_type {
        let items = zeros(item.data_type(), rows * *length as usize)?;
        let list = FixedSizeListArray::try_new_with_length(Arc::clone(item), *length, items, None, rows)?;
        return Ok(Arc::new(list));
    }
    Ok(make_array(ArrayData::new_null(data_type, rows).into_builder().nulls(None).build()?))
}

#[cfg(test)]
mod tests {
    use arrow_array::{
        BooleanArray, Float32Array, Float64Array, Int64Array, ListArray, StringArray, StringViewArray,
        types::{Float32Type, Float64Type},
    };

    use super::*;

    fn columns(columns: &[(&str, Dtype, Option<u32>)]) -> RequestColumns {
        let column = |(name, dtype, length): &(&str, Dtype, Option<u32>)| RequestColumn {
            name: (*name).to_owned(),
            dtype: *dtype,
            length: *length,
        };
        RequestColumns::new(&columns.iter().map(column).collect::<Vec<_>>()).unwrap()
    }

    fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
        RecordBatch::try_from_iter(columns).unwrap()
    }

    #[test]
    fn values_are_converted_to_the_configured_types() {
        let columns = columns(&[
            ("embedding", Dtype::Float32, Some(2)),
            ("hour", Dtype::Int8, None),
            ("locale", Dtype::String, None),
        ]);
        let lists = ListArray::from_iter_primitive::<Float64Type, _, _>([
            Some(vec![Some(9.0), Some(9.0)]),
            Some(vec![Some(1.0), Some(2.0)]),
            Some(vec![Some(3.0), Some(4.0)]),
        ]);
        let request = batch(vec![
            ("locale", Arc::new(StringArray::from(vec!["", "de", "en"])) as ArrayRef),
            ("user_id", Arc::new(Int64Array::from(vec![0, 7, 8]))),
            ("hour", Arc::new(Int64Array::from(vec![0, 23, -1]))),
            ("embedding", Arc::new(lists)),
        ]);
        // A slice has offsets that do not start at 0.
        let read = columns.read(&request.slice(1, 2)).unwrap();
        assert_eq!(&read.schema(), columns.schema());
        let values = read.column(0).as_fixed_size_list().values().as_primitive::<Float32Type>();
        assert_eq!(values.values(), &[1.0, 2.0, 3.0, 4.0]);
        assert_eq!(read.column(2).as_string::<i32>().value(1), "en");
    }

    #[test]
    fn invalid_values_are_rejected_with_the_column_and_what_was_expected() {
        let floats = |values: Vec<Option<f64>>| Arc::new(Float64Array::from(values)) as ArrayRef;
        let lists = |values: Vec<Option<Vec<Option<f32>>>>| {
            Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(values)) as ArrayRef
        };
        let (int, vector, text) =
            (("x", Dtype::Int8, None), ("x", Dtype::Float32, Some(2)), ("x", Dtype::String, None));
        for (expected, values, reason) in [
            (int, Arc::new(Int64Array::from(vec![300])) as ArrayRef, "300"),
            (int, floats(vec![Some(1.0)]), "is of type Float64, expected int8"),
            (int, Arc::new(Int64Array::from(vec![Some(1), None])), "row 1 is null, expected no nulls"),
            (int, Arc::new(BooleanArray::from(vec![true])), "is of type Boolean, expected int8"),
            (text, Arc::new(Int64Array::from(vec![1])), "is of type Int64, expected string"),
            (text, Arc::new(StringViewArray::from(vec!["a"])), "is of type Utf8View, expected string"),
            (vector, Arc::new(Float32Array::from(vec![1.0])), "expected 2 values of float32 per row"),
            (
                vector,
                lists(vec![Some(vec![Some(1.0), Some(2.0)]), Some(vec![])]),
                "row 1 has 0 values, expected 2",
            ),
            (vector, lists(vec![None]), "row 0 is null"),
            (
                vector,
                lists(vec![Some(vec![Some(1.0), Some(1.0)]), Some(vec![Some(1.0), None])]),
                "value 1 of row 1 is null",
            ),
        ] {
            let error = columns(&[expected]).read(&batch(vec![("x", values)])).unwrap_err().to_string();
            assert!(error.starts_with("request column 'x': ") && error.contains(reason), "{error}");
        }
        let missing = batch(vec![("y", floats(vec![Some(1.0)]))]);
        let error = columns(&[int]).read(&missing).unwrap_err().to_string();
        assert!(error.contains("there is no column 'x' among [\"y\"]"), "{error}");
    }

    #[test]
    fn values_of_requests_follow_each_other_and_padding_is_zero() {
        let columns = columns(&[
            ("b", Dtype::Bool, None),
            ("s", Dtype::String, None),
            ("v", Dtype::Float16, Some(3)),
            ("x", Dtype::Int32, None),
        ]);
        let request = |text: &str, x: i64| {
            let vector = ListArray::from_iter_primitive::<Float32Type, _, _>([Some(vec![Some(1.0); 3])]);
            let request = batch(vec![
                ("b", Arc::new(BooleanArray::from(vec![true])) as ArrayRef),
                ("s", Arc::new(StringArray::from(vec![text]))),
                ("v", Arc::new(vector)),
                ("x", Arc::new(Int64Array::from(vec![x]))),
            ]);
            columns.read(&request).unwrap()
        };
        let wire = columns.join(&[request("a", 1), request("bc", 2)], 4).unwrap();
        let decoded = WireBatch::decode(columns.schema(), &wire.header, &wire.body.into_bytes()).unwrap();
        let bools: Vec<bool> = decoded.column(0).as_boolean().values().iter().collect();
        assert_eq!(bools, [true, true, false, false]);
        let texts: Vec<_> = decoded.column(1).as_string::<i32>().iter().flatten().collect();
        assert_eq!(texts, ["a", "bc", "", ""]);
        let x = decoded.column(3).as_primitive::<arrow_array::types::Int32Type>();
        assert_eq!(x.values(), &[1, 2, 0, 0]);
        let halves = decoded.column(2).as_fixed_size_list().value(3);
        assert!(
            halves
                .as_primitive::<arrow_array::types::Float16Type>()
                .iter()
                .flatten()
                .all(|v| v.to_f32() == 0.0)
        );
    }

    #[test]
    fn padding_beyond_the_size_of_an_answer_is_rejected() {
        let columns = columns(&[
            ("a", Dtype::Float32, Some(256)),
            ("b", Dtype::String, None),
            ("c", Dtype::Bool, None),
        ]);
        assert_eq!(columns.row_bytes(), 1025);
        columns.check_padding(&[8, 4096], 5 << 20).unwrap();
        let error = columns.check_padding(&[8, 8192], 5 << 20).unwrap_err();
        assert!(error.contains("pad_to has 8192 rows, whose request columns have 8396800 bytes"), "{error}");
    }

    #[test]
    fn invalid_columns_are_rejected_with_their_place() {
        let column = |name: &str, length| RequestColumn { name: name.into(), dtype: Dtype::Int8, length };
        for (columns, expected) in [
            (vec![column("", None)], "[0].name: is empty"),
            (vec![column("x", None), column("x", None)], "[1].name: 'x' appears twice"),
            (vec![column("x", Some(0))], "[0].length: is 0, expected 1 to 1048576"),
            (vec![column("x", Some(u32::MAX))], "[0].length: is 4294967295, expected"),
        ] {
            let error = RequestColumns::new(&columns).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
