//! NVIDIA's devices, by the driver API, which is loaded at run time. Streams and events as in
//! <https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html>.

use std::{
    collections::VecDeque,
    ffi::c_void,
    sync::{Arc, Mutex, Once, PoisonError},
};

use cudarc::driver::{DriverError, result, sys};

use super::{Backend, Copier, Memory, Pin, Place};
use crate::{Batch, Error};

/// Copies that are on their way; each holds its batch in host memory.
const COPIES: usize = 2;
/// Buffers that nobody uses and that are kept for the next batches.
const IDLE_BUFFERS: usize = 2;
/// Buffers are a multiple of this long, so that batches of nearly one size share them; the driver hands out no less.
const GRAIN_BYTES: usize = 2 << 20;

/// A device.
pub(super) struct Cuda {
    context: Arc<Context>,
}

/// The primary context of a device, which all libraries of a process share.
struct Context {
    number: u32,
    device: sys::CUdevice,
    context: sys::CUcontext,
}

// SAFETY: contexts may be used from every thread that makes them its current one.
unsafe impl Send for Context {}
// SAFETY: the driver locks where it has to.
unsafe impl Sync for Context {}

impl Cuda {
    pub(super) fn open(number: u32) -> Result<Self, Error> {
        let none = |why: &dyn std::fmt::Display| Error::Device(format!("no CUDA device {number}: {why}"));
        // SAFETY: loads the library, whose initializers are NVIDIA's.
        if !unsafe { sys::is_culib_present() } {
            return Err(none(&"this machine has no NVIDIA driver (libcuda.so)"));
        }
        result::init().map_err(|error| none(&words(error)))?;
        let count = result::device::get_count().map_err(|error| none(&words(error)))?;
        let ordinal = i32::try_from(number).unwrap_or(i32::MAX);
        if ordinal >= count {
            return Err(none(&format_args!("this machine has {count}, counted from 0")));
        }
        let device = result::device::get(ordinal).map_err(|error| none(&words(error)))?;
        // SAFETY: the device is there; the drop releases it.
        let context = unsafe { result::primary_ctx::retain(device) }.map_err(|error| none(&words(error)))?;
        Ok(Self { context: Arc::new(Context { number, device, context }) })
    }
}

impl Context {
    /// Makes it the current one of this thread, until what is returned is dropped: the thread may be a framework's, which has
    /// another.
    fn enter(&self) -> Result<Entered, Error> {
        // SAFETY: it lives as long as this.
        self.check("cuCtxPushCurrent", unsafe { sys::cuCtxPushCurrent_v2(self.context) }.result())?;
        Ok(Entered)
    }

    fn check<T>(&self, call: &str, done: Result<T, DriverError>) -> Result<T, Error> {
        done.map_err(|error| Error::Device(format!("cuda:{}: {call}: {}", self.number, words(error))))
    }
}

/// A context that is current.
struct Entered;

impl Drop for Entered {
    fn drop(&mut self) {
        let mut left = std::ptr::null_mut();
        // SAFETY: it was pushed; everybody who pushes pops.
        let _ = unsafe { sys::cuCtxPopCurrent_v2(&raw mut left) };
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it was retained once, and nothing made in it is left: all that is holds this.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

fn words(error: DriverError) -> String {
    let text = error.error_string().map(|text| text.to_string_lossy().into_owned());
    text.unwrap_or_else(|_| format!("{:?}", error.0))
}

impl Backend for Cuda {
    fn place(&self) -> Place {
        Place::Cuda(self.context.number)
    }

    fn copier(&self) -> Result<Box<dyn Copier>, Error> {
        let _entered = self.context.enter()?;
        // Of no order with the default stream, on which the consumer may compute.
        let kind = result::stream::StreamKind::NonBlocking;
        let stream = self.context.check("cuStreamCreate", result::stream::create(kind))?;
        let buffers = Buffers { context: Arc::clone(&self.context), idle: Mutex::default() };
        Ok(Box::new(Copies {
            stream: Stream(stream),
            on_their_way: VecDeque::new(),
            buffers: Arc::new(buffers),
        }))
    }

    fn pin(&self, memory: &mut [u8]) -> Option<Pin> {
        let address = memory.as_mut_ptr();
        let registered = self.context.enter().and_then(|_entered| {
            // SAFETY: the memory is mapped for as long as the pin is there, as its owner promises.
            let done = unsafe { sys::cuMemHostRegister_v2(address.cast(), memory.len(), 0) };
            self.context.check("cuMemHostRegister", done.result())
        });
        match registered {
            Ok(()) => {
                Some(Box::new(Pinned { address: address as usize, context: Arc::clone(&self.context) }))
            }
            Err(error) => {
                // Copies work without, by a detour; a limit of locked memory does this.
                static SAID: Once = Once::new();
                SAID.call_once(|| tracing::warn!(%error, "host memory is not pinned: copies are slower"));
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
            // SAFETY: it was registered at this address.
            let done = unsafe { sys::cuMemHostUnregister(self.address as *mut c_void) };
            self.context.check("cuMemHostUnregister", done.result())
        });
        if let Err(error) = unpinned {
            tracing::warn!(%error, "host memory stays pinned");
        }
    }
}

/// A point in the work of a stream.
struct Event {
    event: sys::CUevent,
    context: Arc<Context>,
}

// SAFETY: as for the context.
unsafe impl Send for Event {}
// SAFETY: as for the context.
unsafe impl Sync for Event {}

impl Event {
    /// What `stream` has been given so far.
    ///
    /// # Safety
    /// `stream` is a live stream of the context, which is the current one.
    unsafe fn record(context: &Arc<Context>, stream: sys::CUstream) -> Result<Self, Error> {
        // A thread that waits for it sleeps.
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32
            | sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC as u32;
        let mut event = std::ptr::null_mut();
        // SAFETY: the driver writes an event there.
        context.check("cuEventCreate", unsafe { sys::cuEventCreate(&raw mut event, flags) }.result())?;
        let event = Self { event, context: Arc::clone(context) };
        // SAFETY: by the caller's promise.
        context.check("cuEventRecord", unsafe { result::event::record(event.event, stream) })?;
        Ok(event)
    }

    /// Makes `stream` wait for it.
    ///
    /// # Safety
    /// As for [`record`](Self::record).
    unsafe fn before(&self, stream: sys::CUstream) -> Result<(), Error> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: by the caller's promise.
        let done = unsafe { result::stream::wait_event(stream, self.event, flags) };
        self.context.check("cuStreamWaitEvent", done)
    }

    /// Waits for it.
    fn wait(&self) -> Result<(), Error> {
        // SAFETY: the event lives.
        self.context.check("cuEventSynchronize", unsafe { result::event::synchronize(self.event) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: it lives until here; the driver keeps what streams still wait for.
            let _ = unsafe { result::event::destroy(self.event) };
        }
    }
}

/// Memory of the device.
struct Buffer {
    address: sys::CUdeviceptr,
    len: usize,
    /// What has to be done before it is written again, or freed.
    until: Vec<Arc<Event>>,
    context: Arc<Context>,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            for event in &self.until {
                // An error is the device's last one, and then nothing is done with it any more.
                drop(event.wait());
            }
            // SAFETY: it was allocated, and what had to be done with it is done.
            let _ = unsafe { result::free_sync(self.address) };
        }
    }
}

/// The buffers of one training.
struct Buffers {
    context: Arc<Context>,
    idle: Mutex<Vec<Buffer>>,
}

impl Buffers {
    fn take(&self, len: usize) -> Result<Buffer, Error> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = idle.iter().position(|buffer| buffer.len >= len) {
            return Ok(idle.remove(found));
        }
        drop(idle);
        let len = len.max(1).next_multiple_of(GRAIN_BYTES);
        // SAFETY: the context is the current one; the buffer frees it.
        let address = self.context.check("cuMemAlloc", unsafe { result::malloc_sync(len) })?;
        Ok(Buffer { address, len, until: Vec::new(), context: Arc::clone(&self.context) })
    }

    fn give_back(&self, buffer: Buffer) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push(buffer);
        // The oldest goes: it may be too short for the batches of today.
        let surplus = (idle.len() > IDLE_BUFFERS).then(|| idle.remove(0));
        drop(idle);
        drop(surplus);
    }
}

/// A stream of ours.
struct Stream(sys::CUstream);

// SAFETY: as for the context.
unsafe impl Send for Stream {}

/// Copies to the device, on a stream of their own.
struct Copies {
    stream: Stream,
    /// The host's memory of each is left alone until its copy has ended.
    on_their_way: VecDeque<(Arc<Event>, Batch)>,
    buffers: Arc<Buffers>,
}

impl Copier for Copies {
    fn copy(&mut self, batch: &Batch) -> Result<Arc<dyn Memory>, Error> {
        let context = &self.buffers.context;
        let _entered = context.enter()?;
        while self.on_their_way.len() >= COPIES {
            let (event, _) = &self.on_their_way[0];
            event.wait()?;
            self.on_their_way.pop_front();
        }
        let body = batch.body();
        let mut buffer = self.buffers.take(body.len())?;
        let Stream(stream) = self.stream;
        for event in &buffer.until {
            // SAFETY: it is our stream.
            unsafe { event.before(stream) }?;
        }
        // SAFETY: the buffer is long enough, nobody uses it before the event below, and the batch is kept until then.
        let copied = unsafe { result::memcpy_htod_async(buffer.address, body, stream) };
        context.check("cuMemcpyHtoDAsync", copied)?;
        buffer.until.clear();
        // SAFETY: it is our stream.
        let copied = unsafe { Event::record(context, stream) };
        let copied = Arc::new(copied.inspect_err(|_| {
            // SAFETY: it is our stream. Nothing tells when the copy ends but this.
            let _ = unsafe { result::stream::synchronize(stream) };
        })?);
        self.on_their_way.push_back((Arc::clone(&copied), batch.clone()));
        let consumers = Mutex::new(Consumers { streams: Vec::new(), unordered: false });
        Ok(Arc::new(Loaded { buffer: Some(buffer), copied, consumers, home: Arc::clone(&self.buffers) }))
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        if let Ok(_entered) = self.buffers.context.enter() {
            // SAFETY: it is our stream, and used no more. The batches are kept until it has ended.
            unsafe {
                let _ = result::stream::synchronize(self.stream.0);
                let _ = result::stream::destroy(self.stream.0);
            }
        }
    }
}

/// A batch on the device.
struct Loaded {
    /// There until the drop.
    buffer: Option<Buffer>,
    copied: Arc<Event>,
    consumers: Mutex<Consumers>,
    home: Arc<Buffers>,
}

/// Who computes with a batch.
struct Consumers {
    /// Their streams, as numbers.
    streams: Vec<usize>,
    /// Whether there are others of which nothing is known.
    unordered: bool,
}

impl Memory for Loaded {
    fn address(&self) -> u64 {
        self.buffer.as_ref().map_or(0, |buffer| buffer.address)
    }

    unsafe fn ready_on(&self, stream: *mut c_void) -> Result<(), Error> {
        let _entered = self.home.context.enter()?;
        // SAFETY: by the caller's promise.
        unsafe { self.copied.before(stream.cast()) }?;
        let mut consumers = self.consumers.lock().unwrap_or_else(PoisonError::into_inner);
        if !consumers.streams.contains(&(stream as usize)) {
            consumers.streams.push(stream as usize);
        }
        Ok(())
    }

    fn ready_unordered(&self) -> Result<(), Error> {
        let _entered = self.home.context.enter()?;
        self.copied.wait()?;
        self.consumers.lock().unwrap_or_else(PoisonError::into_inner).unordered = true;
        Ok(())
    }

    fn read(&self, address: u64, len: usize) -> Result<Vec<u8>, Error> {
        let context = &self.home.context;
        let _entered = context.enter()?;
        self.copied.wait()?;
        let mut bytes = vec![0; len];
        // SAFETY: the address lies in the buffer, `len` bytes before its end.
        let read = unsafe { result::memcpy_dtoh_sync(&mut bytes, address) };
        context.check("cuMemcpyDtoH", read)?;
        Ok(bytes)
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        let Some(mut buffer) = self.buffer.take() else { return };
        let context = &self.home.context;
        let consumers = self.consumers.get_mut().unwrap_or_else(PoisonError::into_inner);
        buffer.until.push(Arc::clone(&self.copied));
        let entered = context.enter();
        let ended = entered.as_ref().map_err(|_| ()).and_then(|_| {
            for &stream in &consumers.streams {
                // SAFETY: the stream lives until here, as whoever named it promised.
                let event = unsafe { Event::record(context, stream as sys::CUstream) };
                buffer.until.push(Arc::new(event.map_err(|_| ())?));
            }
            Ok(!consumers.unordered)
        });
        if !matches!(ended, Ok(true)) {
            // Of what is still done with it nothing is known, but that this ends it.
            let _ = result::ctx::synchronize();
            return;
        }
        self.home.give_back(buffer);
    }
}
