//! CUDA devices. Uses the CUDA driver API, which is loaded at run time. For streams and events see
//! <https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html>.

use std::{
    collections::VecDeque,
    ffi::c_void,
    sync::{Arc, Once},
};

use bytes::Bytes;
use cudarc::driver::{DriverError, result, sys};
use parking_lot::Mutex;

use super::{
    backend::{Backend, Copier, Memory},
    place::Place,
};
use crate::{
    Error,
    memory::{Pin, PinMemory},
};
use context::{Context, message};
use memory::{Buffer, Event};
use retire::{Retired, Retirement};

mod context;
mod memory;
mod retire;

/// Maximum number of copies in flight. Each keeps its body in host memory.
const MAX_COPIES: usize = 2;
/// Granularity of buffer lengths, so that batches of similar size share buffers. The driver does not allocate less.
const GRAIN_BYTES: usize = 2 << 20;

const OUT_OF_MEMORY: DriverError = DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY);

/// A CUDA device.
pub(super) struct Cuda {
    context: Arc<Context>,
}

impl Cuda {
    pub(super) fn open(number: u32) -> Result<Self, Error> {
        let missing =
            |reason: &dyn std::fmt::Display| Error::Device(format!("no CUDA device {number}: {reason}"));
        // SAFETY: loads NVIDIA's library, whose initializers are trusted.
        if !unsafe { sys::is_culib_present() } {
            return Err(missing(&"this machine has no NVIDIA driver (libcuda.so)"));
        }
        result::init().map_err(|error| missing(&message(error)))?;
        let count = result::device::get_count().map_err(|error| missing(&message(error)))?;
        let ordinal = i32::try_from(number).unwrap_or(i32::MAX);
        if ordinal >= count {
            return Err(missing(&format_args!("this machine has {count}, counted from 0")));
        }
        let device = result::device::get(ordinal).map_err(|error| missing(&message(error)))?;
        // SAFETY: the device exists, and the drop of `Context` releases it.
        let context =
            unsafe { result::primary_ctx::retain(device) }.map_err(|error| missing(&message(error)))?;
        Ok(Self { context: Arc::new(Context { number, device, context }) })
    }
}

impl Backend for Cuda {
    fn place(&self) -> Place {
        Place::Cuda(self.context.number)
    }

    fn copier(&self, prefetch: usize) -> Result<Box<dyn Copier>, Error> {
        let _entered = self.context.enter()?;
        // A non-blocking stream is not ordered with the default stream, on which the consumer may compute.
        let kind = result::stream::StreamKind::NonBlocking;
        let stream = self.context.check("cuStreamCreate", result::stream::create(kind))?;
        let buffers = Buffers {
            context: Arc::clone(&self.context),
            idle: Mutex::default(),
            // For the copies ahead, and the batch in use.
            max_idle: prefetch + 1,
            retirement: Retirement::start()?,
        };
        Ok(Box::new(Copies {
            stream: Stream(stream),
            in_flight: VecDeque::new(),
            buffers: Arc::new(buffers),
        }))
    }
}

impl PinMemory for Cuda {
    fn pin(&self, memory: &mut [u8]) -> Option<Pin> {
        let address = memory.as_mut_ptr();
        let registered = self.context.enter().and_then(|_entered| {
            // A consumer may copy to any device.
            let flags = sys::CU_MEMHOSTREGISTER_PORTABLE;
            // SAFETY: the owner of the memory keeps it mapped until the pin is dropped.
            let done = unsafe { sys::cuMemHostRegister_v2(address.cast(), memory.len(), flags) };
            self.context.check("cuMemHostRegister", done.result())
        });
        match registered {
            Ok(()) => {
                Some(Box::new(Pinned { address: address as usize, context: Arc::clone(&self.context) }))
            }
            Err(error) => {
                // Not fatal: the driver copies through a buffer of its own. A common cause is the limit of locked memory.
                static LOGGED: Once = Once::new();
                LOGGED.call_once(|| {
                    tracing::warn!(%error, "can't page-lock host memory, copies to the device are slower; check `ulimit -l`");
                });
                None
            }
        }
    }
}

struct Pinned {
    address: usize,
    context: Arc<Context>,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let unpinned = self.context.enter().and_then(|_entered| {
            // SAFETY: the memory was registered at this address.
            let done = unsafe { sys::cuMemHostUnregister(self.address as *mut c_void) };
            self.context.check("cuMemHostUnregister", done.result())
        });
        if let Err(error) = unpinned {
            tracing::warn!(%error, "can't unregister host memory, it stays page-locked");
        }
    }
}

/// The buffers of one training.
struct Buffers {
    context: Arc<Context>,
    idle: Mutex<Vec<Buffer>>,
    /// Maximum number of unused buffers that are kept for the next batches.
    max_idle: usize,
    /// Takes buffers that are no longer needed, because freeing them blocks.
    retirement: Retirement,
}

impl Buffers {
    fn take(&self, len: usize) -> Result<Buffer, Error> {
        let mut idle = self.idle.lock();
        if let Some(found) = idle.iter().position(|buffer| buffer.len >= len) {
            return Ok(idle.remove(found));
        }
        drop(idle);
        self.retirement.wait_for_room(self.context.number)?;
        let len = len.max(1).next_multiple_of(GRAIN_BYTES);
        let address = loop {
            let freed = self.retirement.freed();
            // SAFETY: the context is current, and the drop of `Buffer` frees the memory.
            let allocated = unsafe { result::malloc_sync(len) };
            // The device may be full of buffers that wait to be freed.
            if allocated == Err(OUT_OF_MEMORY) && self.retirement.wait_for_freed(freed) {
                continue;
            }
            break self.context.check("cuMemAlloc", allocated)?;
        };
        Ok(Buffer { address, len, until: Vec::new(), context: Arc::clone(&self.context) })
    }

    fn put_back(&self, buffer: Buffer) {
        let mut idle = self.idle.lock();
        idle.push(buffer);
        // The oldest buffer is freed, because it may be too short for current batches.
        let surplus = (idle.len() > self.max_idle).then(|| idle.remove(0));
        drop(idle);
        if let Some(buffer) = surplus {
            self.retirement.push(Retired { buffer, is_in_use: false, capturing: Vec::new() });
        }
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        for buffer in std::mem::take(self.idle.get_mut()) {
            self.retirement.push(Retired { buffer, is_in_use: false, capturing: Vec::new() });
        }
    }
}

/// A stream that this module owns.
struct Stream(sys::CUstream);

// SAFETY: as for `Context`.
unsafe impl Send for Stream {}

/// Copies to the device, on a separate stream.
struct Copies {
    stream: Stream,
    /// Copies in flight. Each keeps its body in host memory until the copy has completed.
    in_flight: VecDeque<(Arc<Event>, Bytes)>,
    buffers: Arc<Buffers>,
}

impl Copier for Copies {
    fn copy(&mut self, body: &Bytes) -> Result<Arc<dyn Memory>, Error> {
        let context = &self.buffers.context;
        let _entered = context.enter()?;
        while self.in_flight.len() >= MAX_COPIES {
            let (event, _) = &self.in_flight[0];
            event.wait()?;
            self.in_flight.pop_front();
        }
        let mut buffer = self.buffers.take(body.len())?;
        let Stream(stream) = self.stream;
        for event in &buffer.until {
            // SAFETY: the stream is live until `self` is dropped.
            unsafe { event.before(stream) }?;
        }
        // SAFETY: the buffer is long enough and unused until the event below, and `in_flight` keeps the body until then.
        let copied = unsafe { result::memcpy_htod_async(buffer.address, body, stream) };
        context.check("cuMemcpyHtoDAsync", copied)?;
        buffer.until.clear();
        // SAFETY: the stream is live until `self` is dropped.
        let copied = unsafe { Event::record(context, stream) };
        let copied = Arc::new(copied.inspect_err(|_| {
            // SAFETY: as above. Without an event, only this call shows that the copy has ended.
            let _ = unsafe { result::stream::synchronize(stream) };
        })?);
        self.in_flight.push_back((Arc::clone(&copied), body.clone()));
        let consumers = Mutex::new(Consumers { streams: Vec::new(), unordered: false });
        Ok(Arc::new(Loaded { buffer: Some(buffer), copied, consumers, home: Arc::clone(&self.buffers) }))
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        if let Ok(_entered) = self.buffers.context.enter() {
            // SAFETY: the stream is not used after the drop. `in_flight` keeps the bodies until its work has completed.
            unsafe {
                let _ = result::stream::synchronize(self.stream.0);
                let _ = result::stream::destroy(self.stream.0);
            }
        }
    }
}

/// The body of a batch in device memory.
struct Loaded {
    /// Present until the drop.
    buffer: Option<Buffer>,
    copied: Arc<Event>,
    consumers: Mutex<Consumers>,
    home: Arc<Buffers>,
}

/// The streams that use a batch.
struct Consumers {
    /// Handles of known streams.
    streams: Vec<usize>,
    /// True if unknown streams use the batch, too.
    unordered: bool,
}

impl Memory for Loaded {
    fn address(&self) -> u64 {
        self.buffer.as_ref().map_or(0, |buffer| buffer.address)
    }

    unsafe fn ready_on(&self, stream: *mut c_void) -> Result<(), Error> {
        let _entered = self.home.context.enter()?;
        // SAFETY: guaranteed by the caller.
        unsafe {
            if self.home.context.is_capturing(stream.cast())? {
                return Err(Error::Device(format!(
                    "cuda:{}: the stream captures a graph, in which a batch can't be used; copy it to the graph's memory before",
                    self.home.context.number
                )));
            }
            self.copied.before(stream.cast())?;
        }
        let mut consumers = self.consumers.lock();
        if !consumers.streams.contains(&(stream as usize)) {
            consumers.streams.push(stream as usize);
        }
        Ok(())
    }

    fn ready_unordered(&self) -> Result<(), Error> {
        let _entered = self.home.context.enter()?;
        self.copied.wait()?;
        self.consumers.lock().unordered = true;
        Ok(())
    }

    fn read(&self, address: u64, len: usize) -> Result<Vec<u8>, Error> {
        let context = &self.home.context;
        let _entered = context.enter()?;
        self.copied.wait()?;
        let mut bytes = vec![0; len];
        // SAFETY: the buffer contains `len` bytes from the address.
        let read = unsafe { result::memcpy_dtoh_sync(&mut bytes, address) };
        context.check("cuMemcpyDtoH", read)?;
        Ok(bytes)
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        let Some(mut buffer) = self.buffer.take() else { return };
        let context = &self.home.context;
        let consumers = self.consumers.get_mut();
        buffer.until.push(Arc::clone(&self.copied));
        let (mut is_in_use, mut capturing) = (consumers.unordered, Vec::new());
        let entered = context.enter();
        for &stream in &consumers.streams {
            // SAFETY: the caller of `ready_on` guarantees that the stream is live until this drop.
            let event = entered.as_ref().ok().and_then(|_| unsafe {
                // An event of a stream that captures would become a part of its graph.
                if context.is_capturing(stream as sys::CUstream).ok()? {
                    capturing.push(stream);
                    return None;
                }
                Event::record(context, stream as sys::CUstream).ok()
            });
            match event {
                Some(event) => buffer.until.push(Arc::new(event)),
                None => is_in_use = true,
            }
        }
        match is_in_use {
            true => self.home.retirement.push(Retired { buffer, is_in_use, capturing }),
            false => self.home.put_back(buffer),
        }
    }
}
