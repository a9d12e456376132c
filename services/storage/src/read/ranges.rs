//! Byte ranges: coalescing and splitting of reads, and sparse files assembled from their results.

use std::ops::Range;

use bytes::{Buf, Bytes, buf};
use parquet::{
    errors::ParquetError,
    file::reader::{ChunkReader, Length},
};

/// Merges ranges so that fewer requests read them. The result is sorted and disjoint, and covers every range.
///
/// Ranges that overlap or touch are always merged. Other ranges are merged if at most `max_gap` bytes are between them,
/// the smallest gaps first. Merged ranges include their gaps, which are fetched and stay in memory. All merged gaps together are at most
/// as long as the ranges. Therefore the result has at most twice the requested bytes.
pub(crate) fn coalesce(ranges: Vec<Range<u64>>, max_gap: u64) -> Vec<Range<u64>> {
    let disjoint = union(ranges);
    let gap = |index: usize| disjoint[index].start - disjoint[index - 1].end;
    let mut gaps: Vec<usize> = (1..disjoint.len()).filter(|index| gap(*index) <= max_gap).collect();
    gaps.sort_by_key(|index| gap(*index));

    let mut spare: u64 = disjoint.iter().map(|range| range.end - range.start).sum();
    let mut is_bridged = vec![false; disjoint.len()];
    for index in gaps {
        let Some(rest) = spare.checked_sub(gap(index)) else { break };
        spare = rest;
        is_bridged[index] = true;
    }

    let mut merged: Vec<Range<u64>> = Vec::new();
    for (range, is_bridged) in disjoint.iter().zip(is_bridged) {
        match merged.last_mut() {
            Some(last) if is_bridged => last.end = range.end,
            _ => merged.push(range.clone()),
        }
    }
    merged
}

/// Merges ranges that overlap or touch. The result is sorted and disjoint.
fn union(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

/// Splits a range into parts of nearly equal length, at most `limit` bytes each.
pub(crate) fn split(range: Range<u64>, limit: u64) -> impl Iterator<Item = Range<u64>> {
    let length = range.end - range.start;
    let parts = length.div_ceil(limit.max(1)).max(1);
    let cut =
        move |part: u64| range.start + (u128::from(length) * u128::from(part) / u128::from(parts)) as u64;
    (0..parts).map(move |part| cut(part)..cut(part + 1))
}

/// Concatenates the parts of a range. A single part is not copied.
pub(crate) fn concat(mut parts: Vec<Bytes>) -> Bytes {
    if parts.len() == 1 {
        return parts.remove(0);
    }
    parts.concat().into()
}

/// File of which only some ranges were fetched.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sparse {
    /// Size of the whole file in bytes.
    pub(crate) length: u64,
    /// Offset and bytes of each fetched range, sorted and disjoint.
    pub(crate) parts: Vec<(u64, Bytes)>,
}

impl Sparse {
    /// Returns the fetched bytes from `start` to the end of its range; `None` if `start` was not fetched.
    fn from(&self, start: u64) -> Option<Bytes> {
        let after = self.parts.partition_point(|(offset, _)| *offset <= start);
        let (offset, bytes) = self.parts.get(after.checked_sub(1)?)?;
        let skip = usize::try_from(start - offset).ok()?;
        (skip <= bytes.len()).then(|| bytes.slice(skip..))
    }

    /// Returns the bytes of `range`; `None` if it was not fetched completely.
    pub(crate) fn get(&self, range: Range<u64>) -> Option<Bytes> {
        let bytes = self.from(range.start)?;
        let length = usize::try_from(range.end.checked_sub(range.start)?).ok()?;
        (length <= bytes.len()).then(|| bytes.slice(..length))
    }

    /// Number of fetched bytes.
    pub(crate) fn fetched(&self) -> usize {
        self.parts.iter().map(|(_, bytes)| bytes.len()).sum()
    }
}

impl Length for Sparse {
    fn len(&self) -> u64 {
        self.length
    }
}

impl ChunkReader for Sparse {
    type T = buf::Reader<Bytes>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        let bytes = self.from(start).ok_or_else(|| outside(start, 0))?;
        Ok(bytes.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        let end = start.checked_add(length as u64);
        end.and_then(|end| self.get(start..end)).ok_or_else(|| outside(start, length))
    }
}

fn outside(start: u64, length: usize) -> ParquetError {
    ParquetError::EOF(format!("{length} bytes at offset {start} are outside of the fetched column chunks"))
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "lists of one range are intended")]
mod tests {
    use proptest::{collection, prelude::*};

    use super::*;

    #[test]
    fn near_ranges_are_merged_and_distant_ones_are_not() {
        assert_eq!(coalesce(vec![], 10), []);
        assert_eq!(coalesce(vec![50..60, 0..10, 20..30], 10), [0..30, 50..60]);
        assert_eq!(coalesce(vec![0..100, 10..20], 0), [0..100]);
        assert_eq!(coalesce(vec![0..10, 10..20, 21..30], 0), [0..20, 21..30]);
    }

    #[test]
    fn the_smallest_gaps_are_read_until_they_are_as_long_as_the_ranges() {
        // Ranges of 40 bytes, with gaps of 30, 15 and 20 bytes.
        assert_eq!(coalesce(vec![0..10, 40..50, 65..75, 95..105], 100), [0..10, 40..105]);
        assert_eq!(coalesce(vec![0..10, 20..30], 10), [0..30]);
        assert_eq!(coalesce(vec![0..10, 31..41], 100), [0..10, 31..41]);
    }

    #[test]
    fn narrow_columns_between_embeddings_do_not_read_the_embeddings() {
        const KIB: u64 = 1 << 10;
        let column = |index: u64| index * 1025 * KIB..index * 1025 * KIB + KIB;
        let columns: Vec<Range<u64>> = (0..1000).map(column).collect();
        assert_eq!(coalesce(columns.clone(), 1024 * KIB), columns);
    }

    /// Ranges with lengths and gaps of different magnitudes, in any order, some of them overlapping.
    fn any_ranges() -> impl Strategy<Value = Vec<Range<u64>>> {
        let range = (0_u64..1 << 16, 0_u32..14, 0_u64..1 << 14);
        let range = range.prop_map(|(start, magnitude, length)| start..start + (length >> magnitude));
        collection::vec(range, 0..50)
    }

    proptest! {
        #[test]
        fn every_range_is_read_and_at_most_as_many_bytes_again(ranges in any_ranges(), max_gap in 0_u64..1 << 15) {
            let merged = coalesce(ranges.clone(), max_gap);
            for range in &ranges {
                let covering = merged.iter().filter(|read| read.start <= range.start && range.end <= read.end);
                prop_assert_eq!(covering.count(), 1, "{:?} in {:?}", range, merged);
            }
            prop_assert!(merged.windows(2).all(|pair| pair[0].end < pair[1].start), "{:?}", merged);
            let bytes = |ranges: &[Range<u64>]| ranges.iter().map(|range| range.end - range.start).sum::<u64>();
            prop_assert!(bytes(&merged) <= 2 * bytes(&union(ranges)));
        }
    }

    #[test]
    fn long_ranges_are_split_into_adjacent_parts() {
        assert_eq!(split(5..15, 10).collect::<Vec<_>>(), [5..15]);
        assert_eq!(split(0..10, 4).collect::<Vec<_>>(), [0..3, 3..6, 6..10]);
        assert_eq!(split(7..7, 4).collect::<Vec<_>>(), [7..7]);
    }

    #[test]
    fn only_fetched_bytes_are_returned() {
        let parts = vec![(10, Bytes::from_static(b"abc")), (20, Bytes::from_static(b"xyz"))];
        let sparse = Sparse { length: 30, parts };
        assert_eq!(sparse.get(10..13).unwrap(), "abc");
        assert_eq!(sparse.get(21..23).unwrap(), "yz");
        for range in [9..10, 10..14, 13..14, 0..30, 24..25] {
            assert!(sparse.get(range.clone()).is_none(), "{range:?}");
        }
        assert!(sparse.get_read(5).is_err());
        assert!(sparse.get_bytes(u64::MAX, 2).is_err());
    }
}
