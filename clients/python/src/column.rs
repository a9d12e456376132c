//! Zero-copy views of one column or tensor.

use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, PrimitiveArray,
    cast::AsArray,
    types::{Int32Type, Int64Type},
};
use arrow_schema::{DataType, TimeUnit};
use forebay_client::Tensor;
use pyo3::{
    exceptions::PyValueError,
    prelude::*,
    types::{PyCapsule, PyDict, PyTuple},
};

use crate::{
    arrow::capsules,
    dlpack::{self, Element},
};

/// A column or tensor in host memory. NumPy, PyTorch and JAX read it by `__array_interface__` and DLPack, Arrow by the PyCapsule
/// interface. Each view keeps the memory of the batch.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Column {
    name: String,
    array: ArrayRef,
}

impl Column {
    pub(crate) fn new(name: &str, array: ArrayRef) -> Self {
        Self { name: name.to_owned(), array }
    }

    fn tensor(&self) -> PyResult<Tensor> {
        Tensor::of(&self.name, &self.array).map_err(|why| unviewable(&self.name, &why))
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
        dlpack::as_it_lies(py, dlpack::HOST, dl_device, copy)?;
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
        Ok((Self::new(&named("items"), items), Self::new(&named("offsets"), offsets)))
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

/// NumPy type string, Arrow type and DLPack type of plain values. The DLPack type is `None` for times.
static TYPES: [(&str, DataType, Option<Element>); 19] = [
    ("|i1", DataType::Int8, Some(Element::int(8))),
    ("<i2", DataType::Int16, Some(Element::int(16))),
    ("<i4", DataType::Int32, Some(Element::int(32))),
    ("<i8", DataType::Int64, Some(Element::int(64))),
    ("|u1", DataType::UInt8, Some(Element::uint(8))),
    ("<u2", DataType::UInt16, Some(Element::uint(16))),
    ("<u4", DataType::UInt32, Some(Element::uint(32))),
    ("<u8", DataType::UInt64, Some(Element::uint(64))),
    ("<f2", DataType::Float16, Some(Element::float(16))),
    ("<f4", DataType::Float32, Some(Element::float(32))),
    ("<f8", DataType::Float64, Some(Element::float(64))),
    ("<M8[s]", DataType::Timestamp(TimeUnit::Second, None), None),
    ("<M8[ms]", DataType::Timestamp(TimeUnit::Millisecond, None), None),
    ("<M8[us]", DataType::Timestamp(TimeUnit::Microsecond, None), None),
    ("<M8[ns]", DataType::Timestamp(TimeUnit::Nanosecond, None), None),
    ("<m8[s]", DataType::Duration(TimeUnit::Second), None),
    ("<m8[ms]", DataType::Duration(TimeUnit::Millisecond), None),
    ("<m8[us]", DataType::Duration(TimeUnit::Microsecond), None),
    ("<m8[ns]", DataType::Duration(TimeUnit::Nanosecond), None),
];

/// Returns the NumPy type string and the DLPack type of a type of plain values; `None` for other types.
pub(crate) fn plain(data_type: &DataType) -> Option<(&'static str, Option<Element>)> {
    let without_zone = match data_type {
        DataType::Timestamp(unit, _) => DataType::Timestamp(*unit, None),
        DataType::Date64 => DataType::Timestamp(TimeUnit::Millisecond, None),
        other => other.clone(),
    };
    let found = TYPES.iter().find(|(_, data_type, _)| *data_type == without_zone);
    found.map(|(typestr, _, element)| (*typestr, *element))
}

/// Returns the Arrow type of the NumPy type string `kind`.
pub(crate) fn data_type(kind: &str) -> Option<DataType> {
    match kind {
        "|b1" => Some(DataType::Boolean),
        // Four bytes wide, unlike `<M8[D]` of NumPy.
        "date32" => Some(DataType::Date32),
        _ => TYPES.iter().find(|(typestr, ..)| *typestr == kind).map(|(_, data_type, _)| data_type.clone()),
    }
}

/// Returns the error for a column that has no zero-copy view.
fn unviewable(name: &str, why: &str) -> PyErr {
    PyValueError::new_err(format!("column '{name}' {why}; use to_arrow()"))
}
