//! The interface of a device driver.

use std::{ffi::c_void, sync::Arc};

use bytes::Bytes;

use super::place::Place;
use crate::{Error, memory::PinMemory};

/// A device.
pub(crate) trait Backend: PinMemory {
    /// Returns the kind and number of the device.
    fn place(&self) -> Place;

    /// Creates a copier for one training, which copies `prefetch` batches ahead of the consumer.
    fn copier(&self, prefetch: usize) -> Result<Box<dyn Copier>, Error>;
}

/// Copies batches to a device, in order.
pub(crate) trait Copier: Send {
    /// Starts to copy `body`. Blocks while too many copies are in flight, which bounds the host memory that they occupy.
    fn copy(&mut self, body: &Bytes) -> Result<Arc<dyn Memory>, Error>;
}

/// Device memory of one batch. After the drop, it is reused once the consumer's streams have completed their work on it.
pub(crate) trait Memory: Send + Sync {
    /// Returns the address of the first byte of the body.
    fn address(&self) -> u64;

    /// Makes `stream` wait for the copy. Reuse of the memory waits for the work that `stream` receives until the drop.
    ///
    /// # Safety
    /// `stream` must be a live stream of the device until this memory is dropped.
    unsafe fn ready_on(&self, stream: *mut c_void) -> Result<(), Error>;

    /// Waits for the copy on the host. The memory is not reused, because the consumer's streams are unknown.
    fn ready_unordered(&self) -> Result<(), Error>;

    /// Waits for the copy and returns `len` bytes from `address`.
    fn read(&self, address: u64, len: usize) -> Result<Vec<u8>, Error>;
}
