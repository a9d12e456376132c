use proptest::prelude::*;

use super::*;

fn cut(lengths: &[u32], max_rows: u64) -> Option<Packs> {
    let rows = lengths.iter().map(|rows| u64::from(*rows)).sum();
    let longest = lengths.iter().copied().max().unwrap_or(0);
    let count = Packs::count(rows, longest.into(), max_rows)?;
    Some(Packs::cut(lengths.iter().copied(), rows, count))
}

#[test]
fn groups_of_one_length_fill_their_packs_evenly() {
    let packs = cut(&[20; 1000], 4096).unwrap();
    // 20,000 rows in shares of at most 4,077.
    assert_eq!(packs.len(), 5);
    assert!((0..5).all(|pack| packs.groups(pack..pack + 1) == (pack * 200..(pack + 1) * 200)));
}

#[test]
fn no_rows_give_no_packs_and_few_rows_give_one() {
    assert!(cut(&[], 100).unwrap().is_empty());
    assert_eq!(Packs::count(0, 0, 1), Some(0));
    let packs = cut(&[3, 1, 2], 100).unwrap();
    assert_eq!((packs.len(), packs.groups(0..1)), (1, 0..3));
    assert!(!packs.is_empty());
}

#[test]
fn groups_without_rows_after_the_last_row_join_the_last_pack() {
    let packs = Packs::cut([2, 2, 0, 0], 4, 2);
    assert_eq!((packs.len(), packs.groups(0..1), packs.groups(1..2)), (2, 0..1, 1..4));
}

#[test]
fn a_bound_below_three_times_the_longest_group_is_rejected() {
    assert_eq!(Packs::count(1000, 10, 29), None);
    assert_eq!(Packs::count(1000, 10, 30), Some(48));
    assert_eq!(Packs::count(u64::MAX, u64::MAX, u64::MAX), None);
    assert_eq!(Packs::count(0, 0, 0), None);
    assert_eq!(Packs::count(u64::MAX, 1, 3), Some(u64::MAX / 3));
}

proptest! {
    #[test]
    fn packs_hold_each_group_once_in_order_none_is_empty_and_none_exceeds_the_bound(
        lengths in prop::collection::vec(1u32..40, 0..400), spare in 0u64..200,
    ) {
        let longest = lengths.iter().copied().max().unwrap_or(1);
        let max_rows = u64::from(longest) * 3 + spare;
        let packs = cut(&lengths, max_rows).unwrap();
        let mut next = 0;
        for pack in 0..packs.len() {
            let groups = packs.groups(pack..pack + 1);
            prop_assert_eq!(groups.start, next);
            prop_assert!(!groups.is_empty(), "pack {} of {}", pack, packs.len());
            let rows: u64 = lengths[groups.start as usize..groups.end as usize].iter().map(|rows| u64::from(*rows)).sum();
            prop_assert!(rows <= max_rows, "{} rows", rows);
            next = groups.end;
        }
        prop_assert_eq!(next, lengths.len() as u64);
        prop_assert_eq!(packs.groups(0..packs.len()), 0..lengths.len() as u64);
    }
}
