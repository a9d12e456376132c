use std::sync::Arc;

use arrow_schema::Schema;
use proptest::prelude::*;

use super::*;

fn plan(rows: u64, batch_size: u64, world_size: u64, rank: u64, short: bool, train: Train) -> Plan {
    let global = batch_size * world_size;
    let steps = if short { rows.div_ceil(global) } else { rows / global };
    Plan {
        schema: Arc::new(Schema::empty()),
        summary: PlanSummary { rows, steps, batch_size, world_size, ..PlanSummary::default() },
        total_records: 0,
        tickets: Vec::new(),
        resolved: Train { rank: Some(rank), ..train },
    }
}

proptest! {
    #[test]
    fn the_ranks_of_every_step_cover_each_row_of_an_epoch_once(
        rows in 0u64..2000, batch_size in 1u64..40, world_size in 1u64..9, short: bool,
    ) {
        let of = |rank| plan(rows, batch_size, world_size, rank, short, Train::default());
        let mut position = 0;
        for batch in 0..of(0).batches() {
            for rank in 0..world_size {
                let expected = of(rank).expected(batch);
                prop_assert_eq!((expected.step, expected.position), (batch, position));
                prop_assert!(expected.rows <= batch_size);
                position += expected.rows;
            }
        }
        let left_out = rows % (batch_size * world_size);
        prop_assert_eq!(position, if short { rows } else { rows - left_out });
    }

    #[test]
    fn what_is_left_of_the_rest_is_what_is_left_of_the_whole(
        steps in 1u64..20, epoch in 0u64..5, epochs in 1u64..5, start in 0u64..20, limit in 0u64..60,
        first: u64, second: u64,
    ) {
        let start_step = start.min(steps);
        let train = Train { epoch, epochs: Some(epochs), start_step, steps: limit, lanes: Some(3), ..Train::default() };
        let whole = plan(steps * 10, 10, 1, 0, true, train);
        prop_assume!(whole.batches() > 0);
        let first = first % whole.batches();
        let rest = Plan { resolved: whole.rest(first), ..whole.clone() };
        prop_assert_eq!(rest.batches(), whole.batches() - first);
        let second = second % rest.batches();
        prop_assert_eq!(rest.cursor(second), whole.cursor(first + second));
        let rest_of_rest = Plan { resolved: rest.rest(second), ..rest.clone() };
        prop_assert_eq!(rest_of_rest.batches(), whole.batches() - first - second);
        prop_assert_eq!(rest.lanes(), 3);
    }
}

#[test]
fn a_gap_a_repeat_a_foreign_batch_and_a_wrong_hash_are_refused() {
    let plan = plan(100, 5, 2, 1, true, Train::default());
    let due = plan.expected(3);
    let check = |found: &BatchMetadata, rows, hash| {
        plan.check(3, found, rows, hash).map_err(|error| {
            assert!(matches!(error, Error::Foreign(_)), "{error:?}");
            error.to_string()
        })
    };
    let hashed = BatchMetadata { hash: Some(7), ..due };
    check(&due, 5, None).unwrap();
    check(&hashed, 5, None).unwrap();
    check(&hashed, 5, Some(7)).unwrap();
    for foreign in [
        plan.expected(2),
        plan.expected(4),
        BatchMetadata { rank: 0, ..due },
        BatchMetadata { epoch: 1, ..due },
        BatchMetadata { position: 0, ..due },
        BatchMetadata { rows: 4, ..due },
    ] {
        let words = check(&foreign, foreign.rows, None).unwrap_err();
        assert!(words.contains("expected epoch 0, step 3, rank 1"), "{words}");
    }
    assert!(check(&due, 4, None).unwrap_err().contains("holds 4 rows, expected 5"));
    assert!(check(&hashed, 5, Some(8)).unwrap_err().contains("0000000000000008"));
    assert!(check(&due, 5, Some(8)).unwrap_err().contains("has no hash"));
}
