//! The host as a device. Batches are not copied.

use std::{ffi::c_void, sync::Arc};

use bytes::Bytes;

use super::{
    backend::{Backend, Copier, Memory},
    place::Place,
};
use crate::{Error, memory::PinMemory};

/// The host.
pub(super) struct Host;

struct Body(Bytes);

impl PinMemory for Host {}

impl Backend for Host {
    fn place(&self) -> Place {
        Place::Host
    }

    fn copier(&self, _prefetch: usize) -> Result<Box<dyn Copier>, Error> {
        Ok(Box::new(Self))
    }
}

impl Copier for Host {
    fn copy(&mut self, body: &Bytes) -> Result<Arc<dyn Memory>, Error> {
        Ok(Arc::new(Body(body.clone())))
    }
}

impl Memory for Body {
    fn address(&self) -> u64 {
        self.0.as_ptr() as u64
    }

    unsafe fn ready_on(&self, _: *mut c_void) -> Result<(), Error> {
        Ok(())
    }

    fn ready_unordered(&self) -> Result<(), Error> {
        Ok(())
    }

    fn read(&self, address: u64, len: usize) -> Result<Vec<u8>, Error> {
        let from = address.wrapping_sub(self.address()) as usize;
        Ok(self.0[from..from + len].to_vec())
    }
}
