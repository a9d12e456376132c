//! Device memory, and the work that uses it.

use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::context::Context;
use crate::Error;

/// A point in the work of a stream.
pub(super) struct Event {
    event: sys::CUevent,
    context: Arc<Context>,
}

// SAFETY: as for `Context`.
unsafe impl Send for Event {}
// SAFETY: as for `Context`.
unsafe impl Sync for Event {}

impl Event {
    /// Records the work that `stream` has received so far.
    ///
    /// # Safety
    /// `stream` must be a live stream of the context, which must be current.
    pub(super) unsafe fn record(context: &Arc<Context>, stream: sys::CUstream) -> Result<Self, Error> {
        // A waiting thread sleeps instead of polling.
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32
            | sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC as u32;
        let mut event = std::ptr::null_mut();
        // SAFETY: the driver writes an event to the address.
        context.check("cuEventCreate", unsafe { sys::cuEventCreate(&raw mut event, flags) }.result())?;
        let event = Self { event, context: Arc::clone(context) };
        // SAFETY: guaranteed by the caller.
        context.check("cuEventRecord", unsafe { result::event::record(event.event, stream) })?;
        Ok(event)
    }

    /// Makes `stream` wait for the event.
    ///
    /// # Safety
    /// The contract of [`record`](Self::record).
    pub(super) unsafe fn before(&self, stream: sys::CUstream) -> Result<(), Error> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: guaranteed by the caller.
        let done = unsafe { result::stream::wait_event(stream, self.event, flags) };
        self.context.check("cuStreamWaitEvent", done)
    }

    /// Blocks until the event has occurred.
    pub(super) fn wait(&self) -> Result<(), Error> {
        // SAFETY: the event is destroyed only in the drop.
        self.context.check("cuEventSynchronize", unsafe { result::event::synchronize(self.event) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: the event is not used after the drop. The driver keeps it while streams wait for it.
            let _ = unsafe { result::event::destroy(self.event) };
        }
    }
}

/// Device memory.
pub(super) struct Buffer {
    pub(super) address: sys::CUdeviceptr,
    pub(super) len: usize,
    /// Events that precede the next write or the release.
    pub(super) until: Vec<Arc<Event>>,
    pub(super) context: Arc<Context>,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            for event in &self.until {
                // After an error the device is unusable, so that no work on the buffer remains.
                drop(event.wait());
            }
            // SAFETY: the buffer was allocated by the driver, and all work on it has completed.
            let _ = unsafe { result::free_sync(self.address) };
        }
    }
}
