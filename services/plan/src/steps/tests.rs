use proptest::prelude::*;

use super::*;
use crate::testing::cases;

fn steps(items: u64, batch_size: u32, world_size: u32, remainder: Remainder) -> Steps {
    Steps::new(items, batch_size, world_size, remainder).unwrap()
}

fn remainder() -> impl Strategy<Value = Remainder> {
    prop_oneof![Just(Remainder::Short), Just(Remainder::Drop), Just(Remainder::Pad)]
}

#[test]
fn the_last_short_step_is_shared_evenly() {
    let short = steps(106, 25, 4, Remainder::Short);
    assert_eq!(short.count(), 2);
    assert_eq!(short.rank(0, 3), 75..100);
    let last: Vec<Range<u64>> = (0..4).map(|rank| short.rank(1, rank)).collect();
    assert_eq!(last, [100..101, 101..103, 103..104, 104..106]);

    let pad = steps(106, 25, 4, Remainder::Pad);
    let padded: Vec<Range<u64>> = (0..4).map(|rank| pad.rank(1, rank)).collect();
    assert_eq!((pad.count(), padded), (2, last));
    assert_eq!((0..4).map(|rank| pad.rank_rows(0..9, rank)).collect::<Vec<_>>(), [50; 4]);
    assert_eq!(steps(100, 25, 4, Remainder::Pad).rank_rows(0..9, 0), 25);

    let drop = steps(106, 25, 4, Remainder::Drop);
    assert_eq!(drop.count(), 1);
    assert_eq!(drop.rank(1, 3), 100..100);
}

#[test]
fn sizes_of_zero_are_rejected_by_name() {
    let message = |batch_size, world_size| {
        Steps::new(10, batch_size, world_size, Remainder::Short).unwrap_err().to_string()
    };
    assert_eq!(message(0, 1), "batch_size is 0, expected at least 1");
    assert_eq!(message(1, 0), "world_size is 0, expected at least 1");
}

#[test]
fn the_largest_numbers_do_not_overflow() {
    for remainder in [Remainder::Short, Remainder::Drop] {
        for batch_size in [1, u32::MAX] {
            for world_size in [1, u32::MAX] {
                for items in [0, 1, u64::MAX - 1, u64::MAX] {
                    let steps = steps(items, batch_size, world_size, remainder);
                    for step in [0, 1, steps.count().saturating_sub(1), steps.count(), u64::MAX] {
                        for rank in [0, world_size - 1] {
                            let positions = steps.rank(step, rank);
                            assert!(positions.start <= positions.end && positions.end <= items);
                        }
                    }
                    assert!(steps.rank_rows(0..u64::MAX, world_size - 1) <= items);
                }
            }
        }
    }
}

#[test]
#[should_panic = "rank 4 of 4"]
fn a_rank_outside_the_world_panics() {
    let _ = steps(100, 5, 4, Remainder::Short).rank(0, 4);
}

proptest! {
    #![proptest_config(cases(500))]

    #[test]
    fn same_global_batch_same_rows_for_any_world_size(
        items in 0u64..5000, batch_size in 1u32..40, halvings in 0u32..6, remainder in remainder(),
    ) {
        let alone = steps(items, batch_size << halvings, 1, remainder);
        let shared = steps(items, batch_size, 1 << halvings, remainder);
        prop_assert_eq!(alone.count(), shared.count());
        for step in 0..alone.count() {
            let together: Vec<u64> = (0..1 << halvings).flat_map(|rank| shared.rank(step, rank)).collect();
            prop_assert!(together.into_iter().eq(alone.rank(step, 0)));
        }
    }

    #[test]
    fn every_position_is_in_exactly_one_batch(
        items in 0u64..5000, batch_size in 1u32..60, world_size in 1u32..20, remainder in remainder(),
    ) {
        let steps = steps(items, batch_size, world_size, remainder);
        let mut next = 0;
        for step in 0..steps.count() {
            prop_assert_eq!(steps.global(step).start, next);
            for rank in 0..world_size {
                let positions = steps.rank(step, rank);
                prop_assert_eq!(positions.start, next);
                prop_assert!(positions.end - positions.start <= u64::from(batch_size));
                next = positions.end;
            }
            prop_assert_eq!(steps.global(step).end, next);
        }
        let lost = items - next;
        match remainder {
            Remainder::Short | Remainder::Pad => prop_assert_eq!(lost, 0),
            Remainder::Drop => prop_assert!(lost < steps.global_batch()),
        }
        prop_assert!(steps.global(steps.count()).is_empty());
    }

    #[test]
    fn rank_rows_is_the_sum_over_the_steps(
        items in 0u64..3000, batch_size in 1u32..60, world_size in 1u32..12, remainder in remainder(),
        start in 0u64..60, end in 0u64..60,
    ) {
        let steps = steps(items, batch_size, world_size, remainder);
        for rank in 0..world_size {
            let rows = |step: u64| match remainder {
                Remainder::Pad if step < steps.count() => u64::from(batch_size),
                _ => steps.rank(step, rank).end - steps.rank(step, rank).start,
            };
            prop_assert_eq!(steps.rank_rows(start..end, rank), (start..end).map(rows).sum());
        }
    }
}
