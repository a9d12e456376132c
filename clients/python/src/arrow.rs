//! The Arrow PyCapsule interface.

use arrow_array::{
    RecordBatch, RecordBatchReader, StructArray,
    ffi::{FFI_ArrowArray, FFI_ArrowSchema, from_ffi, to_ffi},
    ffi_stream::{ArrowArrayStreamReader, FFI_ArrowArrayStream},
};
use arrow_data::ArrayData;
use arrow_schema::{ArrowError, DataType};
use arrow_select::concat::concat_batches;
use pyo3::{
    prelude::*,
    types::{PyCapsule, PyTuple},
};

use crate::errors::of_class;

/// Exports `data` as a pair of capsules, without a copy. `schema` replaces the schema of its data type, for example to keep
/// field metadata.
pub(crate) fn capsules<'py>(
    py: Python<'py>,
    data: &ArrayData,
    schema: Option<FFI_ArrowSchema>,
) -> PyResult<Bound<'py, PyTuple>> {
    let (array, of_type) = to_ffi(data).map_err(|error| of_class(py, "Error", error.to_string()))?;
    let schema = PyCapsule::new_with_value(py, schema.unwrap_or(of_type), c"arrow_schema")?;
    let array = PyCapsule::new_with_value(py, array, c"arrow_array")?;
    PyTuple::new(py, [schema, array])
}

/// Exports `reader` as a capsule of a stream of batches.
pub(crate) fn stream_capsule<'py>(
    py: Python<'py>,
    reader: impl RecordBatchReader + Send + 'static,
) -> PyResult<Bound<'py, PyCapsule>> {
    PyCapsule::new_with_value(py, FFI_ArrowArrayStream::new(Box::new(reader)), c"arrow_array_stream")
}

/// Imports the array of `object` by `__arrow_c_array__`; `None` if `object` has no such method. A batch is imported as an array
/// of structs.
pub(crate) fn array_of(object: &Bound<'_, PyAny>) -> PyResult<Option<ArrayData>> {
    let Some(export) = object.getattr_opt("__arrow_c_array__")? else { return Ok(None) };
    let (schema, array): (Bound<'_, PyCapsule>, Bound<'_, PyCapsule>) = export.call0()?.extract()?;
    let schema = schema.pointer_checked(Some(c"arrow_schema"))?.cast::<FFI_ArrowSchema>();
    let array = array.pointer_checked(Some(c"arrow_array"))?.cast::<FFI_ArrowArray>();
    // SAFETY: a capsule of this name points to an `ArrowArray`. The array is moved out and the structure is marked as released, as
    // the interface specifies.
    let array = unsafe { FFI_ArrowArray::from_raw(array.as_ptr()) };
    if array.is_released() {
        return Err(unreadable(object, "the array was already consumed"));
    }
    // SAFETY: the capsule keeps the schema until the end of this function, and the schema describes the array.
    let data = unsafe { from_ffi(array, schema.as_ref()) };
    data.map(Some).map_err(|error| unreadable(object, &error.to_string()))
}

/// Imports the batches of `object` by `__arrow_c_stream__` and concatenates them; `None` if `object` has no such method.
pub(crate) fn table_of(object: &Bound<'_, PyAny>) -> PyResult<Option<RecordBatch>> {
    let Some(export) = object.getattr_opt("__arrow_c_stream__")? else { return Ok(None) };
    let capsule: Bound<'_, PyCapsule> = export.call0()?.extract()?;
    let stream = capsule.pointer_checked(Some(c"arrow_array_stream"))?.cast::<FFI_ArrowArrayStream>();
    // SAFETY: a capsule of this name points to an `ArrowArrayStream`. The stream is moved out and the structure is marked as
    // released, as the interface specifies.
    let reader = unsafe { ArrowArrayStreamReader::from_raw(stream.as_ptr()) };
    let batch = reader.and_then(|reader| {
        let schema = reader.schema();
        let batches = reader.collect::<Result<Vec<_>, ArrowError>>()?;
        concat_batches(&schema, &batches)
    });
    batch.map(Some).map_err(|error| unreadable(object, &error.to_string()))
}

/// Converts an array of structs to a batch. Returns any other array as the inner `Err`.
pub(crate) fn batch_or_array(
    object: &Bound<'_, PyAny>,
    data: ArrayData,
) -> PyResult<Result<RecordBatch, ArrayData>> {
    if !matches!(data.data_type(), DataType::Struct(_)) {
        return Ok(Err(data));
    }
    if data.null_count() > 0 {
        return Err(unreadable(object, "it has null structs, expected rows"));
    }
    Ok(Ok(RecordBatch::from(StructArray::from(data))))
}

fn unreadable(object: &Bound<'_, PyAny>, why: &str) -> PyErr {
    let kind = object.get_type().name().map_or_else(|_| "object".to_owned(), |name| name.to_string());
    of_class(
        object.py(),
        "RequestError",
        format!("cannot import the {kind} through the Arrow PyCapsule interface: {why}"),
    )
}
