//! Rows of a block that a filter keeps, and their positions among each other.

use arrow_buffer::BooleanBuffer;

/// Number of rows per stored count.
const STEP: usize = 512;

/// Rows of one block that a filter keeps.
#[derive(Debug)]
pub(crate) struct KeptRows {
    rows: BooleanBuffer,
    /// Number of kept rows before each multiple of `STEP`.
    counts: Vec<u32>,
}

impl KeptRows {
    pub(super) fn new(rows: BooleanBuffer) -> Self {
        let mut before = 0;
        let counts = (0..rows.len()).step_by(STEP).map(|start| {
            let count = before;
            before += rows.slice(start, STEP.min(rows.len() - start)).count_set_bits() as u32;
            count
        });
        Self { counts: counts.collect(), rows }
    }

    /// Position of `row` among the kept rows; `None` if the filter drops it or the block has no such row.
    pub(super) fn position(&self, row: usize) -> Option<u32> {
        if row >= self.rows.len() || !self.rows.value(row) {
            return None;
        }
        let start = row / STEP * STEP;
        Some(self.counts[row / STEP] + self.rows.slice(start, row - start).count_set_bits() as u32)
    }

    /// Estimated size in bytes for `blocks` blocks with `rows` rows together.
    pub(crate) fn expected_bytes(rows: u64, blocks: u64) -> u64 {
        let counts = rows / STEP as u64 + blocks;
        rows / 8 + blocks + counts * size_of::<u32>() as u64
    }

    /// Size in bytes.
    pub(super) fn bytes(&self) -> u64 {
        (self.rows.len().div_ceil(8) + size_of_val(&self.counts[..])) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_the_kept_rows_before() {
        let is_kept = |row: &usize| row % 3 == 1 || (700..900).contains(row);
        let kept = KeptRows::new((0..2000).map(|row| is_kept(&row)).collect());
        let expected: Vec<usize> = (0..2000).filter(is_kept).collect();
        for row in 0..2001 {
            let position = expected.iter().position(|kept| *kept == row).map(|position| position as u32);
            assert_eq!(kept.position(row), position, "{row}");
        }
    }
}
