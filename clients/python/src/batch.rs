//! One batch.

use arrow_array::{Array, RecordBatch, StructArray};
use arrow_schema::ffi::FFI_ArrowSchema;
use pyo3::{exceptions::PyKeyError, prelude::*, types::PyTuple};

use crate::{arrow::capsules, column::Column, errors::raised};

/// One batch in memory that begins at a multiple of 64 bytes; it is kept until neither the batch nor anything made
/// from it is held.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Batch {
    batch: forebay_client::Batch,
    arrow: RecordBatch,
}

impl Batch {
    pub(crate) fn new(py: Python<'_>, batch: forebay_client::Batch) -> PyResult<Self> {
        let arrow = batch.record_batch().map_err(|error| raised(py, &error))?;
        Ok(Self { batch, arrow })
    }
}

#[pymethods]
impl Batch {
    /// The epoch it belongs to.
    #[getter]
    fn epoch(&self) -> u64 {
        self.batch.metadata.epoch
    }

    /// Its step in the epoch.
    #[getter]
    fn step(&self) -> u64 {
        self.batch.metadata.step
    }

    /// The rank it is for.
    #[getter]
    fn rank(&self) -> u64 {
        self.batch.metadata.rank
    }

    /// The position of its first row in the order of the epoch.
    #[getter]
    fn position(&self) -> u64 {
        self.batch.metadata.position
    }

    /// Bytes of its memory.
    #[getter]
    fn nbytes(&self) -> usize {
        self.batch.body().len()
    }

    /// Names of its columns and tensors, in order.
    #[getter]
    fn names(&self) -> Vec<String> {
        self.arrow.schema_ref().fields().iter().map(|field| field.name().clone()).collect()
    }

    /// Rows.
    fn __len__(&self) -> usize {
        self.arrow.num_rows()
    }

    fn __contains__(&self, name: &str) -> bool {
        self.arrow.schema_ref().index_of(name).is_ok()
    }

    fn __repr__(&self) -> String {
        let names = self.names().join(", ");
        format!(
            "<forebay.Batch epoch {} step {}: {} rows of {names}>",
            self.epoch(),
            self.step(),
            self.__len__()
        )
    }

    /// A column or tensor, as a view of the batch.
    fn column(&self, name: &str) -> PyResult<Column> {
        let Ok(index) = self.arrow.schema_ref().index_of(name) else {
            return Err(PyKeyError::new_err(format!(
                "no column '{name}'; there are {}",
                self.names().join(", ")
            )));
        };
        Ok(Column::new(name, self.arrow.column(index).clone()))
    }

    /// The batch by Arrow's PyCapsule interface, without a copy.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        // A request that can't be met may be ignored: consumers cast.
        drop(requested_schema);
        let whole = StructArray::from(self.arrow.clone());
        let schema = FFI_ArrowSchema::try_from(self.arrow.schema().as_ref()).ok();
        capsules(py, &whole.into_data(), schema)
    }
}
