//! Settings of mimalloc.

use std::ffi::{c_int, c_long};

/// `mi_option_arena_eager_commit` and `mi_option_purge_delay` of mimalloc 3. The Rust bindings do not name them.
const ARENA_EAGER_COMMIT: c_int = 4;
const PURGE_DELAY: c_int = 15;

/// Time after which freed pages return to the operating system, in milliseconds. Buffers of batches are reused within this time,
/// so their pages stay mapped. Without a delay, a stream takes twice as long; with mimalloc's default of 1 s, a server with little cache takes up to
/// twice the memory (benchmark: `forebay-load soak`).
const PURGE_DELAY_MILLISECONDS: c_long = 100;

/// Sets the defaults of mimalloc. The environment variables `MIMALLOC_PURGE_DELAY` and `MIMALLOC_ARENA_EAGER_COMMIT` have
/// precedence.
#[allow(unsafe_code, reason = "the bindings are of C")]
pub(crate) fn configure() {
    // SAFETY: both calls only store a number, and no other thread runs yet.
    unsafe {
        libmimalloc_sys::mi_option_set_default(ARENA_EAGER_COMMIT, 0);
        libmimalloc_sys::mi_option_set_default(PURGE_DELAY, PURGE_DELAY_MILLISECONDS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_the_options_are_those_of_the_linked_mimalloc() {
        // SAFETY: the calls only read numbers.
        #[allow(unsafe_code, reason = "the bindings are of C")]
        let (eager, delay) = unsafe {
            (libmimalloc_sys::mi_option_get(ARENA_EAGER_COMMIT), libmimalloc_sys::mi_option_get(PURGE_DELAY))
        };
        assert_eq!((eager, delay), (2, 1000), "defaults of mimalloc 3; the test runs without `configure`");
    }
}
