//! Columns that cannot be computed for all rows of a block, so that they are not tried again in every epoch.

use std::{collections::HashSet, mem};

use parking_lot::Mutex;

/// Maximum number of failures that are remembered. They take about 4 MiB.
const MAX_REMEMBERED: usize = 1 << 16;

/// A block, and a computed column or a view.
type Key = (u128, u128);

/// The most recent failures. Forgetting one costs a decode, and never changes a value.
#[derive(Default)]
pub(super) struct Failures {
    generations: Mutex<Generations>,
}

/// Two halves of the failures. If the newer one is full, it replaces the older one.
#[derive(Default)]
struct Generations {
    newer: HashSet<Key>,
    older: HashSet<Key>,
}

impl Failures {
    /// Remembers that `what`, a column or a view, cannot be computed for all rows of `block`.
    pub(super) fn note(&self, block: u128, what: u128) {
        let mut generations = self.generations.lock();
        if generations.newer.len() >= MAX_REMEMBERED / 2 {
            generations.older = mem::take(&mut generations.newer);
        }
        generations.newer.insert((block, what));
    }

    /// True if one of `parts`, columns and views, is known to fail for `block`.
    pub(super) fn contain(&self, block: u128, parts: impl IntoIterator<Item = u128>) -> bool {
        let generations = self.generations.lock();
        let is_empty = generations.newer.is_empty() && generations.older.is_empty();
        let is_known = |part| {
            let key = (block, part);
            generations.newer.contains(&key) || generations.older.contains(&key)
        };
        !is_empty && parts.into_iter().any(is_known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limited_number_of_the_most_recent_failures_is_remembered() {
        let failures = Failures::default();
        assert!(!failures.contain(1, [1]));
        let count = 3 * MAX_REMEMBERED as u128;
        for block in 0..count {
            failures.note(block, 7);
        }
        assert!(failures.contain(count - 1, [6, 7]) && !failures.contain(count - 1, [6]));
        assert!((count - MAX_REMEMBERED as u128 / 2..count).all(|block| failures.contain(block, [7])));
        let remembered = (0..count).filter(|block| failures.contain(*block, [7])).count();
        assert!(remembered <= MAX_REMEMBERED, "{remembered}");
    }
}
