//! Zero-copy views of one column or tensor.

use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, PrimitiveArray,
    cast::AsArray,
    types::{Int32Type, Int64Type},
};
use arrow_schema::DataType;
use forebay_client::Tensor;
use pyo3::{
    exceptions::{PyBufferError, PyValueError},
    prelude::*,
    types::{PyCapsule, PyDict, PyList, PyTuple},
};

use crate::{
    arrow::capsules,
    dlpack::{self, Element},
    numbers::{Lists, Numbers, lists, numbers},
    objects::objects,
    types::{has_nullable_items, plain},
};

/// A column or tensor in host memory. NumPy, PyTorch and JAX read it by `__array_interface__` and DLPack, Arrow by the PyCapsule
/// interface. Each view keeps the memory of the batch.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Column {
    name: String,
    array: ArrayRef,
    nullable: bool,
}

/// Values, the NumPy type to view them as or an empty string, a byte per value that is 0 for a null, and true if the schema allows
/// nulls.
type Plain = (Column, &'static str, Option<Column>, bool);

impl Column {
    /// Creates a column. `nullable` is true if this column of any batch may have nulls.
    pub(crate) fn new(name: &str, array: ArrayRef, nullable: bool) -> Self {
        Self { name: name.to_owned(), array, nullable }
    }

    /// Returns a column of the same name without nulls.
    fn with(&self, array: ArrayRef) -> Self {
        Self::new(&self.name, array, false)
    }

    fn plain(&self, Numbers { values, dtype, valid }: Numbers, nullable: bool) -> Plain {
        (self.with(values), dtype, valid.map(|valid| self.with(valid)), nullable)
    }

    fn tensor(&self) -> PyResult<Tensor> {
        Tensor::of(&self.name, &self.array).map_err(|why| unviewable(&self.name, &why))
    }

    /// Exports booleans by DLPack: a copy, because Arrow has bits and DLPack has bytes.
    fn booleans<'py>(&self, py: Python<'py>, copy: Option<bool>) -> PyResult<Bound<'py, PyCapsule>> {
        if copy == Some(false) {
            return Err(PyBufferError::new_err(format!(
                "column '{}' has booleans, which DLPack exports with a copy only, but copy is False",
                self.name
            )));
        }
        let bytes = numbers(&self.array).ok_or_else(|| self.untyped())?.values;
        let tensor = Tensor::of(&self.name, &bytes).map_err(|why| unviewable(&self.name, &why))?;
        dlpack::capsule(py, Box::new(bytes), dlpack::HOST, tensor.address, &tensor.shape, Element::bool())
    }

    /// Returns the error for a type that neither NumPy nor DLPack can represent.
    fn untyped(&self) -> PyErr {
        let why = format!("has type {}, which has no NumPy equivalent", self.array.data_type());
        unviewable(&self.name, &why)
    }
}

#[pymethods]
impl Column {
    /// Name of the column.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Arrow type name.
    #[getter]
    fn r#type(&self) -> String {
        self.array.data_type().to_string()
    }

    /// True if this column of any batch of the stream may have nulls.
    #[getter]
    fn nullable(&self) -> bool {
        self.nullable
    }

    /// True for strings and binary values.
    #[getter]
    fn is_text(&self) -> bool {
        let data_type = self.array.data_type();
        data_type.is_string() || data_type.is_binary()
    }

    /// Returns the plain values of numbers, booleans, times and decimals; `None` for other types. Views where the layout allows.
    fn numbers(&self, py: Python<'_>) -> Option<Plain> {
        let nullable = self.nullable || has_nullable_items(self.array.data_type());
        py.detach(|| numbers(&self.array)).map(|found| self.plain(found, nullable))
    }

    /// Returns the items of lists of plain values, the 64-bit start offset of each list followed by the end of the last one, and
    /// a byte per row that is 0 for a null list. `None` for other types.
    fn lists(&self, py: Python<'_>) -> Option<(Plain, Self, Option<Self>)> {
        let Lists { items, offsets, valid } = py.detach(|| lists(&self.array))?;
        let items = self.plain(items, has_nullable_items(self.array.data_type()));
        Some((items, self.with(Arc::new(offsets)), valid.map(|valid| self.with(valid))))
    }

    /// Returns one Python object per row.
    fn objects<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let objects = objects(py, &self.array).map_err(|error| {
            if !error.is_instance_of::<PyValueError>(py) {
                return error;
            }
            unviewable(&self.name, &format!("cannot be converted: {}", error.value(py)))
        });
        PyList::new(py, objects?)
    }

    /// Number of rows.
    fn __len__(&self) -> usize {
        self.array.len()
    }

    fn __repr__(&self) -> String {
        format!("<forebay.Column {} of {} {}>", self.name, self.array.len(), self.array.data_type())
    }

    /// Exports the column to NumPy.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let tensor = self.tensor()?;
        let (typestr, _) = plain(&tensor.data_type).ok_or_else(|| self.untyped())?;
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("typestr", typestr)?;
        interface.set_item("shape", PyTuple::new(py, &tensor.shape)?)?;
        interface.set_item("data", (tensor.address, false))?;
        Ok(interface)
    }

    /// Exports the column by DLPack, in host memory.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<Bound<'py, PyAny>>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // Consumers of later versions must accept version 0.
        drop((stream, max_version));
        dlpack::as_it_lies(dlpack::HOST, dl_device, copy)?;
        if *self.array.data_type() == DataType::Boolean && self.array.null_count() == 0 {
            return self.booleans(py, copy);
        }
        let tensor = self.tensor()?;
        let (_, element) = plain(&tensor.data_type).ok_or_else(|| self.untyped())?;
        let element =
            element.ok_or_else(|| unviewable(&self.name, "has a type that DLPack does not support"))?;
        let keeper = Box::new(self.array.clone());
        dlpack::capsule(py, keeper, dlpack::HOST, tensor.address, &tensor.shape, element)
    }

    /// Returns the concatenated items and the offsets of a list column. There is one more offset than rows. Both are views of the
    /// batch.
    fn ragged(&self) -> PyResult<(Self, Self)> {
        if self.array.null_count() > 0 {
            return Err(unviewable(&self.name, "contains null lists, which offsets cannot represent"));
        }
        let (items, offsets): (ArrayRef, ArrayRef) = if let Some(lists) = self.array.as_list_opt::<i32>() {
            let offsets = PrimitiveArray::<Int32Type>::new(lists.offsets().inner().clone(), None);
            (Arc::clone(lists.values()), Arc::new(offsets))
        } else if let Some(lists) = self.array.as_list_opt::<i64>() {
            let offsets = PrimitiveArray::<Int64Type>::new(lists.offsets().inner().clone(), None);
            (Arc::clone(lists.values()), Arc::new(offsets))
        } else {
            let why = format!("has type {}, expected a list", self.array.data_type());
            return Err(PyValueError::new_err(format!("column '{}' {why}", self.name)));
        };
        let named = |part: &str| format!("{}.{part}", self.name);
        let nullable = has_nullable_items(self.array.data_type());
        Ok((Self::new(&named("items"), items, nullable), Self::new(&named("offsets"), offsets, false)))
    }

    /// Device type and ID of the host in DLPack.
    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::HOST
    }

    /// Exports the column by the Arrow PyCapsule interface, without a copy.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        drop(requested_schema);
        capsules(py, &self.array.to_data(), None)
    }
}

/// Returns the error for a column that has no zero-copy view.
fn unviewable(name: &str, why: &str) -> PyErr {
    PyValueError::new_err(format!("column '{name}' {why}; use to_arrow()"))
}
