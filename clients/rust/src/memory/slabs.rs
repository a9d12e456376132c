//! A pool of aligned memory for message bodies. Reuse avoids the page faults of new memory.
//!
//! The server has a pool of its own, because a client depends on no service and keeps only a few large slabs.

use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
};

use memmap2::MmapMut;
use parking_lot::Mutex;

use super::pin::{Pin, PinMemory};

/// Granularity of slab lengths, so that batches of similar size share slabs.
const GRAIN_BYTES: usize = 256 << 10;
/// Minimum length of a slab for which huge pages are requested.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A pool of slabs. Cheap to clone; clones share the slabs.
#[derive(Clone)]
pub(crate) struct Slabs {
    pinner: Option<Arc<dyn PinMemory>>,
    idle: Arc<Mutex<Idle>>,
}

struct Idle {
    slabs: Vec<Memory>,
    bytes: usize,
    max_bytes: usize,
}

/// Mapped pages, page-locked if the pool has a pinner.
struct Memory {
    /// Declared before `map`, so that it is dropped first.
    _pin: Option<Pin>,
    map: MmapMut,
}

/// Bytes aligned to a page, with unspecified content. Dropping returns the memory to the pool.
pub(crate) struct Slab {
    memory: Option<Memory>,
    len: usize,
    home: Arc<Mutex<Idle>>,
}

impl Slabs {
    /// Creates a pool that keeps at most `max_bytes` of unused memory.
    pub(crate) fn new(max_bytes: u64) -> Self {
        let max_bytes = usize::try_from(max_bytes).unwrap_or(usize::MAX);
        Self { pinner: None, idle: Arc::new(Mutex::new(Idle { slabs: Vec::new(), bytes: 0, max_bytes })) }
    }

    /// Creates a pool like [`new`](Self::new) whose memory is page-locked by `pinner`.
    pub(crate) fn pinned(max_bytes: u64, pinner: Arc<dyn PinMemory>) -> Self {
        Self { pinner: Some(pinner), ..Self::new(max_bytes) }
    }

    /// Returns a slab of `len` bytes: the suitable one that was returned last, or new memory.
    pub(crate) fn take(&self, len: usize) -> std::io::Result<Slab> {
        let memory = match self.take_idle(len) {
            Some(memory) => memory,
            None => self.map(len.max(1).next_multiple_of(GRAIN_BYTES))?,
        };
        Ok(Slab { memory: Some(memory), len, home: Arc::clone(&self.idle) })
    }

    fn take_idle(&self, len: usize) -> Option<Memory> {
        let mut idle = self.idle.lock();
        // A small batch must not occupy a much longer slab for as long as the consumer keeps it.
        let fits = |slab: &Memory| slab.map.len() >= len && slab.map.len() / 2 <= len.max(GRAIN_BYTES);
        let found = idle.slabs.iter().rposition(fits)?;
        let memory = idle.slabs.remove(found);
        idle.bytes -= memory.map.len();
        Some(memory)
    }

    fn map(&self, len: usize) -> std::io::Result<Memory> {
        let mut map = MmapMut::map_anon(len)?;
        if len >= HUGE_PAGE_BYTES {
            // Ignored, because kernels without huge pages return an error.
            drop(map.advise(memmap2::Advice::HugePage));
        }
        let pin = self.pinner.as_ref().and_then(|pinner| pinner.pin(&mut map));
        Ok(Memory { _pin: pin, map })
    }
}

impl Deref for Slab {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let memory = self.memory.as_ref().expect("memory is present until the drop");
        &memory.map[..self.len]
    }
}

impl DerefMut for Slab {
    fn deref_mut(&mut self) -> &mut [u8] {
        let memory = self.memory.as_mut().expect("memory is present until the drop");
        &mut memory.map[..self.len]
    }
}

impl AsRef<[u8]> for Slab {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        let mut idle = self.home.lock();
        if idle.bytes + memory.map.len() <= idle.max_bytes {
            idle.bytes += memory.map.len();
            idle.slabs.push(memory);
            return;
        }
        drop(idle);
        // Unmapping is slow, so it happens after the lock is released.
        drop(memory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slab_returned_last_is_reused_and_idle_memory_is_bounded() {
        let slabs = Slabs::new(3 << 20);
        let (first, second) = (slabs.take(1 << 20).unwrap(), slabs.take(1 << 20).unwrap());
        let address = second.as_ptr();
        drop((first, second));
        assert_eq!(slabs.take((1 << 20) - 5).unwrap().as_ptr(), address);
        drop([slabs.take(1 << 20), slabs.take(1 << 20), slabs.take(1 << 20), slabs.take(1 << 20)]);
        assert_eq!(slabs.idle.lock().bytes, 3 << 20);
    }

    #[test]
    fn slabs_are_aligned_and_have_the_requested_length() {
        let slabs = Slabs::new(1 << 20);
        for len in [0, 1, 63, 4096, 3 << 20] {
            let slab = slabs.take(len).unwrap();
            assert_eq!((slab.len(), slab.as_ptr() as usize % 64), (len, 0));
        }
    }
}
