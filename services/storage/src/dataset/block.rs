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

/// Maximum decoded size of a block of several row groups, in bytes. A constant like [`BLOCK_ROWS`]; larger blocks exceed the default maximum
/// size of a block.
pub(crate) const BLOCK_BYTES: u64 = 4 << 30;

/// Maximum sizes of a block of several row groups.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JoinLimits {
    pub(crate) rows: u32,
    pub(crate) bytes: u64,
}

/// Groups the row groups of one file, given by their row counts and sizes in bytes, into ranges within `limits`. A larger row
/// group becomes a range of its own. Empty row groups are merged into a neighbouring range.
///
/// Returns each range with its number of rows.
pub(crate) fn join(groups: impl Iterator<Item = (u32, u64)>, limits: JoinLimits) -> Vec<(Range<u32>, u32)> {
    let mut blocks: Vec<(Range<u32>, u32)> = Vec::new();
    let mut block_bytes = 0_u64;
    for (group, (rows, bytes)) in groups.enumerate() {
        let group = group as u32;
        let bytes = if rows == 0 { 0 } else { bytes };
        let joined_bytes = block_bytes.saturating_add(bytes);
        match blocks.last_mut() {
            Some((range, sum))
                if sum.checked_add(rows).is_some_and(|sum| sum <= limits.rows)
                    && (joined_bytes <= limits.bytes || *sum == 0 || rows == 0) =>
            {
                range.end = group + 1;
                *sum += rows;
                block_bytes = joined_bytes;
            }
            _ => {
                blocks.push((group..group + 1, rows));
                block_bytes = bytes;
            }
        }
    }
    blocks.retain(|(_, rows)| *rows > 0);
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Joins row groups without a limit of their sizes.
    fn join(rows: &[u32], limit: u32) -> Vec<(Range<u32>, u32)> {
        let limits = JoinLimits { rows: limit, bytes: u64::MAX };
        super::join(rows.iter().map(|rows| (*rows, u64::from(*rows))), limits)
    }

    #[test]
    fn row_groups_are_joined_up_to_a_size() {
        let groups = |sizes: &[(u32, u64)]| {
            let limits = JoinLimits { rows: 100, bytes: 10 };
            super::join(sizes.iter().copied(), limits)
        };
        assert_eq!(groups(&[(1, 5), (1, 5), (1, 1)]), [(0..2, 2), (2..3, 1)]);
        assert_eq!(groups(&[(1, 50), (1, 1), (1, 9), (1, 1)]), [(0..1, 1), (1..3, 2), (3..4, 1)]);
        assert_eq!(groups(&[(1, 10), (0, 5), (1, u64::MAX), (0, 1)]), [(0..2, 1), (2..4, 1)]);
        assert_eq!(groups(&[(0, 5), (1, 10)]), [(0..2, 1)]);
    }

    #[test]
    fn joins_of_rows_of_up_to_256_kib_are_those_of_rows_alone() {
        let rows = [500_u32, 300, 0, 4000, 9000, 2000, 600, 20_000, 1, 8000, 8384];
        let with_bytes = |row_bytes: u64| {
            let groups = rows.iter().map(|rows| (*rows, u64::from(*rows) * row_bytes));
            super::join(groups, JoinLimits { rows: BLOCK_ROWS, bytes: BLOCK_BYTES })
        };
        let by_rows = join(&rows, BLOCK_ROWS);
        assert_eq!(with_bytes(256 << 10), by_rows);
        assert_ne!(with_bytes(300 << 10), by_rows);
    }

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
