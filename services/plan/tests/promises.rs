//! Guarantees for training, from a request to its rows.

#![allow(clippy::disallowed_types)] // Only the size and the members of these sets are compared.

use std::collections::HashSet;

use forebay_plan::{Cursor, EpochOrder, Location, Remainder, Run, Shuffle, Steps};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// A resolved request.
#[derive(Debug, Clone)]
struct Request {
    blocks: Vec<u32>,
    shuffle: Shuffle,
    seed: u64,
    batch_size: u32,
    world_size: u32,
    remainder: Remainder,
    epochs: u64,
}

impl Request {
    fn steps(&self) -> Steps {
        let items = self.blocks.iter().copied().map(u64::from).sum();
        Steps::new(items, self.batch_size, self.world_size, self.remainder).expect("sizes are at least 1")
    }

    fn run(&self) -> Run {
        Run::new(&self.steps(), 0, self.epochs, 0, None).expect("step 0 is never past the end")
    }

    fn batch(&self, cursor: Cursor, rank: u32) -> Vec<Location> {
        let order = EpochOrder::new(&self.blocks, self.shuffle, self.seed, cursor.epoch);
        let mut rows = Vec::new();
        order.locate_range(self.steps().rank(cursor.step, rank), &mut rows);
        rows
    }

    /// Batches of one rank in order.
    fn stream(&self, rank: u32) -> Vec<Vec<Location>> {
        let run = self.run();
        (0..run.len()).map(|j| self.batch(run.cursor(j), rank)).collect()
    }

    /// Global batches: the batches of all ranks in a step, concatenated.
    fn global_stream(&self) -> Vec<Vec<Location>> {
        let run = self.run();
        let global = |cursor| (0..self.world_size).flat_map(|rank| self.batch(cursor, rank)).collect();
        (0..run.len()).map(|j| global(run.cursor(j))).collect()
    }
}

fn request() -> impl Strategy<Value = Request> {
    let block = prop_oneof![1 => Just(0), 3 => 1u32..10, 1 => 10u32..80];
    let window = (1u64..200, any::<bool>())
        .prop_map(|(rows, keep_block_order)| Shuffle::Window { rows, keep_block_order });
    let shuffle = prop_oneof![3 => window, 1 => Just(Shuffle::Global), 1 => Just(Shuffle::None)];
    let remainder = prop_oneof![Just(Remainder::Short), Just(Remainder::Drop)];
    (prop::collection::vec(block, 0..20), shuffle, 0u64..4, 1u32..20, 1u32..6, remainder, 1u64..4).prop_map(
        |(blocks, shuffle, seed, batch_size, world_size, remainder, epochs)| Request {
            blocks,
            shuffle,
            seed,
            batch_size,
            world_size,
            remainder,
            epochs,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 150, rng_seed: RngSeed::Fixed(2), failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn every_row_occurs_exactly_once_per_epoch(request in request()) {
        let request = Request { remainder: Remainder::Short, ..request };
        let mut rows = request.global_stream().concat();
        rows.sort_unstable();
        let mut expected = Vec::new();
        for (block, &items) in request.blocks.iter().enumerate() {
            for item in 0..items {
                let location = Location { block: block as u32, item };
                expected.extend(std::iter::repeat_n(location, request.epochs as usize));
            }
        }
        prop_assert_eq!(rows, expected);
    }

    #[test]
    fn every_rank_has_the_same_steps_and_no_row_goes_to_two_ranks(request in request()) {
        let request = Request { epochs: 1, ..request };
        let mut seen = HashSet::new();
        for rank in 0..request.world_size {
            let batches = request.stream(rank);
            prop_assert_eq!(batches.len() as u64, request.steps().count());
            for row in batches.concat() {
                prop_assert!(seen.insert(row), "{:?} twice", row);
            }
        }
    }

    #[test]
    fn same_global_batch_same_rows_for_any_world_size(request in request()) {
        let global_batch = request.batch_size * request.world_size;
        let expected = request.global_stream();
        for world_size in (1..=global_batch).filter(|world_size| global_batch.is_multiple_of(*world_size)) {
            let batch_size = global_batch / world_size;
            let other = Request { batch_size, world_size, ..request.clone() };
            prop_assert_eq!(&other.global_stream(), &expected, "world size {}", world_size);
        }
    }

    #[test]
    fn same_rows_for_any_number_of_lanes(request in request(), lanes in 1u32..6) {
        let (run, steps) = (request.run(), request.steps());
        for rank in 0..request.world_size {
            let mut restored = vec![Vec::new(); run.len() as usize];
            for lane in 0..lanes {
                let mut rows = 0;
                for j in run.lane(lane, lanes) {
                    let batch = request.batch(run.cursor(j), rank);
                    rows += batch.len() as u64;
                    restored[j as usize] = batch;
                }
                prop_assert_eq!(run.lane_rows(&steps, rank, lane, lanes), rows);
            }
            prop_assert_eq!(restored, request.stream(rank));
        }
    }

    #[test]
    fn resume_at_any_cursor_is_exactly_the_tail(request in request(), at in any::<prop::sample::Index>()) {
        let (run, steps) = (request.run(), request.steps());
        prop_assume!(!run.is_empty());
        let at = at.index(run.len() as usize) as u64;
        let Cursor { epoch, step } = run.cursor(at);
        let resumed = Run::new(&steps, epoch, request.epochs - epoch, step, None).unwrap();
        let tail: Vec<Vec<Location>> = (0..resumed.len()).map(|j| request.batch(resumed.cursor(j), 0)).collect();
        prop_assert_eq!(&tail, &request.stream(0)[at as usize..]);
    }
}
