//! A batch in device memory.

use std::{ffi::c_void, fmt, sync::Arc};

use arrow_schema::FieldRef;
use forebay_proto::v1::BatchMetadata;

use super::{backend::Memory, place::Place};
use crate::{Batch, Error, Tensor, values};

/// A batch in device memory. Work on it must be ordered after its copy; see [`ready_on`](Self::ready_on). Cheap to clone.
#[derive(Clone)]
pub struct DeviceBatch {
    /// Position of the batch in its training.
    pub metadata: BatchMetadata,
    place: Place,
    rows: u64,
    bytes: u64,
    columns: Vec<(String, Result<Tensor, String>)>,
    memory: Arc<dyn Memory>,
}

impl DeviceBatch {
    /// Creates the batch whose body was copied from `batch` to `memory` of the device `place`.
    pub(crate) fn new(place: Place, batch: &Batch, memory: Arc<dyn Memory>) -> Result<Self, Error> {
        let (from, len) = (batch.body().as_ptr() as u64, batch.body().len() as u64);
        let arrow = batch.record_batch()?;
        let on_device = |field: &FieldRef, column| {
            let mut tensor = Tensor::of(field.name(), values(field, column))?;
            // Arrow copies misaligned buffers, so that their addresses are outside the body.
            let offset = tensor.address.wrapping_sub(from);
            let inside = offset.saturating_add(tensor.len_bytes() as u64) <= len;
            if !inside && tensor.len_bytes() > 0 {
                return Err("was received misaligned".to_owned());
            }
            tensor.address = memory.address().wrapping_add(offset);
            Ok(tensor)
        };
        let fields = arrow.schema_ref().fields().iter().zip(arrow.columns());
        let columns = fields.map(|(field, column)| (field.name().clone(), on_device(field, column)));
        let columns = columns.collect();
        Ok(Self { metadata: batch.metadata.clone(), place, rows: batch.rows(), bytes: len, columns, memory })
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns the length of the body in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the device that holds the batch.
    pub fn place(&self) -> Place {
        self.place
    }

    /// Iterates over the names of all columns and tensors in schema order, including those without a [`Tensor`].
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.columns.iter().map(|(name, _)| name.as_str())
    }

    /// Returns a column or tensor in device memory. The memory is valid while this batch or a clone of it exists.
    ///
    /// # Errors
    /// [`Error::Request`] if the batch has no column of this name, or the column is not an array of plain values.
    pub fn tensor(&self, name: &str) -> Result<&Tensor, Error> {
        let found = self.columns.iter().find(|(found, _)| found == name);
        let (_, tensor) = found.ok_or_else(|| Error::no_column(name, self.names()))?;
        tensor.as_ref().map_err(|reason| {
            Error::Request(format!("column '{name}' {reason}; it is not available on the device"))
        })
    }

    /// Makes `stream` wait for the copy of the batch, without blocking the host. The memory is not overwritten before the work
    /// that `stream` receives until the drop of the batch has completed. On the host, `stream` is ignored.
    ///
    /// # Errors
    /// [`Error::Device`] with the driver's message.
    ///
    /// # Safety
    /// `stream` must be a stream of the batch's device: a handle in the primary context, or 1 for the legacy default stream. The
    /// per-thread default stream (2) is not allowed. The stream must live until the batch and its clones are dropped.
    pub unsafe fn ready_on(&self, stream: *mut c_void) -> Result<(), Error> {
        // SAFETY: the caller guarantees the same contract.
        unsafe { self.memory.ready_on(stream) }
    }

    /// Waits on the host for the copy of the batch, for a consumer whose streams are unknown. The memory is not reused. Freeing
    /// it waits for all work of the device.
    ///
    /// # Errors
    /// [`Error::Device`] with the driver's message.
    pub fn ready_unordered(&self) -> Result<(), Error> {
        self.memory.ready_unordered()
    }

    /// Copies the values of a column or tensor to the host.
    ///
    /// # Errors
    /// The errors of [`tensor`](Self::tensor); [`Error::Device`] with the driver's message.
    pub fn read(&self, name: &str) -> Result<Vec<u8>, Error> {
        let tensor = self.tensor(name)?;
        self.memory.read(tensor.address, tensor.len_bytes())
    }
}

impl fmt::Debug for DeviceBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.names().collect();
        f.debug_struct("DeviceBatch")
            .field("metadata", &self.metadata)
            .field("place", &self.place)
            .field("columns", &names)
            .finish_non_exhaustive()
    }
}
