//! Memory for large values: aligned, in huge pages where the kernel gives them, and used again.
//!
//! Fresh memory is cleared by the kernel page by page, which costs about as much as filling it.

use std::{
    io,
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex, PoisonError},
};

use arrow_buffer::MutableBuffer;
use memmap2::{Advice, MmapMut};

/// From this length on slabs are mapped one by one; shorter ones come from the heap, lest the process run out
/// of mappings.
const MAPPED_BYTES: usize = 1 << 20;
/// Mapped slabs are a multiple of this long, so that values of nearly one size share them ...
const GRAIN_BYTES: usize = 64 << 10;
/// ... and a multiple of this when that wastes little: only then does the kernel align them for huge pages.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Slabs, and those that wait for their next use. Cheap to clone; clones share them.
#[derive(Clone)]
pub struct Slabs {
    idle: Arc<Mutex<Idle>>,
}

struct Idle {
    /// The one that was given back last at the end.
    mapped: Vec<MmapMut>,
    bytes: usize,
    max_bytes: usize,
    /// Bytes of the mapped slabs that are in use.
    used_bytes: usize,
    max_total_bytes: usize,
}

/// Bytes aligned to 64, of no particular content until they are written. Dropping it gives them back.
pub struct Slab {
    memory: Memory,
    len: usize,
}

enum Memory {
    Heap(MutableBuffer),
    /// `None` only while it is dropped.
    Mapped(Option<MmapMut>, Arc<Mutex<Idle>>),
}

impl Slabs {
    /// A pool that keeps at most `max_idle_bytes` that nobody uses.
    pub fn new(max_idle_bytes: u64) -> Self {
        Self::within(u64::MAX, max_idle_bytes)
    }

    /// ... and none when it and those in use would exceed `max_total_bytes`. What is in use may.
    pub fn within(max_total_bytes: u64, max_idle_bytes: u64) -> Self {
        let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let idle = Idle {
            mapped: Vec::new(),
            bytes: 0,
            max_bytes: bytes(max_idle_bytes),
            used_bytes: 0,
            max_total_bytes: bytes(max_total_bytes),
        };
        Self { idle: Arc::new(Mutex::new(idle)) }
    }

    /// A slab of `len` bytes: of those that are long enough the one that was given back last, for it is the
    /// likeliest to be in the processor's cache. What it holds is left from its last use.
    ///
    /// # Errors
    /// When the system has no memory left for it.
    pub fn take(&self, len: usize) -> io::Result<Slab> {
        if len < MAPPED_BYTES {
            return Ok(Slab { memory: Memory::Heap(MutableBuffer::from_len_zeroed(len)), len });
        }
        let mapped = match self.take_idle(len) {
            Some(mapped) => mapped,
            None => self.map(mapped_len(len))?,
        };
        Ok(Slab { memory: Memory::Mapped(Some(mapped), Arc::clone(&self.idle)), len })
    }

    /// Bytes that wait for their next use.
    pub fn idle_bytes(&self) -> usize {
        self.lock().bytes
    }

    fn take_idle(&self, len: usize) -> Option<MmapMut> {
        let mut idle = self.lock();
        // Not one that is far too long: whoever keeps the slab would keep the rest with it.
        let fits = |slab: &MmapMut| slab.len() >= len && slab.len() - len <= len / 8 + HUGE_PAGE_BYTES / 2;
        let found = idle.mapped.iter().rposition(fits)?;
        let mapped = idle.mapped.remove(found);
        idle.bytes -= mapped.len();
        idle.used_bytes += mapped.len();
        Some(mapped)
    }

    /// A new one, in the place of those that have been idle longest.
    fn map(&self, len: usize) -> io::Result<MmapMut> {
        let mut idle = self.lock();
        let excess = (idle.used_bytes + idle.bytes + len).saturating_sub(idle.max_total_bytes);
        let (mut count, mut freed) = (0, 0);
        while freed < excess && count < idle.mapped.len() {
            freed += idle.mapped[count].len();
            count += 1;
        }
        let gone: Vec<MmapMut> = idle.mapped.drain(..count).collect();
        idle.bytes -= freed;
        idle.used_bytes += len;
        // Unmapped after the lock.
        drop(idle);
        drop(gone);
        map(len).inspect_err(|_| self.lock().used_bytes -= len)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn mapped_len(len: usize) -> usize {
    let huge = len.next_multiple_of(HUGE_PAGE_BYTES);
    if huge - len <= len / 8 { huge } else { len.next_multiple_of(GRAIN_BYTES) }
}

fn map(len: usize) -> io::Result<MmapMut> {
    let mapped = MmapMut::map_anon(len)?;
    // A kernel without huge pages does without.
    drop(mapped.advise(Advice::HugePage));
    Ok(mapped)
}

impl Slab {
    /// Bytes of memory that it takes, its unused end included.
    pub fn capacity(&self) -> usize {
        match &self.memory {
            Memory::Heap(buffer) => buffer.capacity(),
            Memory::Mapped(mapped, _) => mapped.as_ref().map_or(0, |mapped| mapped.len()),
        }
    }
}

impl Deref for Slab {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.memory {
            Memory::Heap(buffer) => buffer.as_slice(),
            Memory::Mapped(mapped, _) => &mapped.as_ref().expect("it is there until the drop")[..self.len],
        }
    }
}

impl DerefMut for Slab {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Heap(buffer) => buffer.as_slice_mut(),
            Memory::Mapped(mapped, _) => {
                &mut mapped.as_mut().expect("it is there until the drop")[..self.len]
            }
        }
    }
}

impl AsRef<[u8]> for Slab {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl std::fmt::Debug for Slab {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slab").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let Self::Mapped(mapped, home) = self else { return };
        let Some(mapped) = mapped.take() else { return };
        let mut idle = home.lock().unwrap_or_else(PoisonError::into_inner);
        let len = mapped.len();
        idle.used_bytes -= len;
        if idle.bytes + len <= idle.max_bytes && idle.used_bytes + idle.bytes + len <= idle.max_total_bytes {
            idle.bytes += len;
            idle.mapped.push(mapped);
            return;
        }
        // Unmapped after the lock.
        drop(idle);
        drop(mapped);
    }
}

#[cfg(test)]
mod tests;
