//! Freeing of device memory on a thread of its own.
//!
//! The driver waits for the work on a buffer before it frees it. The threads that drop batches do not: in Python they hold the
//! interpreter's lock, without which the work that the driver waits for may not end. Therefore a drop never blocks. Instead, the
//! thread that copies batches waits before it allocates another buffer while [`MAX_WAITING`] buffers wait to be freed. Device memory
//! is thus bounded by that number and by the batches that the consumer keeps at the same time.

use std::{collections::VecDeque, sync::Arc, thread, time::Duration};

use cudarc::driver::{DriverError, result, sys};
use parking_lot::{Condvar, Mutex};

use super::memory::Buffer;
use crate::Error;

/// Maximum number of buffers that wait to be freed when another one is allocated. More than a loop drops between two batches, unless
/// it keeps batches on purpose, and few compared to the memory of a device.
const MAX_WAITING: usize = 32;
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

/// The buffers of one training that wait to be freed, and the thread that frees them. After the drop, the thread frees the rest and
/// ends.
pub(super) struct Retirement {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Retired>,
    /// Number of buffers that are not freed yet, including the one that the thread frees.
    waiting: usize,
    /// Number of buffers that were freed.
    freed: u64,
    /// True while the thread waits for the end of a capture.
    is_during_capture: bool,
    is_closed: bool,
}

impl Retirement {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`Error::Device`] if the system has no thread left.
    pub(super) fn start() -> Result<Self, Error> {
        let shared = Arc::<Shared>::default();
        let frees = Arc::clone(&shared);
        let thread = thread::Builder::new().name("forebay-cuda".into()).spawn(move || frees.free_all());
        thread.map_err(|error| {
            Error::Device(format!("starting a thread that frees device memory failed: {error}"))
        })?;
        Ok(Self { shared })
    }

    /// Frees a buffer later. Does not block.
    pub(super) fn push(&self, retired: Retired) {
        let mut state = self.shared.state.lock();
        state.waiting += 1;
        state.queue.push_back(retired);
        self.shared.changed.notify_all();
    }

    /// Waits until fewer than [`MAX_WAITING`] buffers of device `number` wait to be freed.
    ///
    /// # Errors
    /// [`Error::Device`] if the capture of a graph prevents it: the capture may end only after the next batch.
    pub(super) fn wait_for_room(&self, number: u32) -> Result<(), Error> {
        let mut state = self.shared.state.lock();
        while state.waiting >= MAX_WAITING {
            if state.is_during_capture {
                return Err(Error::Device(format!(
                    "cuda:{number}: {} batches were released while a stream captures a graph, and their memory can be freed only \
                     afterwards; end the capture, or receive fewer batches during it",
                    state.waiting
                )));
            }
            self.shared.changed.wait(&mut state);
        }
        Ok(())
    }

    /// Number of buffers that were freed.
    pub(super) fn freed(&self) -> u64 {
        self.shared.state.lock().freed
    }

    /// Waits until more than `before` buffers were freed. Returns false if none waits to be freed, or if the capture of a graph
    /// prevents it.
    pub(super) fn wait_for_freed(&self, before: u64) -> bool {
        let mut state = self.shared.state.lock();
        while state.freed == before {
            if state.waiting == 0 || state.is_during_capture {
                return false;
            }
            self.shared.changed.wait(&mut state);
        }
        true
    }
}

impl Drop for Retirement {
    fn drop(&mut self) {
        self.shared.state.lock().is_closed = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn free_all(&self) {
        while let Some(retired) = self.next() {
            self.free(retired);
            let mut state = self.state.lock();
            (state.waiting, state.freed) = (state.waiting - 1, state.freed + 1);
            drop(state);
            self.changed.notify_all();
        }
    }

    /// Waits for the next buffer; `None` after the last one.
    fn next(&self) -> Option<Retired> {
        let mut state = self.state.lock();
        loop {
            if let Some(retired) = state.queue.pop_front() {
                return Some(retired);
            }
            if state.is_closed {
                return None;
            }
            self.changed.wait(&mut state);
        }
    }

    fn free(&self, Retired { buffer, is_in_use, capturing }: Retired) {
        if let Ok(_entered) = buffer.context.enter()
            && is_in_use
        {
            for stream in capturing {
                // SAFETY: a stream lives at least as long as its capture.
                while let Ok(true) = unsafe { buffer.context.is_capturing(stream as sys::CUstream) } {
                    self.pause_during_capture();
                }
            }
            // Another stream may capture a graph. After other errors the device is unusable, so that no work on the buffer remains.
            loop {
                // The capture may have ended, so that only the work on the device is awaited.
                self.state.lock().is_during_capture = false;
                if result::ctx::synchronize() != Err(DURING_CAPTURE) {
                    break;
                }
                self.pause_during_capture();
            }
        }
        drop(buffer);
    }

    fn pause_during_capture(&self) {
        self.state.lock().is_during_capture = true;
        self.changed.notify_all();
        thread::sleep(CAPTURE_PAUSE);
    }
}
