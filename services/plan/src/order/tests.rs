#![allow(clippy::disallowed_types)] // Only the size and the members of these sets are compared.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;
use crate::testing::{block, cases};

fn located(order: &EpochOrder, positions: Range<u64>) -> Vec<Location> {
    let mut locations = Vec::new();
    order.locate_range(positions, &mut locations);
    locations
}

fn all(order: &EpochOrder) -> Vec<Location> {
    located(order, 0..order.items())
}

fn in_file_order(items_per_block: &[u32]) -> Vec<Location> {
    let block =
        |(block, &items): (usize, &u32)| (0..items).map(move |item| Location { block: block as u32, item });
    items_per_block.iter().enumerate().flat_map(block).collect()
}

fn shuffle() -> impl Strategy<Value = Shuffle> {
    let window = (prop_oneof![0u64..4, 4u64..3000, Just(u64::MAX)], any::<bool>())
        .prop_map(|(rows, keep_block_order)| Shuffle::Window { rows, keep_block_order });
    prop_oneof![4 => window, 1 => Just(Shuffle::Global), 1 => Just(Shuffle::None)]
}

fn assert_windows_are_whole_blocks(order: &EpochOrder, items_per_block: &[u32], window_rows: u64) {
    let mut next_position = 0;
    let mut blocks = Vec::new();
    for i in 0..order.windows() {
        let Window { positions, blocks: window_blocks } = order.window(i);
        assert_eq!(positions.start, next_position);
        let items: u64 = window_blocks.iter().map(|&block| u64::from(items_per_block[block as usize])).sum();
        assert_eq!(positions.end - positions.start, items);
        assert!(items > 0, "window {i} is empty");
        assert!(items >= window_rows || order.windows() == 1, "window {i} has {items} of {window_rows} rows");
        assert_eq!(order.window_at(positions.start), i);
        assert_eq!(order.window_at(positions.end - 1), i);

        let of_window: HashSet<u32> = window_blocks.iter().copied().collect();
        assert!(located(order, positions.clone()).iter().all(|location| of_window.contains(&location.block)));
        next_position = positions.end;
        blocks.extend_from_slice(window_blocks);
    }
    assert_eq!(next_position, order.items());
    if order.items() > 0 {
        blocks.sort_unstable();
        assert!(blocks.into_iter().eq(0..items_per_block.len() as u32), "every block is in one window");
    }
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn every_item_has_exactly_one_position(
        blocks in prop::collection::vec(block(), 0..40), shuffle in shuffle(), seed in 0u64..3, epoch in 0u64..3,
    ) {
        let order = EpochOrder::new(&blocks, shuffle, seed, epoch);
        let mut locations = all(&order);
        locations.sort_unstable();
        prop_assert_eq!(locations, in_file_order(&blocks));
    }

    #[test]
    fn windows_are_whole_blocks_of_at_least_the_requested_size(
        blocks in prop::collection::vec(block(), 0..40), shuffle in shuffle(), seed in 0u64..3,
    ) {
        let order = EpochOrder::new(&blocks, shuffle, seed, 0);
        let window_rows = match shuffle {
            Shuffle::Window { rows, .. } => rows,
            Shuffle::Global => u64::MAX,
            Shuffle::None => 1,
        };
        assert_windows_are_whole_blocks(&order, &blocks, window_rows);
    }

    #[test]
    fn batch_form_equals_single_form(
        blocks in prop::collection::vec(block(), 0..40), shuffle in shuffle(), seed in any::<u64>(),
        ends in (0.0..=1.0f64, 0.0..=1.0f64),
    ) {
        let order = EpochOrder::new(&blocks, shuffle, seed, 7);
        let [a, b] = [ends.0, ends.1].map(|end| (end * order.items() as f64) as u64);
        let positions = a.min(b)..a.max(b);
        let single: Vec<Location> = positions.clone().map(|position| order.locate(position)).collect();
        prop_assert_eq!(located(&order, positions), single);
    }

    #[test]
    fn keep_block_order_does_not_permute_blocks(blocks in prop::collection::vec(block(), 0..40), rows in 0u64..3000) {
        let order = EpochOrder::new(&blocks, Shuffle::Window { rows, keep_block_order: true }, 5, 5);
        let mut next = 0;
        for i in 0..order.windows() {
            for &block in order.window(i).blocks {
                prop_assert_eq!(block, next);
                next += 1;
            }
        }
    }

    #[test]
    fn global_equals_one_window_of_all_items(
        blocks in prop::collection::vec(block(), 0..40), seed in any::<u64>(), epoch in any::<u64>(),
    ) {
        let global = EpochOrder::new(&blocks, Shuffle::Global, seed, epoch);
        let rows = global.items();
        let window = EpochOrder::new(&blocks, Shuffle::Window { rows, keep_block_order: false }, seed, epoch);
        prop_assert!(global.windows() <= 1);
        prop_assert_eq!(all(&global), all(&window));
    }

    #[test]
    fn none_is_the_original_order(blocks in prop::collection::vec(block(), 0..40), seed in any::<u64>()) {
        let order = EpochOrder::new(&blocks, Shuffle::None, seed, 1);
        prop_assert_eq!(all(&order), in_file_order(&blocks));
        prop_assert_eq!(order.windows(), blocks.iter().filter(|&&items| items > 0).count());
    }
}

#[test]
fn every_item_of_millions_has_exactly_one_position() {
    for items in [65_535, 65_536, 65_537, 131_073, 1_048_577, 4_194_305] {
        let mut blocks = vec![16_384; items / 16_384];
        blocks.extend([0, (items % 16_384) as u32]);
        for rows in [1, 65_536, 1_048_576, u64::MAX] {
            let order = EpochOrder::new(&blocks, Shuffle::Window { rows, keep_block_order: false }, 0, 0);
            let mut seen = vec![false; blocks.len() * 16_384];
            let locations = all(&order);
            assert_eq!(locations.len(), items);
            for Location { block, item } in locations {
                assert!(item < blocks[block as usize]);
                let index = block as usize * 16_384 + item as usize;
                assert!(!std::mem::replace(&mut seen[index], true), "{block}/{item} twice, N = {items}");
            }
        }
    }
}

#[test]
fn no_items_have_no_windows() {
    for blocks in [&[][..], &[0], &[0, 0, 0]] {
        for shuffle in [Shuffle::Window { rows: 10, keep_block_order: false }, Shuffle::Global, Shuffle::None]
        {
            let order = EpochOrder::new(blocks, shuffle, 0, 0);
            assert_eq!((order.items(), order.windows()), (0, 0));
            assert_eq!(all(&order), []);
        }
    }
}

#[test]
fn remaining_blocks_join_the_last_window() {
    let order =
        EpochOrder::new(&[4, 4, 4, 4, 3, 0], Shuffle::Window { rows: 8, keep_block_order: true }, 0, 0);
    assert_eq!(order.windows(), 2);
    assert_eq!(order.window(0), Window { positions: 0..8, blocks: &[0, 1] });
    assert_eq!(order.window(1), Window { positions: 8..19, blocks: &[2, 3, 4, 5] });
}

#[test]
fn seeds_and_epochs_never_share_an_order() {
    for shuffle in [
        Shuffle::Window { rows: 64, keep_block_order: false },
        Shuffle::Window { rows: 64, keep_block_order: true },
        Shuffle::Global,
    ] {
        let mut orders = HashSet::new();
        for seed in 0..3 {
            for epoch in 0..3 {
                orders.insert(all(&EpochOrder::new(&[16; 32], shuffle, seed, epoch)));
            }
        }
        assert_eq!(orders.len(), 9, "{shuffle:?}");
    }
}

#[test]
fn windows_of_one_epoch_are_shuffled_differently() {
    let order = EpochOrder::new(&[100; 20], Shuffle::Window { rows: 100, keep_block_order: true }, 0, 0);
    let items = |i: usize| -> Vec<u32> {
        located(&order, order.window(i).positions).iter().map(|location| location.item).collect()
    };
    let orders: HashSet<Vec<u32>> = (0..20).map(items).collect();
    assert_eq!(orders.len(), 20);
}

#[test]
fn any_of_ten_billion_items_can_be_located() {
    let mut blocks = vec![16_384; 610_351];
    blocks.push(9_216);
    let order = EpochOrder::new(&blocks, Shuffle::Window { rows: 1_048_576, keep_block_order: false }, 0, 0);
    assert_eq!(order.items(), 10_000_000_000);
    for position in [0, 1_000_000_000, 9_999_999_000] {
        let locations = located(&order, position..position + 1000);
        assert_eq!(locations[0], order.locate(position));
        assert_eq!(locations[999], order.locate(position + 999));
        assert_eq!(locations.iter().collect::<HashSet<_>>().len(), 1000);
    }
}

#[test]
#[should_panic = "position 12 of an epoch of 12 items"]
fn a_position_past_the_end_panics() {
    let _ = EpochOrder::new(&[12], Shuffle::Global, 0, 0).locate(12);
}
