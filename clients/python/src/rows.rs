//! Rows that are sent: keys of lookups and requests, and replies of workers.

use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, FixedSizeListArray, NullArray, RecordBatch, StringArray,
    cast::AsArray, make_array,
};
use arrow_buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow_data::ArrayData;
use arrow_schema::{DataType, Field, Schema};
use arrow_select::take::take;
use pyo3::{
    prelude::*,
    types::{PyBytes, PyList, PyString},
};

use crate::{
    arrow::{array_of, batch_or_array, chunked_array_of, table_of},
    errors::of_class,
    types::data_type,
};

/// Converts `object` to rows: an object with the Arrow PyCapsule interface, or a list of columns from `forebay/sending.py`. A
/// single array becomes the column `single`.
///
/// # Errors
/// `RequestError` for other objects.
pub(crate) fn rows(object: &Bound<'_, PyAny>, single: &str) -> PyResult<RecordBatch> {
    let received = rows_as_given(object, single)?;
    let columns = received.schema_ref().fields().iter().zip(received.columns());
    let columns = columns.map(|(field, column)| (field.name().clone(), with_wire_type(column)));
    batch(object.py(), columns.collect())
}

/// Returns the values of views, dictionaries and runs, which queues and earlier servers do not accept. Other arrays are unchanged.
fn with_wire_type(array: &ArrayRef) -> ArrayRef {
    match array.data_type() {
        DataType::Utf8View => Arc::new(array.as_string_view().iter().collect::<StringArray>()),
        DataType::BinaryView => Arc::new(array.as_binary_view().iter().collect::<BinaryArray>()),
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            take(dictionary.values(), dictionary.keys(), None)
                .map_or_else(|_| Arc::clone(array), |values| with_wire_type(&values))
        }
        _ => Arc::clone(array),
    }
}

fn rows_as_given(object: &Bound<'_, PyAny>, single: &str) -> PyResult<RecordBatch> {
    if let Ok(columns) = object.cast::<PyList>() {
        return columns_of(columns);
    }
    if let Some(data) = array_of(object)? {
        return match batch_or_array(object, data)? {
            Ok(batch) => Ok(batch),
            Err(data) => batch(object.py(), vec![(single.to_owned(), make_array(data))]),
        };
    }
    let refused = || {
        of_class(
            object.py(),
            "RequestError",
            "the object does not support the Arrow PyCapsule interface".into(),
        )
    };
    table_of(object)?.ok_or_else(refused)
}

fn columns_of(columns: &Bound<'_, PyList>) -> PyResult<RecordBatch> {
    let made = columns.iter().map(|column| column_of(&column)).collect::<PyResult<_>>()?;
    batch(columns.py(), made)
}

fn batch(py: Python<'_>, columns: Vec<(String, ArrayRef)>) -> PyResult<RecordBatch> {
    // All columns are nullable, so that the schema is the same for batches with and without nulls.
    let fields = columns.iter().map(|(name, array)| Field::new(name, array.data_type().clone(), true));
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let made = RecordBatch::try_new(schema, columns.into_iter().map(|(_, array)| array).collect());
    made.map_err(|error| {
        of_class(py, "RequestError", format!("the columns have different lengths or types: {error}"))
    })
}

/// Converts a column: `(name, type, shape, bytes, valid)` with plain values, or `(name, values)` with text, bytes or Arrow values.
fn column_of(column: &Bound<'_, PyAny>) -> PyResult<(String, ArrayRef)> {
    type Plain<'py> = (String, String, Vec<usize>, Bound<'py, PyBytes>, Option<Bound<'py, PyBytes>>);
    if let Ok((name, kind, shape, bytes, valid)) = column.extract::<Plain<'_>>() {
        let array = plain(&kind, &shape, bytes.as_bytes(), valid.as_ref().map(PyBytesMethods::as_bytes));
        return array.map(|array| (name.clone(), array)).map_err(|why| unsendable(column, &name, &why));
    }
    let (name, values): (String, Bound<'_, PyAny>) = column.extract()?;
    if let Some(data) = array_of(&values)? {
        return Ok((name, make_array(data)));
    }
    if let Some(array) = chunked_array_of(&values)? {
        let first = array.as_struct_opt().and_then(|frame| frame.columns().first()).cloned();
        return Ok((name, first.unwrap_or(array)));
    }
    let array = listed(&values).ok_or_else(|| unsendable(column, &name, why_unlisted(&values)))?;
    Ok((name, array))
}

/// Converts a list of text or of bytes; `None` for other values.
fn listed(values: &Bound<'_, PyAny>) -> Option<ArrayRef> {
    if let Ok(values) = values.extract::<Vec<Option<String>>>() {
        return Some(Arc::new(StringArray::from(values)));
    }
    let values = values.extract::<Vec<Option<Bound<'_, PyBytes>>>>().ok()?;
    let values = values.iter().map(|value| value.as_ref().map(PyBytesMethods::as_bytes));
    Some(Arc::new(values.collect::<BinaryArray>()))
}

/// Returns why [`listed`] does not convert values: the end of a sentence about the column.
fn why_unlisted(values: &Bound<'_, PyAny>) -> &'static str {
    let is_broken = |value: PyResult<Bound<'_, PyAny>>| {
        value.is_ok_and(|value| value.cast::<PyString>().is_ok_and(|text| text.to_cow().is_err()))
    };
    match values.try_iter().is_ok_and(|mut values| values.any(is_broken)) {
        true => "has a text that UTF-8 cannot represent (a lone surrogate)",
        false => "has values of several types",
    }
}

/// Converts plain values in `bytes`, in row-major order, with one or two dimensions. `valid` has a byte per value, 0 for a null.
fn plain(kind: &str, shape: &[usize], bytes: &[u8], valid: Option<&[u8]>) -> Result<ArrayRef, String> {
    let data_type = data_type(kind).ok_or_else(|| format!("has type {kind}, which is not supported"))?;
    let values = shape.iter().try_fold(1usize, |product, length| product.checked_mul(*length));
    if data_type == DataType::Null {
        return Ok(Arc::new(NullArray::new(values.unwrap_or(0))));
    }
    let width = data_type.primitive_width().unwrap_or(1);
    if values.and_then(|values| values.checked_mul(width)) != Some(bytes.len()) {
        return Err(format!("has {} bytes, which do not match shape {shape:?} of type {kind}", bytes.len()));
    }
    let nulls = valid.map(|valid| NullBuffer::from_iter(valid.iter().map(|byte| *byte != 0)));
    if data_type == DataType::Boolean {
        let values = BooleanBuffer::from_iter(bytes.iter().map(|byte| *byte != 0));
        return shaped(Arc::new(BooleanArray::new(values, nulls)), shape);
    }
    let array = array_of_shape(data_type, &[values.unwrap_or(0)], Buffer::from(bytes))?;
    let array = array.to_data().into_builder().nulls(nulls).build().map_err(|error| error.to_string())?;
    shaped(make_array(array), shape)
}

/// Returns plain values in row-major order as an array of `shape`, which has one or two dimensions.
///
/// # Errors
/// The end of a sentence about the column.
pub(crate) fn array_of_shape(
    data_type: DataType,
    shape: &[usize],
    values: Buffer,
) -> Result<ArrayRef, String> {
    let data = ArrayData::builder(data_type).len(shape.iter().product()).add_buffer(values);
    let data = data.align_buffers(true).build().map_err(|error| error.to_string())?;
    shaped(make_array(data), shape)
}

fn shaped(array: ArrayRef, shape: &[usize]) -> Result<ArrayRef, String> {
    match shape {
        [_] => Ok(array),
        [rows, length] => matrix(array, *rows, *length),
        _ => Err(format!("has {} dimensions, expected [rows] or [rows, values]", shape.len())),
    }
}

fn matrix(values: ArrayRef, rows: usize, length: usize) -> Result<ArrayRef, String> {
    let length = i32::try_from(length)
        .map_err(|_| format!("has {length} values per row, expected at most 2147483647"))?;
    let item = Arc::new(Field::new("item", values.data_type().clone(), values.null_count() > 0));
    let made = FixedSizeListArray::try_new_with_length(item, length, values, None, rows);
    made.map(|made| Arc::new(made) as ArrayRef).map_err(|error| error.to_string())
}

fn unsendable(column: &Bound<'_, PyAny>, name: &str, why: &str) -> PyErr {
    of_class(column.py(), "RequestError", format!("column '{name}' {why}"))
}
