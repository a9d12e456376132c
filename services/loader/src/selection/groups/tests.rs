use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, Int64Array, StringArray};
use proptest::prelude::*;

use super::*;

fn runs(keys: &[i64]) -> Runs {
    let mut runs = Runs::builder();
    // Two chunks, as in a decoded block.
    for part in keys.chunks(keys.len().div_ceil(2).max(1)) {
        runs.append(&[Arc::new(Int64Array::from(part.to_vec())) as ArrayRef]).unwrap();
    }
    runs.summary(true)
}

#[test]
fn nulls_are_one_group_and_so_are_equal_nans_but_not_the_two_zeros() {
    let (nan, zero) = (f64::NAN, 0.0);
    let keys = [Some(1.0), None, None, Some(nan), Some(nan), Some(zero), Some(-zero)];
    let names = ["a", "a", "a", "b", "b", "", ""];
    let mut runs = Runs::builder();
    let keys = [
        Arc::new(Float64Array::from(keys.to_vec())) as ArrayRef,
        Arc::new(StringArray::from(names.to_vec())),
    ];
    runs.append(&keys).unwrap();
    assert_eq!(runs.offsets(), [0, 1, 3, 5, 6, 7]);
}

#[test]
fn groups_that_are_inconsistent_with_their_blocks_are_rejected() {
    let groups = |begun: &[u32], heads: &[u32]| Groups {
        begun: begun.into(),
        heads: heads.into(),
        longest: 5,
        lengths: None,
    };
    assert!(groups(&[2, 0, 1], &[0, 3, 1]).fit(&[2, 3, 4]));
    let of = |lengths: &[u32]| {
        let lengths = Some(Arc::new(Lengths::new(lengths.into(), None)));
        Groups { lengths, ..groups(&[2, 0, 1], &[0, 3, 1]) }.fit(&[2, 3, 4])
    };
    assert!(of(&[1, 5, 3]));
    for lengths in [&[1, 5][..], &[1, 4, 4], &[1, 5, 2], &[0, 5, 4], &[1, 5, 3, 0], &[4, 4, 1]] {
        assert!(!of(lengths), "{lengths:?}");
    }
    for (begun, heads) in [
        (&[2, 0][..], &[0, 3][..]),
        (&[2, 0, 1], &[1, 3, 1]),
        (&[3, 0, 1], &[0, 3, 1]),
        (&[2, 0, 1], &[0, 2, 1]),
        (&[2, 0, u32::MAX], &[0, 3, 1]),
        (&[2, 0, 1], &[0, 3]),
        (&[2, 0], &[0, 3, 1]),
    ] {
        assert!(!groups(begun, heads).fit(&[2, 3, 4]), "{begun:?} {heads:?}");
    }
    assert!(
        !groups(&[0, 2, 1], &[0, 1, 1]).fit(&[0, 3, 4]),
        "rows that continue a group need an earlier block in which it begins"
    );
}

#[test]
fn a_group_may_continue_over_several_blocks_and_blocks_without_rows() {
    let groups =
        Groups::joined([runs(&[1, 1]), runs(&[]), runs(&[1, 1]), runs(&[1, 2])].map(Some).into_iter());
    assert_eq!((&*groups.begun, &*groups.heads), (&[1, 0, 0, 1][..], &[0, 0, 2, 1][..]));
    let block_rows = |block, rows| BlockRows { block, rows };
    let first = [block_rows(0, 0..2), block_rows(2, 0..2), block_rows(3, 0..1)];
    assert_eq!(groups.block_rows(0, &[2, 0, 2, 2]), first);
    assert_eq!(groups.block_rows(3, &[2, 0, 2, 2]), [block_rows(3, 1..2)]);
}

proptest! {
    #[test]
    fn joined_groups_are_the_runs_of_all_rows_for_any_blocks(
        keys in prop::collection::vec(0i64..3, 0..60), cuts in prop::collection::vec(0usize..60, 0..8),
    ) {
        let mut ends: Vec<usize> = cuts.into_iter().map(|cut| cut.min(keys.len())).chain([0, keys.len()]).collect();
        ends.sort_unstable();
        let blocks: Vec<&[i64]> = ends.windows(2).map(|ends| &keys[ends[0]..ends[1]]).collect();
        let rows: Vec<u32> = blocks.iter().map(|block| block.len() as u32).collect();
        let groups = Groups::joined(blocks.iter().map(|block| (!block.is_empty()).then(|| runs(block))));
        prop_assert!(groups.fit(&rows));

        let expected: Vec<&[i64]> = keys.chunk_by(|a, b| a == b).collect();
        prop_assert_eq!(groups.count(), expected.len() as u64);
        prop_assert_eq!(groups.longest, expected.iter().map(|group| group.len()).max().unwrap_or(0) as u64);
        let lengths: Vec<u32> = expected.iter().map(|group| group.len() as u32).collect();
        prop_assert_eq!(groups.lengths.as_ref().map_or_else(Vec::new, |known| known.rows.to_vec()), lengths);
        // The rows of all blocks, concatenated, contain each row once and in order.
        let mut found: Vec<i64> = Vec::new();
        for block in 0..blocks.len() as u32 {
            let mut of_block: Vec<i64> = Vec::new();
            for part in groups.block_rows(block, &rows) {
                of_block.extend(&blocks[part.block as usize][part.rows.start as usize..part.rows.end as usize]);
            }
            let begun = of_block.chunk_by(|a, b| a == b).count();
            prop_assert_eq!(begun, groups.begun[block as usize] as usize);
            found.extend(of_block);
        }
        prop_assert_eq!(found, keys);
    }
}
