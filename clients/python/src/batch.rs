//! One batch.

use std::sync::Arc;

use arrow_array::{Array, ArrayRef, Int32Array, RecordBatch, RecordBatchIterator, StructArray};
use arrow_schema::ffi::FFI_ArrowSchema;
use forebay_client::{DeviceBatch, Error, Place, proto::v1::BatchMetadata, values};
use pyo3::{
    exceptions::PyKeyError,
    prelude::*,
    types::{PyCapsule, PyTuple},
};

use crate::{
    arrow::{capsules, stream_capsule},
    column::Column,
    device::{column_of, use_on, words},
    errors::of_class,
};

/// One batch. Host memory is aligned to 64 bytes. The memory is kept until the batch and everything created from it are
/// dropped.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Batch {
    metadata: BatchMetadata,
    rows: u64,
    bytes: u64,
    names: Vec<String>,
    held: Held,
}

/// The data of a batch, by the memory that contains it.
enum Held {
    Host(RecordBatch),
    Device(DeviceBatch),
}

impl Batch {
    /// Creates a batch in host memory. Validates strings, so it is called without the GIL.
    pub(crate) fn new(batch: &forebay_client::Batch) -> Result<Self, Error> {
        let arrow = batch.record_batch()?;
        let names = arrow.schema_ref().fields().iter().map(|field| field.name().clone()).collect();
        let (metadata, rows) = (batch.metadata.clone(), batch.rows());
        Ok(Self { metadata, rows, bytes: batch.body().len() as u64, names, held: Held::Host(arrow) })
    }

    pub(crate) fn on_device(batch: DeviceBatch) -> Self {
        let names = batch.names().map(str::to_owned).collect();
        let (metadata, rows, bytes) = (batch.metadata.clone(), batch.rows(), batch.len_bytes());
        Self { metadata, rows, bytes, names, held: Held::Device(batch) }
    }

    /// Returns the batch in host memory.
    ///
    /// # Errors
    /// `RequestError` for a batch in device memory.
    pub(crate) fn on_host(&self, py: Python<'_>) -> PyResult<&RecordBatch> {
        match &self.held {
            Held::Host(arrow) => Ok(arrow),
            Held::Device(batch) => {
                let place = batch.place();
                let error =
                    format!("the batch is on {place}; access its columns with to_torch, to_jax or DLPack");
                Err(of_class(py, "RequestError", error))
            }
        }
    }
}

#[pymethods]
impl Batch {
    /// Epoch of the batch.
    #[getter]
    fn epoch(&self) -> u64 {
        self.metadata.epoch
    }

    /// Step of the batch in its epoch.
    #[getter]
    fn step(&self) -> u64 {
        self.metadata.step
    }

    /// Rank that receives the batch.
    #[getter]
    fn rank(&self) -> u64 {
        self.metadata.rank
    }

    /// Position of the first row in the order of the epoch.
    #[getter]
    fn position(&self) -> u64 {
        self.metadata.position
    }

    /// Start offset of each group, followed by the end offset of the last one; `None` without groups.
    #[getter]
    fn group_offsets(&self) -> Option<Column> {
        let offsets = &self.metadata.group_offsets;
        let offsets = offsets.iter().map(|offset| *offset as i32);
        let offsets: ArrayRef = Arc::new(Int32Array::from_iter_values(offsets));
        (!offsets.is_empty()).then(|| Column::new("group_offsets", offsets, false))
    }

    /// Number of rows of each other dataset of a mixture before this batch.
    #[getter]
    fn mixed_positions(&self) -> Vec<u64> {
        self.metadata.mixed_positions.clone()
    }

    /// Size of the batch in bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.bytes
    }

    /// Names of the columns and tensors, in order.
    #[getter]
    fn names(&self) -> Vec<String> {
        self.names.clone()
    }

    /// Device that holds the batch, as DLPack device type and ID.
    #[getter]
    fn device(&self) -> (i32, i32) {
        match &self.held {
            Held::Host(_) => words(Place::Host),
            Held::Device(batch) => words(batch.place()),
        }
    }

    /// Makes a CUDA stream wait for the copy of the batch, and the reuse of the memory for the work of the stream. `stream` is
    /// a handle, or 1 for the legacy default stream. On the host, it is ignored.
    fn record_stream(&self, py: Python<'_>, stream: u64) -> PyResult<()> {
        let Held::Device(batch) = &self.held else { return Ok(()) };
        use_on(py, batch, i64::try_from(stream).unwrap_or(i64::MAX))
    }

    /// Number of rows.
    fn __len__(&self) -> usize {
        self.rows as usize
    }

    fn __contains__(&self, name: &str) -> bool {
        self.names.iter().any(|found| found == name)
    }

    fn __repr__(&self) -> String {
        let names = self.names.join(", ");
        format!(
            "<forebay.Batch epoch {} step {}: {} rows of {names}>",
            self.epoch(),
            self.step(),
            self.__len__()
        )
    }

    /// Returns a column or tensor as a view of the batch: a Column, or for a batch on a device a DeviceColumn, DeviceLists or, if it
    /// is not a column of numbers without nulls or of lists of them, a Column.
    fn column<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        let Some(index) = self.names.iter().position(|found| found == name) else {
            let error = format!("no column '{name}', expected one of {}", self.names.join(", "));
            return Err(PyKeyError::new_err(error));
        };
        match &self.held {
            Held::Host(arrow) => {
                let field = arrow.schema_ref().field(index);
                let values = values(field, arrow.column(index));
                let column = Column::new(name, values.clone(), field.is_nullable());
                Ok(column.into_pyobject(py)?.into_any())
            }
            Held::Device(batch) => column_of(py, batch, name),
        }
    }

    /// Exports the batch by the Arrow PyCapsule interface, without a copy.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        // The interface allows ignoring the requested schema; the consumer casts.
        drop(requested_schema);
        let arrow = self.on_host(py)?;
        let whole = StructArray::from(arrow.clone());
        let schema = FFI_ArrowSchema::try_from(arrow.schema().as_ref()).ok();
        capsules(py, &whole.into_data(), schema)
    }

    /// Exports the batch as a stream of one batch by the Arrow PyCapsule interface, without a copy.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        drop(requested_schema);
        let arrow = self.on_host(py)?;
        stream_capsule(py, RecordBatchIterator::new([Ok(arrow.clone())], arrow.schema()))
    }
}
