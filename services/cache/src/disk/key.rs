//! Keys of the ordered maps of the index.

use std::cmp::Ordering;

/// Key of an ordered map. Compares like `T`; tests count the comparisons to bound the work of an operation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Key<T>(pub(crate) T);

impl<T: Ord> Ord for Key<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        #[cfg(test)]
        comparisons::count();
        self.0.cmp(&other.0)
    }
}

impl<T: Ord> PartialOrd for Key<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T: Ord> PartialEq for Key<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<T: Ord> Eq for Key<T> {}

/// Number of comparisons of keys on the current thread.
#[cfg(test)]
pub(crate) mod comparisons {
    use std::cell::Cell;

    thread_local! {
        static COUNT: Cell<u64> = const { Cell::new(0) };
    }

    pub(super) fn count() {
        COUNT.set(COUNT.get() + 1);
    }

    /// Calls `operation` and returns its result and the number of comparisons.
    pub(crate) fn of<R>(operation: impl FnOnce() -> R) -> (R, u64) {
        let before = COUNT.get();
        let result = operation();
        (result, COUNT.get() - before)
    }
}
