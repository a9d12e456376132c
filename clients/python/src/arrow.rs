//! The Arrow PyCapsule interface.

use std::sync::Arc;

use arrow_array::{
    ArrayRef, RecordBatch, RecordBatchReader, StructArray,
    ffi::{FFI_ArrowArray, FFI_ArrowSchema, from_ffi, to_ffi},
    ffi_stream::{ArrowArrayStreamReader, FFI_ArrowArrayStream},
    make_array, new_empty_array,
};
use arrow_data::ArrayData;
use arrow_schema::{ArrowError, DataType};
use arrow_select::concat::{concat, concat_batches};
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

/// Imports the chunks of `object` by `__arrow_c_stream__` as one array, which may have any type; `None` if `object` has no such method.
/// A table is imported as an array of structs.
pub(crate) fn chunked_array_of(object: &Bound<'_, PyAny>) -> PyResult<Option<ArrayRef>> {
    let Some(export) = object.getattr_opt("__arrow_c_stream__")? else { return Ok(None) };
    let capsule: Bound<'_, PyCapsule> = export.call0()?.extract()?;
    let stream = capsule.pointer_checked(Some(c"arrow_array_stream"))?.cast::<FFI_ArrowArrayStream>();
    // SAFETY: a capsule of this name points to an `ArrowArrayStream`. The stream is moved out and the structure is marked as
    // released, as the interface specifies.
    let stream = unsafe { FFI_ArrowArrayStream::from_raw(stream.as_ptr()) };
    read_chunks(stream).map(Some).map_err(|error| unreadable(object, &error.to_string()))
}

fn read_chunks(mut stream: FFI_ArrowArrayStream) -> Result<ArrayRef, ArrowError> {
    let released = || ArrowError::CDataInterface("the stream was already consumed".into());
    let (get_schema, get_next) = stream.get_schema.zip(stream.get_next).ok_or_else(released)?;
    let failed = |code: i32| ArrowError::CDataInterface(format!("the stream failed with error {code}"));
    let mut schema = FFI_ArrowSchema::empty();
    // SAFETY: the stream is not released, and the schema is empty memory that the producer may fill.
    match unsafe { get_schema(&raw mut stream, &raw mut schema) } {
        0 => {}
        code => return Err(failed(code)),
    }
    let mut chunks = Vec::new();
    loop {
        let mut chunk = FFI_ArrowArray::empty();
        // SAFETY: as above.
        match unsafe { get_next(&raw mut stream, &raw mut chunk) } {
            0 if chunk.is_released() => break,
            // SAFETY: the schema of the stream describes each of its arrays.
            0 => chunks.push(make_array(unsafe { from_ffi(chunk, &schema) }?)),
            code => return Err(failed(code)),
        }
    }
    match &chunks[..] {
        [] => Ok(new_empty_array(&DataType::try_from(&schema)?)),
        [one] => Ok(Arc::clone(one)),
        several => concat(&several.iter().map(|chunk| &**chunk).collect::<Vec<_>>()),
    }
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
