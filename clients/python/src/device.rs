//! Columns in GPU memory.

use std::ffi::c_void;

use arrow_buffer::Buffer;
use forebay_client::{DeviceBatch, Place, Tensor};
use pyo3::{
    exceptions::PyBufferError,
    prelude::*,
    types::{PyCapsule, PyDict},
};

use crate::{
    column::Column,
    dlpack,
    errors::{of_class, raised},
    rows::array_of_shape,
    types::{has_nullable_items, plain},
};

/// A column or tensor in device memory. Work on its DLPack export is ordered after the copy of the batch. The memory is reused
/// after the export is released and the streams that it was exported to have completed their work.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct DeviceColumn {
    batch: DeviceBatch,
    tensor: Tensor,
    nullable: bool,
}

/// A column of lists in device memory, as two columns: its items and its offsets.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct DeviceLists {
    batch: DeviceBatch,
    /// Arrow type name.
    kind: String,
    items: Tensor,
    offsets: Tensor,
    nullable: bool,
    has_nullable_items: bool,
}

/// Special stream numbers of DLPack; see `__dlpack__` in
/// <https://data-apis.org/array-api/latest/API_specification/generated/array_api.array.__dlpack__.html>.
const NOT_ORDERED: i64 = -1;
const AMBIGUOUS: i64 = 0;
const LEGACY_DEFAULT: i64 = 1;
/// Refers to a different stream on each thread. A batch can be dropped on another thread than it was exported on.
const PER_THREAD: i64 = 2;

/// Returns the DLPack device type and ID of `place`.
pub(crate) fn words(place: Place) -> (i32, i32) {
    match place {
        Place::Host => dlpack::HOST,
        Place::Cuda(number) => (dlpack::CUDA, i32::try_from(number).unwrap_or(i32::MAX)),
    }
}

/// Orders the work of `stream`, a number as in DLPack, after the copy of `batch`, and the reuse of its memory after this work.
pub(crate) fn use_on(py: Python<'_>, batch: &DeviceBatch, stream: i64) -> PyResult<()> {
    let ordered = match stream {
        AMBIGUOUS => {
            // The exception of the protocol for an array that can't be exported as requested.
            let error = "stream is 0, which is ambiguous; use 1 for the legacy default stream or 2 for the per-thread one";
            return Err(PyBufferError::new_err(error));
        }
        NOT_ORDERED | PER_THREAD => py.detach(|| batch.ready_unordered()),
        // SAFETY: the consumer passes a stream of the device, as DLPack requires, and keeps it as long as the batch.
        stream => unsafe { batch.ready_on(stream as *mut c_void) },
    };
    ordered.map_err(|error| raised(py, &error))
}

/// Returns a column of a batch on a device, by the memory that has it in a form for frameworks.
pub(crate) fn column_of<'py>(
    py: Python<'py>,
    batch: &DeviceBatch,
    name: &str,
) -> PyResult<Bound<'py, PyAny>> {
    let failed = |error| raised(py, &error);
    let nullable = batch.is_nullable(name).map_err(failed)?;
    if let Some(array) = batch.on_host(name).map_err(failed)? {
        return Ok(Column::new(name, array.clone(), nullable).into_pyobject(py)?.into_any());
    }
    if let Ok((items, offsets)) = batch.lists(name) {
        let (batch, items, offsets) = (batch.clone(), items.clone(), offsets.clone());
        let data_type = batch.data_type(name).map_err(failed)?;
        let (kind, has_nullable_items) = (data_type.to_string(), has_nullable_items(data_type));
        let lists = DeviceLists { batch, kind, items, offsets, nullable, has_nullable_items };
        return Ok(lists.into_pyobject(py)?.into_any());
    }
    let tensor = batch.tensor(name).map_err(failed)?.clone();
    Ok(DeviceColumn { batch: batch.clone(), tensor, nullable }.into_pyobject(py)?.into_any())
}

#[pymethods]
impl DeviceColumn {
    /// Name of the column.
    #[getter]
    fn name(&self) -> &str {
        &self.tensor.name
    }

    /// Arrow type name of the values.
    #[getter]
    fn r#type(&self) -> String {
        self.tensor.data_type.to_string()
    }

    /// True if the column may have nulls in some batch of the stream. It has none in this one.
    #[getter]
    fn nullable(&self) -> bool {
        self.nullable
    }

    /// Number of rows; for a tensor, also the number of values per row.
    #[getter]
    fn shape(&self) -> Vec<usize> {
        self.tensor.shape.clone()
    }

    /// Returns a copy of the column in host memory.
    fn to_host(&self, py: Python<'_>) -> PyResult<Column> {
        let bytes = py.detach(|| self.batch.read_tensor(&self.tensor)).map_err(|error| raised(py, &error))?;
        let array =
            array_of_shape(self.tensor.data_type.clone(), &self.tensor.shape, Buffer::from_vec(bytes));
        let array = array.map_err(|why| of_class(py, "Error", format!("column '{}' {why}", self.name())))?;
        Ok(Column::new(self.name(), array, self.nullable))
    }

    /// Number of rows.
    fn __len__(&self) -> usize {
        self.tensor.shape[0]
    }

    fn __repr__(&self) -> String {
        let Tensor { name, data_type, shape, .. } = &self.tensor;
        format!("<forebay.Column {name} of {shape:?} {data_type} on {}>", self.batch.place())
    }

    /// Exports the column by DLPack, in device memory, for work on `stream`.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<i64>,
        max_version: Option<Bound<'py, PyAny>>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        drop(max_version);
        dlpack::as_it_lies(words(self.batch.place()), dl_device, copy)?;
        let Some((_, Some(element))) = plain(&self.tensor.data_type) else {
            let Tensor { name, data_type, .. } = &self.tensor;
            let error = format!("column '{name}' has type {data_type}, which DLPack does not support");
            return Err(PyBufferError::new_err(error));
        };
        use_on(py, &self.batch, stream.unwrap_or(LEGACY_DEFAULT))?;
        let place = words(self.batch.place());
        dlpack::capsule(
            py,
            Box::new(self.batch.clone()),
            place,
            self.tensor.address,
            &self.tensor.shape,
            element,
        )
    }

    /// Device type and ID in DLPack.
    fn __dlpack_device__(&self) -> (i32, i32) {
        words(self.batch.place())
    }
}

#[pymethods]
impl DeviceLists {
    /// Name of the column.
    #[getter]
    fn name(&self) -> &str {
        &self.items.name
    }

    /// Arrow type name of the column.
    #[getter]
    fn r#type(&self) -> &str {
        &self.kind
    }

    /// True if the column may have nulls in some batch of the stream. It has none in this one.
    #[getter]
    fn nullable(&self) -> bool {
        self.nullable
    }

    /// Number of rows.
    fn __len__(&self) -> usize {
        self.offsets.shape[0].saturating_sub(1)
    }

    fn __repr__(&self) -> String {
        let (name, rows, place) = (self.name(), self.__len__(), self.batch.place());
        format!("<forebay.Column {name} of {rows} {} on {place}>", self.r#type())
    }

    /// Returns the concatenated items and the offsets. There is one more offset than rows. Both are views of the batch.
    fn ragged(&self) -> (DeviceColumn, DeviceColumn) {
        let part = |tensor: &Tensor, part: &str, nullable: bool| {
            let tensor = Tensor { name: format!("{}.{part}", self.name()), ..tensor.clone() };
            DeviceColumn { batch: self.batch.clone(), tensor, nullable }
        };
        (part(&self.items, "items", self.has_nullable_items), part(&self.offsets, "offsets", false))
    }

    /// Raises BufferError: DLPack has no lists.
    #[pyo3(signature = (**_options))]
    fn __dlpack__(&self, _options: Option<Bound<'_, PyDict>>) -> PyResult<()> {
        Err(PyBufferError::new_err(format!(
            "column '{}' has lists, which DLPack does not support; export the two columns of ragged()",
            self.name()
        )))
    }

    /// Device type and ID in DLPack.
    fn __dlpack_device__(&self) -> (i32, i32) {
        words(self.batch.place())
    }
}
