//! The batches of a Python iterator as an Arrow stream.

use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::{ArrowError, SchemaRef};
use pyo3::{prelude::*, types::PyIterator};

use crate::batch::Batch;

/// Reads the batches of an iterator over [`Batch`]. Consumers read on any thread, with or without the GIL.
pub(crate) struct EpochReader {
    schema: SchemaRef,
    /// `None` after the end and after an error.
    batches: Option<Py<PyAny>>,
}

impl EpochReader {
    pub(crate) fn new(schema: SchemaRef, batches: Py<PyAny>) -> Self {
        Self { schema, batches: Some(batches) }
    }

    fn read(&self, batches: &Bound<'_, PyAny>) -> PyResult<Option<Result<RecordBatch, ArrowError>>> {
        let Some(item) = batches.cast::<PyIterator>()?.clone().next() else { return Ok(None) };
        let item = item?;
        let batch = item.cast::<Batch>()?;
        let columns = batch.get().on_host(item.py())?.columns().to_vec();
        Ok(Some(RecordBatch::try_new(self.schema.clone(), columns)))
    }
}

impl Iterator for EpochReader {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let batches = self.batches.take()?;
        Python::attach(|py| {
            let read = self.read(batches.bind(py)).transpose()?;
            match read {
                Ok(Ok(batch)) => {
                    self.batches = Some(batches);
                    Some(Ok(batch))
                }
                Ok(Err(error)) => Some(Err(error)),
                Err(error) => Some(Err(ArrowError::ExternalError(Box::new(error)))),
            }
        })
    }
}

impl RecordBatchReader for EpochReader {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
}

impl Drop for EpochReader {
    fn drop(&mut self) {
        // Dropping the iterator ends its stream, which needs the GIL. An interpreter that exits has released it.
        if let Some(batches) = self.batches.take() {
            Python::try_attach(|_| drop(batches));
        }
    }
}
