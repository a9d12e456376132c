//! Settings of the process of a fuzz target.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    panic,
};

/// Maximum size of one allocation, in bytes. The limits of the properties are far below it.
const MAX_ALLOCATION_BYTES: usize = 64 << 20;

/// Allocator that ends the process on an allocation over the limit. The option `-malloc_limit_mb` of libFuzzer has an effect
/// only with a sanitizer.
struct Limited;

fn check(bytes: usize) {
    if bytes > MAX_ALLOCATION_BYTES {
        // A message needs no allocation of that size.
        eprintln!("an allocation of {bytes} bytes exceeds the limit of {MAX_ALLOCATION_BYTES}");
        eprintln!("{}", std::backtrace::Backtrace::force_capture());
        std::process::abort();
    }
}

// SAFETY: every call is forwarded unchanged to the system allocator.
unsafe impl GlobalAlloc for Limited {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        check(layout.size());
        // SAFETY: the caller upholds the contract of `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        check(layout.size());
        // SAFETY: the caller upholds the contract of `GlobalAlloc::alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `GlobalAlloc::dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        check(size);
        // SAFETY: the caller upholds the contract of `GlobalAlloc::realloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static LIMITED: Limited = Limited;

/// Ends the process on a panic of this repository's code, on any thread, even if the panic would be caught. Panics of
/// libraries are silent unless the environment has `FUZZ_SHOW_PANICS`: the crates that decode with them catch these, and a
/// panic that is not caught ends the process later.
pub(crate) fn prepare() {
    let (show, shows_all) = (panic::take_hook(), std::env::var_os("FUZZ_SHOW_PANICS").is_some());
    panic::set_hook(Box::new(move |panic| {
        let is_library =
            |file: &str| ["/registry/", "/rustc/", "/library/"].iter().any(|part| file.contains(part));
        let is_own = !panic.location().is_some_and(|at| is_library(at.file()));
        if is_own || shows_all {
            show(panic);
        }
        if is_own {
            std::process::abort();
        }
    }));
}
