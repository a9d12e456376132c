use proptest::prelude::*;

use super::*;
use crate::testing::{block, cases};
use crate::{Location, Remainder};

/// Blocks, as lists of (block, first item, items) of each partition.
fn lists(items_per_block: &[u32], count: u32) -> Vec<Vec<(u32, u32, u32)>> {
    let partitions = Partitions::new(items_per_block, count);
    let list = |partition| partitions.fragments(partition).iter();
    (0..count)
        .map(|partition| list(partition).map(|own| (own.block, own.first, own.items)).collect())
        .collect()
}

fn located(order: &EpochOrder) -> Vec<Location> {
    let mut locations = Vec::new();
    order.locate_range(0..order.items(), &mut locations);
    locations
}

fn remainder() -> impl Strategy<Value = Remainder> {
    prop_oneof![Just(Remainder::Short), Just(Remainder::Drop), Just(Remainder::Pad)]
}

fn shuffle() -> impl Strategy<Value = Shuffle> {
    let window = (prop_oneof![0u64..4, 4u64..3000, Just(u64::MAX)], any::<bool>())
        .prop_map(|(rows, keep_block_order)| Shuffle::Window { rows, keep_block_order });
    prop_oneof![4 => window, 1 => Just(Shuffle::Global)]
}

#[test]
fn blocks_are_dealt_to_the_partition_with_the_fewest_items_and_cut_from_the_end() {
    // Dealt: 10 and 2, 5 and 4; then each partition has 21 / 2 items.
    assert_eq!(lists(&[10, 5, 4, 2], 2), [vec![(0, 0, 10)], vec![(1, 0, 5), (2, 0, 4), (3, 0, 2)]]);
    // Dealt: 12 and 5. The second misses 3, the first gives its last ones.
    assert_eq!(lists(&[12, 5], 2), [vec![(0, 0, 8)], vec![(0, 8, 4), (1, 0, 5)]]);
    // The third misses most. It takes the last items of the first partition, then those of the second.
    assert_eq!(
        lists(&[9, 9, 0, 0], 3),
        [vec![(0, 0, 6)], vec![(1, 0, 6)], vec![(0, 6, 3), (1, 6, 3), (2, 0, 0), (3, 0, 0)]]
    );
}

#[test]
fn a_partition_can_give_a_whole_block() {
    // Of 14 items, the first partition has 4. It is dealt block 3 in excess, and the others take an item of it each.
    assert_eq!(
        lists(&[4, 4, 4, 2, 0], 3),
        [vec![(0, 0, 4)], vec![(1, 0, 4), (3, 1, 1), (4, 0, 0)], vec![(2, 0, 4), (3, 0, 1)]]
    );
}

#[test]
fn nothing_can_be_divided() {
    assert_eq!(lists(&[], 3), [vec![], vec![], vec![]]);
    assert_eq!(Partitions::new(&[0, 0], 0).count(), 1);
    assert_eq!(Partitions::new(&[1], 3).items_of(2), 1);
    assert_eq!(Partitions::new(&[1], 3).items_of(0), 0);
}

#[test]
fn the_largest_numbers_do_not_overflow() {
    let partitions = Partitions::new(&[u32::MAX; 5], 4096);
    let sizes: Vec<u64> = (0..4096).map(|partition| partitions.items_of(partition)).collect();
    assert_eq!(sizes.iter().sum::<u64>(), 5 * u64::from(u32::MAX));
    assert_eq!(partitions.share(u64::MAX, 4095).end, u64::MAX);
    assert_eq!(partitions.of_rank(65_535, 65_536), 4095..4096);
    let steps = Steps::new(partitions.items(), 1 << 20, 1 << 16, Remainder::Short).unwrap();
    assert_eq!(partitions.positions(&steps, u64::MAX, 0, 7), partitions.items_of(7)..partitions.items_of(7));
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn every_item_is_in_exactly_one_partition_and_sizes_are_exact(
        blocks in prop::collection::vec(block(), 0..60), count in 1u32..20,
        shuffle in shuffle(), seed in 0u64..3, epoch in 0u64..3,
    ) {
        let partitions = Partitions::new(&blocks, count);
        let items = partitions.items();
        let (mut locations, mut cut) = (Vec::new(), 0);
        for partition in 0..count {
            let order = partitions.epoch(partition, shuffle, seed, epoch);
            let (k, n) = (u64::from(partition), u64::from(count));
            prop_assert_eq!(order.items(), (k + 1) * items / n - k * items / n);
            prop_assert_eq!(order.items(), partitions.items_of(partition));
            let fragments = partitions.fragments(partition);
            prop_assert!(fragments.is_sorted_by(|one, next| one.block < next.block));
            cut += fragments.iter().filter(|own| own.first > 0).count();
            locations.extend(located(&order));
        }
        prop_assert!(cut <= 2 * count as usize);
        locations.sort_unstable();
        let of_block = |(block, &items): (usize, &u32)| {
            (0..items).map(move |item| Location { block: block as u32, item })
        };
        prop_assert_eq!(locations, blocks.iter().enumerate().flat_map(of_block).collect::<Vec<_>>());
    }

    #[test]
    fn one_partition_has_the_order_of_the_epoch(
        blocks in prop::collection::vec(block(), 0..40), shuffle in shuffle(), seed in any::<u64>(), epoch in any::<u64>(),
    ) {
        let order = Partitions::new(&blocks, 1).epoch(0, shuffle, seed, epoch);
        let whole = EpochOrder::new(&blocks, shuffle, seed, epoch);
        prop_assert_eq!(located(&order), located(&whole));
        prop_assert_eq!(order.windows(), whole.windows());
        prop_assert!((0..order.windows()).all(|window| order.window(window) == whole.window(window)));
    }

    #[test]
    fn blocks_at_the_end_do_not_change_the_partition_of_another(
        blocks in prop::collection::vec(block(), 0..200), more in prop::collection::vec(block(), 0..20), count in 1u32..20,
    ) {
        let longer = [blocks.clone(), more].concat();
        let (before, after): (Vec<u32>, Vec<u32>) = (deal(&blocks, count).collect(), deal(&longer, count).collect());
        prop_assert_eq!(&before[..], &after[..blocks.len()]);
    }

    #[test]
    fn windows_have_their_share_of_the_rows(
        blocks in prop::collection::vec(block(), 0..60), count in 1u32..12, rows in 1u64..5000,
    ) {
        let partitions = Partitions::new(&blocks, count);
        let shuffle = Shuffle::Window { rows, keep_block_order: false };
        for partition in 0..count {
            let order = partitions.epoch(partition, shuffle, 1, 2);
            for window in (0..order.windows()).map(|window| order.window(window)) {
                let items = window.positions.end - window.positions.start;
                prop_assert!(order.windows() == 1 || items * u64::from(count) >= rows);
            }
        }
    }

    #[test]
    fn ranks_take_every_item_of_a_step_once_and_only_from_their_own_partitions(
        blocks in prop::collection::vec(block(), 0..40), count in 1u32..17, world_size in 1u32..17,
        more in 1u32..4, remainder in remainder(),
    ) {
        let partitions = Partitions::new(&blocks, count);
        // A global batch that both divide.
        let batch_size = count * more;
        let steps = Steps::new(partitions.items(), batch_size, world_size, remainder).unwrap();
        let mut next = vec![0; count as usize];
        for step in 0..=steps.count() {
            for rank in 0..world_size {
                let own = partitions.of_rank(rank, world_size);
                let range = steps.rank(step, rank);
                let mut taken = 0;
                for partition in 0..count {
                    let positions = partitions.positions(&steps, step, rank, partition);
                    if positions.is_empty() {
                        continue;
                    }
                    prop_assert!(own.contains(&partition), "rank {rank}, partition {partition}, step {step}");
                    prop_assert_eq!(positions.start, next[partition as usize]);
                    next[partition as usize] = positions.end;
                    taken += positions.end - positions.start;
                }
                prop_assert_eq!(taken, range.end - range.start);
                if world_size.is_multiple_of(count) {
                    prop_assert_eq!(own.len(), 1);
                }
                if count.is_multiple_of(world_size) {
                    prop_assert_eq!(own, rank * (count / world_size)..(rank + 1) * (count / world_size));
                } else {
                    prop_assert!(own.len() as u32 <= count / world_size + 2);
                }
            }
        }
        if remainder != Remainder::Drop {
            let sizes: Vec<u64> = (0..count).map(|partition| partitions.items_of(partition)).collect();
            prop_assert_eq!(next, sizes);
        }
    }
}
