//! Memory for bodies: aligned, and used again and again, so that the kernel clears no page twice.
//!
//! The server has its own: a client depends on no service, and keeps few slabs, all of them bodies.

use std::{
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex, PoisonError},
};

use memmap2::MmapMut;

use crate::device::{Device, Pin};

/// Slabs are a multiple of this long, so that batches of nearly one size share them.
const GRAIN_BYTES: usize = 256 << 10;
/// From this length on the kernel is asked for huge pages.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Slabs that wait for their next use. Cheap to clone; clones share them.
#[derive(Clone)]
pub(crate) struct Slabs {
    device: Device,
    idle: Arc<Mutex<Idle>>,
}

struct Idle {
    slabs: Vec<Memory>,
    bytes: usize,
    max_bytes: usize,
}

/// Pages, pinned where the device that they are copied to wants that.
struct Memory {
    /// Dropped before what it pins.
    _pin: Option<Pin>,
    map: MmapMut,
}

/// Bytes aligned to a page, of no particular content until they are written. Dropping gives them back.
pub(crate) struct Slab {
    memory: Option<Memory>,
    len: usize,
    home: Arc<Mutex<Idle>>,
}

impl Slabs {
    /// A pool that keeps at most `max_bytes` that nobody uses, of memory from which `device` copies.
    pub(crate) fn new(max_bytes: u64, device: Device) -> Self {
        let max_bytes = usize::try_from(max_bytes).unwrap_or(usize::MAX);
        Self { device, idle: Arc::new(Mutex::new(Idle { slabs: Vec::new(), bytes: 0, max_bytes })) }
    }

    /// A slab of `len` bytes: the one that was given back last, if it is long enough.
    pub(crate) fn take(&self, len: usize) -> std::io::Result<Slab> {
        let memory = match self.take_idle(len) {
            Some(memory) => memory,
            None => map(len.max(1).next_multiple_of(GRAIN_BYTES), &self.device)?,
        };
        Ok(Slab { memory: Some(memory), len, home: Arc::clone(&self.idle) })
    }

    fn take_idle(&self, len: usize) -> Option<Memory> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        // Not one that is far too long: a small batch would hold it for as long as somebody keeps it.
        let fits = |slab: &Memory| slab.map.len() >= len && slab.map.len() / 2 <= len.max(GRAIN_BYTES);
        let found = idle.slabs.iter().rposition(fits)?;
        let memory = idle.slabs.remove(found);
        idle.bytes -= memory.map.len();
        Some(memory)
    }
}

fn map(len: usize, device: &Device) -> std::io::Result<Memory> {
    let mut map = MmapMut::map_anon(len)?;
    if len >= HUGE_PAGE_BYTES {
        // A kernel without huge pages does without.
        drop(map.advise(memmap2::Advice::HugePage));
    }
    Ok(Memory { _pin: device.pin(&mut map), map })
}

impl Deref for Slab {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let memory = self.memory.as_ref().expect("it is there until the drop");
        &memory.map[..self.len]
    }
}

impl DerefMut for Slab {
    fn deref_mut(&mut self) -> &mut [u8] {
        let memory = self.memory.as_mut().expect("it is there until the drop");
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
        let mut idle = self.home.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.bytes + memory.map.len() <= idle.max_bytes {
            idle.bytes += memory.map.len();
            idle.slabs.push(memory);
            return;
        }
        drop(idle);
        drop(memory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slab_given_back_last_is_used_again_and_no_more_are_kept_than_allowed() {
        let slabs = Slabs::new(3 << 20, Device::host());
        let (first, second) = (slabs.take(1 << 20).unwrap(), slabs.take(1 << 20).unwrap());
        let address = second.as_ptr();
        drop((first, second));
        assert_eq!(slabs.take((1 << 20) - 5).unwrap().as_ptr(), address);
        drop([slabs.take(1 << 20), slabs.take(1 << 20), slabs.take(1 << 20), slabs.take(1 << 20)]);
        assert_eq!(slabs.idle.lock().unwrap().bytes, 3 << 20);
    }

    #[test]
    fn slabs_are_aligned_and_of_the_length_asked_for() {
        let slabs = Slabs::new(1 << 20, Device::host());
        for len in [0, 1, 63, 4096, 3 << 20] {
            let slab = slabs.take(len).unwrap();
            assert_eq!((slab.len(), slab.as_ptr() as usize % 64), (len, 0));
        }
    }
}
