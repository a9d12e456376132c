//! Freeing of device memory on a thread of its own.
//!
//! The driver waits for the work on a buffer before it frees it. The threads that drop batches do not: in Python they hold the
//! interpreter's lock.

use std::{
    sync::mpsc::{self, Receiver, Sender},
    thread,
    time::Duration,
};

use cudarc::driver::{DriverError, result, sys};

use super::memory::Buffer;
use crate::Error;

/// Pause between two looks at a stream that captures a graph.
const CAPTURE_PAUSE: Duration = Duration::from_millis(10);

const DURING_CAPTURE: DriverError = DriverError(sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);

/// A buffer that is freed once no work uses it.
pub(super) struct Retired {
    pub(super) buffer: Buffer,
    /// True if the events of the buffer do not include all work on it.
    pub(super) is_in_use: bool,
    /// Streams that captured a graph when the batch was dropped. The work of the device can be awaited only afterwards.
    pub(super) capturing: Vec<usize>,
}

/// Starts the thread. It ends when the sender and its clones are dropped.
///
/// # Errors
/// [`Error::Device`] if the system has no thread left.
pub(super) fn start() -> Result<Sender<Retired>, Error> {
    let (sender, receiver) = mpsc::channel();
    let thread = thread::Builder::new().name("forebay-cuda".into()).spawn(move || free_all(&receiver));
    thread.map_err(|error| {
        Error::Device(format!("starting a thread that frees device memory failed: {error}"))
    })?;
    Ok(sender)
}

fn free_all(retired: &Receiver<Retired>) {
    for Retired { buffer, is_in_use, capturing } in retired {
        if let Ok(_entered) = buffer.context.enter()
            && is_in_use
        {
            for stream in capturing {
                // SAFETY: a stream lives at least as long as its capture.
                while let Ok(true) = unsafe { buffer.context.is_capturing(stream as sys::CUstream) } {
                    thread::sleep(CAPTURE_PAUSE);
                }
            }
            // Another stream may capture a graph. After other errors the device is unusable, so that no work on the buffer remains.
            while result::ctx::synchronize() == Err(DURING_CAPTURE) {
                thread::sleep(CAPTURE_PAUSE);
            }
        }
        drop(buffer);
    }
}
