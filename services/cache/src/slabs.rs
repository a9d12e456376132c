//! Memory for large values: aligned, in huge pages where the kernel gives them, and used again.
//!
//! Fresh memory is cleared by the kernel page by page, which costs about as much as filling it.

use std::{
    collections::VecDeque,
    io,
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
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
    pool: Arc<Mutex<Pool>>,
}

/// The mapped slabs, of which those in use are only counted.
struct Pool {
    /// The one that was given back last at the end.
    idle: VecDeque<MmapMut>,
    idle_bytes: usize,
    max_idle_bytes: usize,
    used_bytes: usize,
    max_total_bytes: usize,
}

impl Pool {
    /// Removes those that have been idle longest, until one of `len` bytes more, in use or `idle`, is within the
    /// limits, if it can be. They are unmapped by whoever drops them, after the lock.
    fn make_room(&mut self, len: usize, is_idle: bool) -> Vec<MmapMut> {
        let mut gone = Vec::new();
        while !self.has_room(len, is_idle)
            && let Some(oldest) = self.idle.pop_front()
        {
            self.idle_bytes -= oldest.len();
            gone.push(oldest);
        }
        gone
    }

    fn has_room(&self, len: usize, is_idle: bool) -> bool {
        let idle_bytes = self.idle_bytes + if is_idle { len } else { 0 };
        idle_bytes <= self.max_idle_bytes && self.used_bytes + self.idle_bytes + len <= self.max_total_bytes
    }
}

/// Bytes aligned to 64, of no particular content until they are written. Dropping it gives them back.
pub struct Slab {
    memory: Memory,
    len: usize,
}

enum Memory {
    Heap(MutableBuffer),
    /// `None` only while it is dropped.
    Mapped(Option<MmapMut>, Arc<Mutex<Pool>>),
}

impl Slabs {
    /// A pool that keeps at most `max_idle_bytes` that nobody uses.
    pub fn new(max_idle_bytes: u64) -> Self {
        Self::within(u64::MAX, max_idle_bytes)
    }

    /// A pool that keeps at most `max_idle_bytes` that nobody uses, and those only as far as they and what is in use
    /// stay within `max_total_bytes`.
    pub fn within(max_total_bytes: u64, max_idle_bytes: u64) -> Self {
        let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let pool = Pool {
            idle: VecDeque::new(),
            idle_bytes: 0,
            max_idle_bytes: bytes(max_idle_bytes),
            used_bytes: 0,
            max_total_bytes: bytes(max_total_bytes),
        };
        Self { pool: Arc::new(Mutex::new(pool)) }
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
        Ok(Slab { memory: Memory::Mapped(Some(mapped), Arc::clone(&self.pool)), len })
    }

    /// Bytes that wait for their next use.
    pub fn idle_bytes(&self) -> usize {
        self.lock().idle_bytes
    }

    fn take_idle(&self, len: usize) -> Option<MmapMut> {
        let mut pool = self.lock();
        // Not one that is far too long: whoever keeps the slab would keep the rest with it.
        let fits = |slab: &MmapMut| slab.len() >= len && slab.len() - len <= len / 8 + HUGE_PAGE_BYTES / 2;
        let found = pool.idle.iter().rposition(fits)?;
        let mapped = pool.idle.remove(found)?;
        pool.idle_bytes -= mapped.len();
        pool.used_bytes += mapped.len();
        Some(mapped)
    }

    /// A new one, in the place of those that have been idle longest.
    fn map(&self, len: usize) -> io::Result<MmapMut> {
        let mut pool = self.lock();
        let gone = pool.make_room(len, false);
        pool.used_bytes += len;
        drop(pool);
        drop(gone);
        map(len).inspect_err(|_| self.lock().used_bytes -= len)
    }

    fn lock(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
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
        let len = mapped.len();
        let mut pool = home.lock().unwrap_or_else(PoisonError::into_inner);
        pool.used_bytes -= len;
        // The newest is the likeliest to be asked for again.
        let mut gone = if len <= pool.max_idle_bytes { pool.make_room(len, true) } else { Vec::new() };
        if pool.has_room(len, true) {
            pool.idle_bytes += len;
            pool.idle.push_back(mapped);
        } else {
            gone.push(mapped);
        }
        drop(pool);
        drop(gone);
    }
}

#[cfg(test)]
mod tests;
