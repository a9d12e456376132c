//! A range of the rows that a filter keeps, over consecutive chunks.

use std::ops::Range;

/// A range of the kept rows of a block. Columns are computed for these rows only: rows outside of the range, which depend on how the
/// block is divided into chunks, cannot fail.
pub(crate) struct KeptRange {
    range: Range<usize>,
    /// Number of kept rows of the chunks so far.
    at: usize,
}

impl KeptRange {
    pub(crate) fn new(range: Range<u32>) -> Self {
        Self { range: range.start as usize..range.end as usize, at: 0 }
    }

    /// The part of the next `rows` kept rows that is in the range, from the first of them.
    pub(crate) fn next(&mut self, rows: usize) -> Range<usize> {
        let (at, end) = (self.at, self.at + rows);
        self.at = end;
        let [first, last] = [self.range.start, self.range.end].map(|row| row.clamp(at, end) - at);
        first..last
    }

    /// True if no later row is in the range.
    pub(crate) fn has_ended(&self) -> bool {
        self.at >= self.range.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_chunk_has_its_part_of_the_range() {
        for (range, expected) in [
            (0..10, [0..4, 0..4, 0..2]),
            (3..6, [3..4, 0..2, 0..0]),
            (5..5, [4..4, 1..1, 0..0]),
            (4..8, [4..4, 0..4, 0..0]),
            (9..20, [4..4, 4..4, 1..4]),
        ] {
            let mut chunks = KeptRange::new(range.clone());
            let ends: Vec<_> = expected
                .iter()
                .map(|part| {
                    assert_eq!(chunks.next(4), *part, "{range:?}");
                    chunks.has_ended()
                })
                .collect();
            assert_eq!(ends, [4, 8, 12].map(|rows| rows >= range.end), "{range:?}");
        }
    }
}
