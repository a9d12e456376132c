//! Selection of the job records that are removed when there are too many.

use std::collections::{BTreeMap, BinaryHeap};

/// Returns the positions of the records to remove, so that `max_records` remain. `datasets` are those of the records, the most
/// recently written record first; `None` for damaged records, which count as records of one dataset.
///
/// The oldest record of the dataset with the most records is removed first, so that the records of one dataset do not displace those
/// of datasets with fewer records.
pub(super) fn surplus(datasets: &[Option<&str>], max_records: usize) -> Vec<usize> {
    let excess = datasets.len().saturating_sub(max_records);
    if excess == 0 {
        return Vec::new();
    }
    // Positions of the records of each dataset, the oldest last.
    let mut positions: BTreeMap<Option<&str>, Vec<usize>> = BTreeMap::new();
    for (position, dataset) in datasets.iter().enumerate() {
        positions.entry(*dataset).or_default().push(position);
    }
    // Among datasets with equally many records, the one with the oldest record is first.
    let ranked = |positions: Vec<usize>| (positions.len(), positions.last().copied(), positions);
    let mut largest: BinaryHeap<_> = positions.into_values().map(ranked).collect();
    let mut removed = Vec::with_capacity(excess);
    while removed.len() < excess
        && let Some((_, _, mut positions)) = largest.pop()
    {
        removed.extend(positions.pop());
        largest.push(ranked(positions));
    }
    removed
}

#[cfg(test)]
mod tests {
    use super::*;

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
