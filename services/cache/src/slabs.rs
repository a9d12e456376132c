//! Pool of large buffers (slabs): aligned, backed by huge pages where available, and reused.
//!
//! The kernel clears new memory page by page, which costs about as much as filling it.

use std::{
    collections::VecDeque,
    io,
    ops::{Deref, DerefMut},
    sync::Arc,
};

use arrow_buffer::MutableBuffer;
use memmap2::{Advice, MmapMut};
use parking_lot::Mutex;

/// Minimum length of a slab with its own memory mapping, in bytes. Shorter slabs come from the heap, because the number
/// of mappings of a process is limited.
const MAPPED_BYTES: usize = 1 << 20;
/// Mapped slabs are rounded up to a multiple of this size, so that values of similar size can reuse them.
const GRAIN_BYTES: usize = 64 << 10;
/// Mapped slabs are rounded up to a multiple of this size if that wastes little memory, because the kernel aligns only
/// such mappings for huge pages.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Pool of slabs. Cheap to clone; clones share the pool.
#[derive(Clone)]
pub struct Slabs {
    pool: Arc<Mutex<Pool>>,
}

/// Mapped slabs. Only the size of those in use is tracked.
struct Pool {
    /// Free slabs, in the order in which they were released.
    free: VecDeque<MmapMut>,
    free_bytes: usize,
    max_free_bytes: usize,
    used_bytes: usize,
    max_total_bytes: usize,
}

impl Pool {
    /// Removes free slabs, the least recently used first, until another slab of `len` bytes (in use or free) is within
    /// the limits. Returns the removed slabs, which the caller drops outside of the lock.
    fn make_room(&mut self, len: usize, is_free: bool) -> Vec<MmapMut> {
        let mut removed = Vec::new();
        while !self.has_room(len, is_free)
            && let Some(oldest) = self.free.pop_front()
        {
            self.free_bytes -= oldest.len();
            removed.push(oldest);
        }
        removed
    }

    fn has_room(&self, len: usize, is_free: bool) -> bool {
        let free_bytes = self.free_bytes + if is_free { len } else { 0 };
        free_bytes <= self.max_free_bytes && self.used_bytes + self.free_bytes + len <= self.max_total_bytes
    }
}

/// Buffer aligned to 64 bytes, with unspecified contents. Dropping it returns it to its pool.
pub struct Slab {
    memory: Memory,
    len: usize,
}

enum Memory {
    Heap(MutableBuffer),
    /// The mapping is `None` only during drop.
    Mapped(Option<MmapMut>, Arc<Mutex<Pool>>),
}

impl Slabs {
    /// Creates a pool with at most `max_free_bytes` of free slabs.
    pub fn new(max_free_bytes: u64) -> Self {
        Self::within(u64::MAX, max_free_bytes)
    }

    /// Creates a pool with at most `max_free_bytes` of free slabs. Free slabs are also released if they and the slabs
    /// in use exceed `max_total_bytes`.
    pub fn within(max_total_bytes: u64, max_free_bytes: u64) -> Self {
        let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let pool = Pool {
            free: VecDeque::new(),
            free_bytes: 0,
            max_free_bytes: bytes(max_free_bytes),
            used_bytes: 0,
            max_total_bytes: bytes(max_total_bytes),
        };
        Self { pool: Arc::new(Mutex::new(pool)) }
    }

    /// Returns a slab of `len` bytes. Of the free slabs that are long enough, the most recently released is reused,
    /// because it is the most likely to be in the CPU cache. Its contents are unspecified.
    ///
    /// # Errors
    /// If the system is out of memory.
    pub fn take(&self, len: usize) -> io::Result<Slab> {
        if len < MAPPED_BYTES {
            return Ok(Slab { memory: Memory::Heap(MutableBuffer::from_len_zeroed(len)), len });
        }
        let mapped = match self.take_free(len) {
            Some(mapped) => mapped,
            None => self.map(mapped_len(len))?,
        };
        Ok(Slab { memory: Memory::Mapped(Some(mapped), Arc::clone(&self.pool)), len })
    }

    /// Size in bytes of all free slabs.
    pub fn free_bytes(&self) -> usize {
        self.pool.lock().free_bytes
    }

    fn take_free(&self, len: usize) -> Option<MmapMut> {
        let mut pool = self.pool.lock();
        // A slab that is much too long is not used, because a long-lived value would keep its unused end.
        let fits = |slab: &MmapMut| slab.len() >= len && slab.len() - len <= len / 8 + HUGE_PAGE_BYTES / 2;
        let found = pool.free.iter().rposition(fits)?;
        let mapped = pool.free.remove(found)?;
        pool.free_bytes -= mapped.len();
        pool.used_bytes += mapped.len();
        Some(mapped)
    }

    /// Maps a new slab. Free slabs are released if the total size would exceed the limit.
    fn map(&self, len: usize) -> io::Result<MmapMut> {
        let mut pool = self.pool.lock();
        let removed = pool.make_room(len, false);
        pool.used_bytes += len;
        drop(pool);
        drop(removed);
        map(len).inspect_err(|_| self.pool.lock().used_bytes -= len)
    }
}

fn mapped_len(len: usize) -> usize {
    let huge = len.next_multiple_of(HUGE_PAGE_BYTES);
    if huge - len <= len / 8 { huge } else { len.next_multiple_of(GRAIN_BYTES) }
}

fn map(len: usize) -> io::Result<MmapMut> {
    let mapped = MmapMut::map_anon(len)?;
    // Huge pages are optional.
    drop(mapped.advise(Advice::HugePage));
    Ok(mapped)
}

impl Slab {
    /// Size of the slab's memory in bytes, including its unused end.
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
            Memory::Mapped(mapped, _) => &mapped.as_ref().expect("the mapping exists until drop")[..self.len],
        }
    }
}

impl DerefMut for Slab {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Heap(buffer) => buffer.as_slice_mut(),
            Memory::Mapped(mapped, _) => {
                &mut mapped.as_mut().expect("the mapping exists until drop")[..self.len]
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
        let mut pool = home.lock();
        pool.used_bytes -= len;
        // The most recently released slab is the most likely to be requested again.
        let mut removed = if len <= pool.max_free_bytes { pool.make_room(len, true) } else { Vec::new() };
        if pool.has_room(len, true) {
            pool.free_bytes += len;
            pool.free.push_back(mapped);
        } else {
            removed.push(mapped);
        }
        drop(pool);
        drop(removed);
    }
}

#[cfg(test)]
mod tests;
