//! Batches in the memory of the device that computes with them.
//!
//! ```text
//! lanes --Batch--> Uploads (a task) --DeviceBatch--> Training --next--> the consumer's stream waits for the copy
//!       (pinned       |                                                     |
//!        slabs)       one copy on a separate stream,               drop: the buffer is reused after the
//!                     during work on the previous batch            consumer's streams have completed
//! ```
//!
//! One batch is copied ahead, or n with [`Device::with_prefetch`]. This takes n + 1 buffers of device memory: n for the copies, and one
//! for the batch in use. Each further batch that the consumer keeps needs another buffer. No host thread waits for a copy: streams of
//! the device wait for each other's events.

#![allow(unsafe_code)] // Device streams are raw pointers, and all driver functions are unsafe.

use std::{fmt, sync::Arc};

use crate::{
    Error,
    memory::{Pin, PinMemory},
};

mod backend;
mod batch;
mod column;
#[cfg(feature = "cuda")]
mod cuda;
mod host;
mod place;

use backend::Backend;
pub(crate) use backend::Copier;
pub use batch::DeviceBatch;
pub use place::Place;

/// Maximum number of batches that are copied ahead.
const MAX_PREFETCH: usize = 64;

/// A device that receives batches. Cheap to clone.
#[derive(Clone)]
pub struct Device {
    backend: Arc<dyn Backend>,
    prefetch: usize,
}

impl Device {
    /// Returns the host: batches stay in the memory that they were received into.
    pub fn host() -> Self {
        Self::new(Arc::new(host::Host))
    }

    /// Opens the CUDA device with this number, counted from 0. Retains the primary context of the device, which is shared with
    /// other libraries of the process.
    ///
    /// # Errors
    /// [`Error::Device`] if the driver or the device does not exist, or the crate was built without the feature `cuda`.
    pub fn cuda(number: u32) -> Result<Self, Error> {
        #[cfg(feature = "cuda")]
        return Ok(Self::new(Arc::new(cuda::Cuda::open(number)?)));
        #[cfg(not(feature = "cuda"))]
        return Err(Error::Device(format!("no CUDA device {number}: built without the feature 'cuda'")));
    }

    fn new(backend: Arc<dyn Backend>) -> Self {
        Self { backend, prefetch: 1 }
    }

    /// Sets the number of batches that are copied ahead of the consumer, 1 to 64. The default is 1. The training needs
    /// device memory for these batches, for the one in use, and for each further one that the consumer keeps.
    ///
    /// # Errors
    /// [`Error::Request`] for another number.
    pub fn with_prefetch(self, batches: usize) -> Result<Self, Error> {
        if !(1..=MAX_PREFETCH).contains(&batches) {
            return Err(Error::Request(format!(
                "the number of batches that are copied ahead is {batches}, expected 1 to {MAX_PREFETCH}"
            )));
        }
        Ok(Self { prefetch: batches, ..self })
    }

    /// Returns the number of batches that are copied ahead.
    pub(crate) fn prefetch(&self) -> usize {
        self.prefetch
    }

    /// Returns the kind and number of the device.
    pub fn place(&self) -> Place {
        self.backend.place()
    }

    pub(crate) fn copier(&self) -> Result<Box<dyn Copier>, Error> {
        self.backend.copier(self.prefetch)
    }
}

impl PinMemory for Device {
    fn pin(&self, memory: &mut [u8]) -> Option<Pin> {
        self.backend.pin(memory)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.place()).finish()
    }
}
