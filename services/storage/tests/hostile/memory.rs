//! Measured memory of a read: the largest allocation, and the peak of all of them together.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::atomic::{AtomicIsize, AtomicUsize, Ordering},
};

use tokio::runtime::Builder;

/// Memory of the threads of one read.
struct Meter {
    /// Allocated and not yet freed, in bytes. Negative while memory from before the read is freed.
    live: AtomicIsize,
    peak: AtomicIsize,
    largest: AtomicUsize,
}

impl Meter {
    fn allocated(&self, bytes: usize) {
        self.largest.fetch_max(bytes, Ordering::Relaxed);
        let live = self.live.fetch_add(bytes as isize, Ordering::Relaxed) + bytes as isize;
        self.peak.fetch_max(live, Ordering::Relaxed);
    }

    fn freed(&self, bytes: usize) {
        self.live.fetch_sub(bytes as isize, Ordering::Relaxed);
    }
}

/// Allocator that reports to the meter of the thread.
struct Watch;

thread_local! {
    static METER: Cell<Option<&'static Meter>> = const { Cell::new(None) };
    /// Meter of the reads of this thread, one after the other.
    static OWN: &'static Meter = Box::leak(Box::new(Meter {
        live: AtomicIsize::new(0),
        peak: AtomicIsize::new(0),
        largest: AtomicUsize::new(0),
    }));
}

fn report(report: impl FnOnce(&Meter)) {
    if let Some(meter) = METER.get() {
        report(meter);
    }
}

// SAFETY: every call is forwarded unchanged to the system allocator.
unsafe impl GlobalAlloc for Watch {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        report(|meter| meter.allocated(layout.size()));
        // SAFETY: the caller upholds the contract of `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        report(|meter| meter.freed(layout.size()));
        // SAFETY: the caller upholds the contract of `GlobalAlloc::dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both exist while the values are copied.
        report(|meter| {
            meter.allocated(size);
            meter.freed(layout.size());
        });
        // SAFETY: the caller upholds the contract of `GlobalAlloc::realloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static WATCH: Watch = Watch;

/// Maximum memory of a read, in bytes.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    /// Largest single allocation.
    pub(crate) largest: usize,
    /// All allocations at one time.
    pub(crate) total: usize,
}

/// Runs `read` on a runtime of its own. Asserts that the memory of its threads is within `bounds`.
#[track_caller]
pub(crate) fn run_within<T>(bounds: Bounds, read: impl Future<Output = T>) -> T {
    let meter = OWN.with(|meter| *meter);
    for counter in [&meter.live, &meter.peak] {
        counter.store(0, Ordering::Relaxed);
    }
    meter.largest.store(0, Ordering::Relaxed);
    let watch = move || METER.set(Some(meter));
    let runtime = Builder::new_current_thread().enable_all().on_thread_start(watch).build().unwrap();
    watch();
    let outcome = runtime.block_on(read);
    METER.set(None);
    drop(runtime);
    let (largest, total) = (meter.largest.load(Ordering::Relaxed), meter.peak.load(Ordering::Relaxed));
    assert!(largest <= bounds.largest, "an allocation of {largest} bytes");
    assert!(total <= bounds.total as isize, "{total} bytes in memory at once");
    outcome
}

#[test]
fn memory_of_all_threads_of_a_read_is_counted() {
    let bounds = Bounds { largest: 3000, total: 1 << 20 };
    let read = |first: usize, second: usize| async move {
        let first = tokio::task::spawn_blocking(move || vec![1_u8; first]).await.unwrap();
        let second = vec![1_u8; second];
        first.len() + second.len()
    };
    assert_eq!(run_within(Bounds { largest: 1 << 20, ..bounds }, read(500_000, 400_000)), 900_000);
    for (first, second) in [(600_000, 500_000), (2 << 20, 0)] {
        let run = || run_within(Bounds { largest: 1 << 22, ..bounds }, read(first, second));
        assert!(std::panic::catch_unwind(run).is_err(), "{first} and {second} bytes");
    }
    let run = || run_within(bounds, read(500_000, 0));
    assert!(std::panic::catch_unwind(run).is_err());
}
