//! Batches in the memory of the device that computes with them.
//!
//! ```text
//! lanes --Batch--> Uploads (a task) --DeviceBatch--> Training --next--> the consumer's stream waits for the copy
//!       (pinned       |                                                     |
//!        slabs)       one copy on a separate stream,               drop: the buffer is reused after the
//!                     during work on the previous batch            consumer's streams have completed
//! ```
//!
//! One batch is copied ahead. The copy and the batch in use alternate between two buffers. Each further batch that the consumer
//! keeps occupies another buffer. No host thread waits for a copy: streams of the device wait for each other's events.

#![allow(unsafe_code)] // Device streams are raw pointers, and all driver functions are unsafe.

use std::{fmt, sync::Arc};

use crate::{
    Error,
    memory::{Pin, PinMemory},
};

mod backend;
mod batch;
#[cfg(feature = "cuda")]
mod cuda;
mod host;
mod place;

use backend::Backend;
pub(crate) use backend::Copier;
pub use batch::DeviceBatch;
pub use place::Place;

/// A device that receives batches. Cheap to clone.
#[derive(Clone)]
pub struct Device {
    backend: Arc<dyn Backend>,
}

impl Device {
    /// Returns the host: batches stay in the memory that they were received into.
    pub fn host() -> Self {
        Self { backend: Arc::new(host::Host) }
    }

    /// Opens the CUDA device with this number, counted from 0. Retains the primary context of the device, which is shared with
    /// other libraries of the process.
    ///
    /// # Errors
    /// [`Error::Device`] if the driver or the device does not exist, or the crate was built without the feature `cuda`.
    pub fn cuda(number: u32) -> Result<Self, Error> {
        #[cfg(feature = "cuda")]
        return Ok(Self { backend: Arc::new(cuda::Cuda::open(number)?) });
        #[cfg(not(feature = "cuda"))]
        return Err(Error::Device(format!("no CUDA device {number}: built without the feature 'cuda'")));
    }

    /// Returns the kind and number of the device.
    pub fn place(&self) -> Place {
        self.backend.place()
    }

    pub(crate) fn copier(&self) -> Result<Box<dyn Copier>, Error> {
        self.backend.copier()
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
