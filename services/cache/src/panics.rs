//! Panics of decoders, which malformed input can cause.

use std::{
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind},
    thread,
};

thread_local! {
    static EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// Runs code of a decoder that can panic on malformed input. Such a panic is an error of the input, not a defect. A panic hook that calls
/// [`is_panic_expected`] can leave it out of the log.
///
/// # Errors
/// Returns the payload of the panic.
pub fn catch_expected_panic<T>(run: impl FnOnce() -> T) -> thread::Result<T> {
    let before = EXPECTED.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(run));
    EXPECTED.set(before);
    outcome
}

/// Returns true while the current thread runs code of [`catch_expected_panic`].
pub fn is_panic_expected() -> bool {
    // A thread that ends has no flag anymore.
    EXPECTED.try_with(Cell::get).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_expected_only_within_the_call_that_catches_it() {
        assert!(!is_panic_expected());
        let outcome = catch_expected_panic(|| {
            let inner = catch_expected_panic(|| -> bool { panic!("malformed") });
            assert_eq!(inner.unwrap_err().downcast_ref::<&str>(), Some(&"malformed"));
            let other_thread = thread::spawn(is_panic_expected).join().unwrap();
            (is_panic_expected(), other_thread)
        });
        assert_eq!(outcome.unwrap(), (true, false));
        assert!(!is_panic_expected());
    }
}
