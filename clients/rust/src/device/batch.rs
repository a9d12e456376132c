//! A batch in device memory.

use std::{ffi::c_void, fmt, sync::Arc};

use arrow_array::ArrayRef;
use arrow_schema::DataType;
use forebay_proto::v1::BatchMetadata;

use super::{
    backend::Memory,
    column::{Column, Copied, OnDevice},
    place::Place,
};
use crate::{Batch, Error, Tensor};

/// A batch in device memory. Work on it must be ordered after its copy; see [`ready_on`](Self::ready_on). Cheap to clone.
///
/// Columns that are not numbers or lists of numbers, or that have nulls, are also in host memory; see [`on_host`](Self::on_host). A
/// batch with such a column keeps the host memory that it was received into.
#[derive(Clone)]
pub struct DeviceBatch {
    /// Position of the batch in its training.
    pub metadata: BatchMetadata,
    place: Place,
    rows: u64,
    bytes: u64,
    columns: Arc<[Column]>,
    memory: Arc<dyn Memory>,
}

impl DeviceBatch {
    /// Creates the batch whose body was copied from `batch` to `memory` of the device `place`.
    pub(crate) fn new(place: Place, batch: &Batch, memory: Arc<dyn Memory>) -> Result<Self, Error> {
        let (from, len) = (batch.body().as_ptr() as u64, batch.body().len() as u64);
        let copied = Copied { host: from..from + len, device: memory.address() };
        let arrow = batch.record_batch()?;
        let fields = arrow.schema_ref().fields().iter().zip(arrow.columns());
        let columns = fields.map(|(field, column)| Column::new(field, column, &copied)).collect();
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

    /// Iterates over the names of all columns and tensors in schema order, including those that are only in host memory.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.columns.iter().map(|column| column.name.as_str())
    }

    /// Returns a column or tensor in device memory. The memory is valid while this batch or a clone of it exists.
    ///
    /// # Errors
    /// [`Error::Request`] if the batch has no column of this name, or the column is not an array of plain values.
    pub fn tensor(&self, name: &str) -> Result<&Tensor, Error> {
        match &self.column(name)?.on_device {
            Ok(OnDevice::Values(tensor)) => Ok(tensor),
            Ok(OnDevice::Lists { .. }) => {
                Err(not_on_device(name, "has lists, which are no array of plain values"))
            }
            Err(reason) => Err(not_on_device(name, reason)),
        }
    }

    /// Returns the items and the offsets of a column of lists in device memory. Row i has the items from `offsets[i]` to before
    /// `offsets[i + 1]`. The memory is valid while this batch or a clone of it exists.
    ///
    /// # Errors
    /// [`Error::Request`] if the batch has no column of this name, or the column has no lists of plain values, or nulls.
    pub fn lists(&self, name: &str) -> Result<(&Tensor, &Tensor), Error> {
        match &self.column(name)?.on_device {
            Ok(OnDevice::Lists { items, offsets }) => Ok((items, offsets)),
            Ok(OnDevice::Values(_)) => Err(not_on_device(name, "has one value per row, expected lists")),
            Err(reason) => Err(not_on_device(name, reason)),
        }
    }

    /// Returns a column or tensor in host memory: the values as of [`Batch::column`]. `None` for numbers and lists of numbers without
    /// nulls, which are only on the device.
    ///
    /// # Errors
    /// [`Error::Request`] if the batch has no column of this name.
    pub fn on_host(&self, name: &str) -> Result<Option<&ArrayRef>, Error> {
        Ok(self.column(name)?.on_host.as_ref())
    }

    /// Returns the type of a column or tensor: of the values as of [`Batch::column`].
    ///
    /// # Errors
    /// [`Error::Request`] if the batch has no column of this name.
    pub fn data_type(&self, name: &str) -> Result<&DataType, Error> {
        Ok(&self.column(name)?.data_type)
    }

    /// Returns true if the column of any batch of the training may have nulls.
    ///
    /// # Errors
    /// [`Error::Request`] if the batch has no column of this name.
    pub fn is_nullable(&self, name: &str) -> Result<bool, Error> {
        Ok(self.column(name)?.is_nullable)
    }

    fn column(&self, name: &str) -> Result<&Column, Error> {
        let found = self.columns.iter().find(|column| column.name == name);
        found.ok_or_else(|| Error::no_column(name, self.names()))
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
        self.read_tensor(self.tensor(name)?)
    }

    /// Copies the values of a column, or the items or offsets of lists, to the host. `tensor` must be of this batch.
    ///
    /// # Errors
    /// [`Error::Device`] with the driver's message.
    ///
    /// # Panics
    /// If `tensor` is not within the memory of this batch.
    pub fn read_tensor(&self, tensor: &Tensor) -> Result<Vec<u8>, Error> {
        let (begin, len) = (self.memory.address(), tensor.len_bytes());
        let offset = tensor.address.wrapping_sub(begin);
        let is_inside = offset.saturating_add(len as u64) <= self.bytes;
        assert!(len == 0 || is_inside, "tensor '{}' is not of this batch", tensor.name);
        self.memory.read(tensor.address, len)
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

fn not_on_device(name: &str, reason: &str) -> Error {
    Error::Request(format!("column '{name}' {reason}; it is not available on the device"))
}
