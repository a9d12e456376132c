//! Arrow's PyCapsule interface.

use arrow_array::ffi::to_ffi;
use arrow_data::ArrayData;
use arrow_schema::ffi::FFI_ArrowSchema;
use pyo3::{
    prelude::*,
    types::{PyCapsule, PyTuple},
};

use crate::errors::of_class;

/// The pair of capsules that show `data` without a copy; `schema` says more of it than its type does.
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
