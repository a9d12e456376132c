//! Columns in GPU memory.

use std::ffi::c_void;

use forebay_client::{DeviceBatch, Place, Tensor};
use pyo3::{exceptions::PyBufferError, prelude::*, types::PyCapsule};

use crate::{
    dlpack,
    errors::{of_class, raised},
    types::plain,
};

/// A column or tensor in device memory. Work on its DLPack export is ordered after the copy of the batch. The memory is reused
/// after the export is released and the streams that it was exported to have completed their work.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct DeviceColumn {
    batch: DeviceBatch,
    tensor: Tensor,
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
            let error = "stream is 0, which is ambiguous; use 1 for the legacy default stream or 2 for the per-thread one";
            return Err(of_class(py, "RequestError", error.into()));
        }
        NOT_ORDERED | PER_THREAD => py.detach(|| batch.ready_unordered()),
        // SAFETY: the consumer passes a stream of the device, as DLPack requires, and keeps it as long as the batch.
        stream => unsafe { batch.ready_on(stream as *mut c_void) },
    };
    ordered.map_err(|error| raised(py, &error))
}

impl DeviceColumn {
    pub(crate) fn new(py: Python<'_>, batch: &DeviceBatch, name: &str) -> PyResult<Self> {
        let tensor = batch.tensor(name).map_err(|error| raised(py, &error))?.clone();
        Ok(Self { batch: batch.clone(), tensor })
    }
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
