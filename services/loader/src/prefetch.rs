//! Telling the processor what will be read or written next. The one place in this crate with `unsafe`.

/// Bytes that are on their way into the cache while others are copied (rows of 160 and 512 bytes: half as many or
/// twice as many gain nothing; bench: assembly).
pub(crate) const AHEAD_BYTES: usize = 8192;

const CACHE_LINE: usize = 64;

/// Begins to bring `bytes` into the second-level cache, into which more misses may be under way than into the first
/// (half as fast again), and does not wait for them. The gather reads rows in random order,
/// so that without this each copy waits for the memory by itself.
#[inline(always)]
pub fn prefetch(bytes: &[u8]) {
    let Some(last) = bytes.last() else { return };
    for line in bytes.chunks(CACHE_LINE) {
        prefetch_line(&line[0]);
    }
    // The slice may begin in the middle of a line, and then ends in one more.
    prefetch_line(last);
}

/// ... one value, which lies in one line.
#[inline(always)]
pub fn prefetch_value<T>(value: &T) {
    prefetch_line(value);
}

#[inline(always)]
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "the intrinsic takes a raw pointer")]
fn prefetch_line<T>(of: &T) {
    use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
    // SAFETY: a hint; it reads nothing that the program could see and faults on no address.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(std::ptr::from_ref(of).cast()) };
}

/// Elsewhere the processor finds its own way.
#[inline(always)]
#[cfg(not(target_arch = "x86_64"))]
fn prefetch_line<T>(_: &T) {}
