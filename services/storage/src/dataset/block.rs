//! Blocks, the unit of order: one row group, or several small consecutive row groups of one file.

use std::ops::Range;

/// Maximum number of rows in a block of several row groups. A constant rather than a setting, because the order of
/// existing tickets depends on it.
pub const BLOCK_ROWS: u32 = 16_384;

/// Consecutive row groups of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Index of the file in [`Snapshot::files`](crate::Snapshot::files).
    pub file: u32,
    /// Indices of the row groups in the file.
    pub row_groups: Range<u32>,
    /// Number of rows in all row groups.
    pub rows: u32,
    /// Number of rows in all earlier blocks of the snapshot.
    pub first_row: u64,
}

/// Groups the row groups of one file, given by their row counts, into ranges of at most `limit` rows. A larger row
/// group becomes a range of its own. Empty row groups are merged into a neighbouring range.
///
/// Returns each range with its number of rows.
pub(crate) fn join(rows: &[u32], limit: u32) -> Vec<(Range<u32>, u32)> {
    let mut blocks: Vec<(Range<u32>, u32)> = Vec::new();
    for (group, rows) in rows.iter().copied().enumerate() {
        let group = group as u32;
        match blocks.last_mut() {
            Some((range, sum)) if sum.checked_add(rows).is_some_and(|sum| sum <= limit) => {
                range.end = group + 1;
                *sum += rows;
            }
            _ => blocks.push((group..group + 1, rows)),
        }
    }
    blocks.retain(|(_, rows)| *rows > 0);
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_row_groups_of_a_file_are_joined_up_to_the_limit() {
        assert_eq!(join(&[], 10), []);
        assert_eq!(join(&[4, 4, 4], 10), [(0..2, 8), (2..3, 4)]);
        assert_eq!(join(&[5, 5, 1], 10), [(0..2, 10), (2..3, 1)]);
        assert_eq!(join(&[100, 1, 2, 100], 10), [(0..1, 100), (1..3, 3), (3..4, 100)]);
        assert_eq!(join(&[u32::MAX, 1], 10), [(0..1, u32::MAX), (1..2, 1)]);
    }

    #[test]
    fn no_block_is_empty() {
        assert_eq!(join(&[0, 0], 10), []);
        assert_eq!(join(&[0, 3, 0], 10), [(0..3, 3)]);
        assert_eq!(join(&[100, 0, 3], 10), [(0..1, 100), (1..3, 3)]);
    }
}
