//! The primary context of a device.

use cudarc::driver::{DriverError, result, sys};

use crate::Error;

/// The primary context of a device, which all libraries of a process share.
pub(super) struct Context {
    pub(super) number: u32,
    pub(super) device: sys::CUdevice,
    pub(super) context: sys::CUcontext,
}

// SAFETY: every thread may use a context after making it current.
unsafe impl Send for Context {}
// SAFETY: the driver synchronizes concurrent calls.
unsafe impl Sync for Context {}

impl Context {
    /// Makes the context current on this thread until the returned guard is dropped. The thread may belong to a framework that
    /// uses another context. Until then, calls of this thread do not end the capture of a graph on another one.
    pub(super) fn enter(&self) -> Result<Entered, Error> {
        // SAFETY: the context is retained while `self` exists.
        self.check("cuCtxPushCurrent", unsafe { sys::cuCtxPushCurrent_v2(self.context) }.result())?;
        let mut entered = Entered { capture_mode: sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED };
        entered.exchange_capture_mode();
        Ok(entered)
    }

    /// Returns true if `stream` captures a graph.
    ///
    /// # Safety
    /// `stream` must be a live stream of the context, which must be current.
    pub(super) unsafe fn is_capturing(&self, stream: sys::CUstream) -> Result<bool, Error> {
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: guaranteed by the caller.
        let done = unsafe { sys::cuStreamIsCapturing(stream, &raw mut status) };
        self.check("cuStreamIsCapturing", done.result())?;
        Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    pub(super) fn check<T>(&self, call: &str, result: Result<T, DriverError>) -> Result<T, Error> {
        result.map_err(|error| Error::Device(format!("cuda:{}: {call}: {}", self.number, message(error))))
    }
}

/// Keeps a context current, and the effect of calls on captures local, until it is dropped.
pub(super) struct Entered {
    /// The mode of this thread before.
    capture_mode: sys::CUstreamCaptureMode,
}

impl Entered {
    /// Exchanges the mode of this thread and `capture_mode`.
    fn exchange_capture_mode(&mut self) {
        // SAFETY: the driver reads and writes the mode at the address. It only fails for invalid modes.
        let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut self.capture_mode) };
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.exchange_capture_mode();
        let mut left = std::ptr::null_mut();
        // SAFETY: `Context::enter` pushed a context, and pushes and pops are balanced.
        let _ = unsafe { sys::cuCtxPopCurrent_v2(&raw mut left) };
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the context was retained once. Everything created in it holds a reference to `self`.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

pub(super) fn message(error: DriverError) -> String {
    let text = error.error_string().map(|text| text.to_string_lossy().into_owned());
    text.unwrap_or_else(|_| format!("{:?}", error.0))
}
