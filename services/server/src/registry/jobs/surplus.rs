//! Selection of the job records that are removed when there are too many.

use std::collections::{BTreeMap, BinaryHeap};

/// Limits of all records together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    pub(super) records: usize,
    pub(super) bytes: u64,
}

/// Returns the positions of the records to remove, so that the others fit into `room`. `records` have their datasets and their sizes in
/// bytes, the most recently written record first; damaged ones have no dataset and count as records of one.
///
/// The oldest record of the dataset that takes the largest part of the room is removed first, so that the records of one dataset do not
/// displace those of datasets with fewer or smaller records.
pub(super) fn surplus(records: &[(Option<&str>, u64)], room: Room) -> Vec<usize> {
    let mut total = Total::default();
    // Positions of the records of each dataset, the oldest last.
    let mut datasets: BTreeMap<Option<&str>, (Total, Vec<usize>)> = BTreeMap::new();
    for (position, (dataset, bytes)) in records.iter().enumerate() {
        let (of_dataset, positions) = datasets.entry(*dataset).or_default();
        of_dataset.add(*bytes);
        total.add(*bytes);
        positions.push(position);
    }
    // Among datasets with equal parts, the one with the oldest record is first.
    let ranked = |(total, positions): (Total, Vec<usize>)| {
        (total.part(room), positions.last().copied(), (total, positions))
    };
    let mut largest: BinaryHeap<_> = datasets.into_values().map(ranked).collect();
    let mut removed = Vec::new();
    while (total.records > room.records || total.bytes > room.bytes)
        && let Some((_, Some(oldest), (mut of_dataset, mut positions))) = largest.pop()
    {
        positions.pop();
        removed.push(oldest);
        let bytes = records[oldest].1;
        of_dataset.remove(bytes);
        total.remove(bytes);
        largest.push(ranked((of_dataset, positions)));
    }
    removed
}

/// Number and size of records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Total {
    records: usize,
    bytes: u64,
}

impl Total {
    fn add(&mut self, bytes: u64) {
        self.records += 1;
        self.bytes += bytes;
    }

    fn remove(&mut self, bytes: u64) {
        self.records -= 1;
        self.bytes -= bytes;
    }

    /// Part of the room that the records take, by their number or by their size, in millionths.
    fn part(self, room: Room) -> u64 {
        let part = |taken: u64, room: u64| {
            u64::try_from(u128::from(taken) * 1_000_000 / u128::from(room.max(1))).unwrap_or(u64::MAX)
        };
        part(self.records as u64, room.records as u64).max(part(self.bytes, room.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn surplus(datasets: &[Option<&str>], max_records: usize) -> Vec<usize> {
        let records: Vec<_> = datasets.iter().map(|dataset| (*dataset, 1)).collect();
        super::surplus(&records, Room { records: max_records, bytes: 1 << 20 })
    }

    #[test]
    fn large_records_of_one_dataset_remove_no_small_ones_of_others() {
        let mut records = vec![(Some("large"), 1000); 50];
        records.extend([(Some("small"), 10); 100]);
        let removed = super::surplus(&records, Room { records: 1000, bytes: 11_000 });
        assert_eq!(removed, (10..50).rev().collect::<Vec<_>>());
        assert!(super::surplus(&records, Room { records: 150, bytes: 51_000 }).is_empty());
        assert_eq!(super::surplus(&records, Room { records: 0, bytes: 51_000 }).len(), 150);
    }

    #[test]
    fn the_oldest_records_of_the_dataset_with_the_most_are_removed_first() {
        let records = ["a", "a", "b", "a", "a", "c", "b"].map(Some);
        assert!(surplus(&records, 7).is_empty());
        // The dataset a has two more than b, and then one more.
        assert_eq!(surplus(&records, 5), [4, 3]);
        // Both have two, and the oldest one is of b.
        assert_eq!(surplus(&records, 3), [4, 3, 6, 1]);
        assert_eq!(surplus(&records, 0), [4, 3, 6, 1, 5, 2, 0]);
    }

    #[test]
    fn records_of_one_dataset_are_removed_oldest_first() {
        assert_eq!(surplus(&[Some("a"); 5], 3), [4, 3]);
    }

    #[test]
    fn damaged_records_count_as_one_dataset() {
        assert_eq!(surplus(&[Some("a"), None, Some("a"), None, None], 3), [4, 3]);
    }

    #[test]
    fn a_flood_of_one_dataset_removes_no_record_of_others() {
        let mut records = vec![Some("flood"); 100_000];
        records.extend([Some("a"), Some("b"), Some("a")]);
        let removed = surplus(&records, 10_000);
        assert_eq!(removed.len(), 90_003);
        assert!(removed.iter().all(|position| records[*position] == Some("flood")));
    }
}
