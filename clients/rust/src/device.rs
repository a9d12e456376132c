//! Batches in the memory of the device that computes with them.
//!
//! ```text
//! lanes --Batch--> Uploads (a task) --DeviceBatch--> Training --next--> the consumer's stream waits for the copy
//!       (pinned       |                                                     |
//!        slabs)       one copy, on a stream of its own,           dropping it: the buffer is written again
//!                     while the batch before it is computed       once the consumer's streams are through with it
//! ```
//!
//! One batch is copied ahead; together with the one in use that makes two buffers in turn, and one more for each batch
//! that the consumer keeps. The host's thread waits for no copy: it is the streams of the device that wait for each
//! other's events.

#![allow(unsafe_code)] // A stream of a device is a pointer, and all that its driver does is unsafe.

use std::{any::Any, ffi::c_void, fmt, sync::Arc};

use arrow_schema::FieldRef;
use forebay_proto::v1::BatchMetadata;

use crate::{Batch, Error, Tensor, values};

#[cfg(feature = "cuda")]
mod cuda;
mod host;
mod uploads;

pub(crate) use uploads::Uploads;

/// Where batches are wanted. Cheap to clone.
#[derive(Clone)]
pub struct Device {
    backend: Arc<dyn Backend>,
}

/// What a device has to do.
trait Backend: Send + Sync {
    fn place(&self) -> Place;

    /// Makes the copies of one training.
    fn copier(&self) -> Result<Box<dyn Copier>, Error>;

    /// Pins host memory, so that copies from there need no detour, until what is returned is dropped; `None` where that
    /// makes no difference, or can't be done.
    fn pin(&self, memory: &mut [u8]) -> Option<Pin>;
}

/// Memory that is pinned as long as this is there.
pub(crate) type Pin = Box<dyn Any + Send + Sync>;

/// Copies batches to a device, in order.
trait Copier: Send {
    /// Begins to copy. Waits while too many copies are on their way, so that no more host memory is held than by them.
    fn copy(&mut self, batch: &Batch) -> Result<Arc<dyn Memory>, Error>;
}

/// A batch's memory on a device. It is used for another batch once it is dropped, and the consumer's streams are through
/// with it.
trait Memory: Send + Sync {
    /// Where the first byte of the body lies.
    fn address(&self) -> u64;

    /// Makes `stream` wait for the copy, and the next copy to this memory for what `stream` is given until the drop.
    ///
    /// # Safety
    /// `stream` is a live stream of the device until this memory is dropped.
    unsafe fn ready_on(&self, stream: *mut c_void) -> Result<(), Error>;

    /// Nothing is known of the consumer's streams: this memory is not used again.
    fn ready_unordered(&self) -> Result<(), Error>;

    /// Bytes from `address` on, once the copy has ended.
    fn read(&self, address: u64, len: usize) -> Result<Vec<u8>, Error>;
}

/// A device, by kind and number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The memory of the host.
    Host,
    /// The memory of the CUDA device of this number.
    Cuda(u32),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("cpu"),
            Self::Cuda(number) => write!(f, "cuda:{number}"),
        }
    }
}

impl Device {
    /// The host: batches stay where they were received.
    pub fn host() -> Self {
        Self { backend: Arc::new(host::Host) }
    }

    /// The CUDA device of this number. It keeps the device's primary context, which frameworks use, too.
    ///
    /// # Errors
    /// [`Error::Device`] when there is no driver or no such device, or this was built without the feature `cuda`.
    pub fn cuda(number: u32) -> Result<Self, Error> {
        #[cfg(feature = "cuda")]
        return Ok(Self { backend: Arc::new(cuda::Cuda::open(number)?) });
        #[cfg(not(feature = "cuda"))]
        return Err(Error::Device(format!("no CUDA device {number}: built without the feature 'cuda'")));
    }

    /// Which one it is.
    pub fn place(&self) -> Place {
        self.backend.place()
    }

    pub(crate) fn pin(&self, memory: &mut [u8]) -> Option<Pin> {
        self.backend.pin(memory)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.place()).finish()
    }
}

/// A batch in the memory of a device. What computes with it has to be ordered behind its copy:
/// see [`ready_on`](Self::ready_on).
#[derive(Clone)]
pub struct DeviceBatch {
    /// Which batch it is.
    pub metadata: BatchMetadata,
    place: Place,
    rows: u64,
    bytes: u64,
    columns: Vec<(String, Result<Tensor, String>)>,
    memory: Arc<dyn Memory>,
}

impl DeviceBatch {
    fn new(place: Place, batch: &Batch, memory: Arc<dyn Memory>) -> Result<Self, Error> {
        let (from, len) = (batch.body().as_ptr() as u64, batch.body().len() as u64);
        let arrow = batch.record_batch()?;
        let on_device = |field: &FieldRef, column| {
            let mut tensor = Tensor::of(field.name(), values(field, column))?;
            // What did not lie aligned in the body was copied elsewhere by Arrow.
            let offset = tensor.address.wrapping_sub(from);
            let inside = offset.saturating_add(tensor.len_bytes() as u64) <= len;
            if !inside && tensor.len_bytes() > 0 {
                return Err("did not arrive aligned".to_owned());
            }
            tensor.address = memory.address().wrapping_add(offset);
            Ok(tensor)
        };
        let fields = arrow.schema_ref().fields().iter().zip(arrow.columns());
        let columns = fields.map(|(field, column)| (field.name().clone(), on_device(field, column)));
        let columns = columns.collect();
        Ok(Self { metadata: batch.metadata.clone(), place, rows: batch.rows(), bytes: len, columns, memory })
    }

    /// Rows of the batch.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Bytes of its body.
    pub fn len_bytes(&self) -> u64 {
        self.bytes
    }

    /// Where it lies.
    pub fn place(&self) -> Place {
        self.place
    }

    /// Names of all its columns and tensors, in order, also of those that are no plain arrays.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.columns.iter().map(|(name, _)| name.as_str())
    }

    /// A column or tensor on the device. Its memory lives as long as this batch or a clone of it.
    ///
    /// # Errors
    /// [`Error::Request`] when there is none of this name, or it is no array of plain values.
    pub fn tensor(&self, name: &str) -> Result<&Tensor, Error> {
        let found = self.columns.iter().find(|(found, _)| found == name);
        let (_, tensor) = found.ok_or_else(|| {
            let names: Vec<_> = self.names().collect();
            Error::Request(format!("no column '{name}'; there are {}", names.join(", ")))
        })?;
        tensor
            .as_ref()
            .map_err(|why| Error::Request(format!("column '{name}' {why}; it is not on the device")))
    }

    /// Makes `stream` wait for the batch, without waiting itself. All that is given to `stream` until the batch is
    /// dropped is done before its memory is written again.
    ///
    /// # Errors
    /// [`Error::Device`] with the driver's words.
    ///
    /// # Safety
    /// `stream` is a stream of the batch's device (of its primary context, or 1 for the legacy default stream; not 2, which is
    /// another one for each thread), and lives until the batch and its clones are dropped. On the host it is not looked at.
    pub unsafe fn ready_on(&self, stream: *mut c_void) -> Result<(), Error> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.memory.ready_on(stream) }
    }

    /// For a consumer that says nothing of its streams: the host waits for the batch here, and its memory is freed in the
    /// end, which waits for all that the device does, and not used again.
    ///
    /// # Errors
    /// [`Error::Device`] with the driver's words.
    pub fn ready_unordered(&self) -> Result<(), Error> {
        self.memory.ready_unordered()
    }

    /// The values of a column or tensor, copied back to the host.
    ///
    /// # Errors
    /// As [`tensor`](Self::tensor); [`Error::Device`] with the driver's words.
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
