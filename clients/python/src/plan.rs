//! The plan of a job.

use forebay_client::{Client, Device, proto::v1::Command};
use pyo3::{prelude::*, types::PyCapsule};

use crate::{
    arrow::stream_capsule,
    epoch_reader::EpochReader,
    json::json,
    stream::{Receiving, Stream},
};

/// The plan of a job, and the client that starts it.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Plan {
    client: Client,
    plan: forebay_client::Plan,
}

impl Plan {
    pub(crate) fn new(client: Client, plan: forebay_client::Plan) -> Self {
        Self { client, plan }
    }
}

#[pymethods]
impl Plan {
    /// Request with all defaults resolved, as JSON.
    #[getter]
    fn resolved(&self) -> String {
        json(&Command::from(self.plan.resolved.clone()))
    }

    /// `PlanSummary` of the server, as JSON.
    #[getter]
    fn summary(&self) -> String {
        json(&self.plan.summary)
    }

    /// Names and types of the columns, in order.
    #[getter]
    fn columns(&self) -> Vec<(String, String)> {
        let fields = self.plan.schema.fields().iter();
        fields.map(|field| (field.name().clone(), field.data_type().to_string())).collect()
    }

    /// Number of batches of the rank.
    #[getter]
    fn batches(&self) -> u64 {
        self.plan.batches()
    }

    /// Starts to receive the batches of the rank, into the memory of the CUDA device number `cuda` if it is given, `prefetch` batches
    /// ahead. With `pin_memory`, into host memory that is page-locked for this device instead.
    #[pyo3(signature = (cuda=None, prefetch=1, pin_memory=false))]
    fn stream(
        &self,
        py: Python<'_>,
        cuda: Option<u32>,
        prefetch: usize,
        pin_memory: bool,
    ) -> PyResult<Stream> {
        let plan = self.plan.clone();
        let start = || match cuda {
            None => self.client.start(plan).map(Receiving::OnHost),
            Some(number) if pin_memory => {
                self.client.start_pinned(plan, &Device::cuda(number)?).map(Receiving::OnHost)
            }
            Some(number) => {
                let device = Device::cuda(number)?.with_prefetch(prefetch)?;
                self.client.start_on(plan, &device).map(Receiving::OnDevice)
            }
        };
        Stream::open(py, start, self.plan.streams())
    }

    /// Exports the batches of an iterator over batches of this plan as a stream by the Arrow PyCapsule interface. The iterator is
    /// first used when the consumer reads.
    fn arrow_stream<'py>(&self, batches: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyCapsule>> {
        stream_capsule(batches.py(), EpochReader::new(self.plan.schema.clone(), batches.unbind()))
    }
}
