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
    let hashed = BatchMetadata { hash: Some(7), ..due.clone() };
    check(&due, 5, None).unwrap();
    check(&hashed, 5, None).unwrap();
    check(&hashed, 5, Some(7)).unwrap();
    for foreign in [
        plan.expected(2),
        plan.expected(4),
        BatchMetadata { rank: 0, ..due.clone() },
        BatchMetadata { epoch: 1, ..due.clone() },
        BatchMetadata { position: 0, ..due.clone() },
        BatchMetadata { rows: 4, ..due.clone() },
    ] {
        let words = check(&foreign, foreign.rows, None).unwrap_err();
        assert!(words.contains("expected epoch 0, step 3, rank 1"), "{words}");
    }
    assert!(check(&due, 4, None).unwrap_err().contains("holds 4 rows, expected 5"));
    assert!(check(&hashed, 5, Some(8)).unwrap_err().contains("0000000000000008"));
    assert!(check(&due, 5, Some(8)).unwrap_err().contains("has no hash"));
}

#[test]
fn groups_that_are_not_the_rows_of_their_batch_are_refused() {
    let mut plan = plan(1000, 3, 2, 1, true, Train::default());
    plan.summary.groups = Some(20);
    let of = |group_offsets: &[u32], rows| BatchMetadata {
        group_offsets: group_offsets.to_vec(),
        rows,
        ..plan.expected(1)
    };
    plan.check(1, &of(&[0, 70, 71, 90], 90), 90, None).unwrap();
    for (offsets, rows, words) in [
        (&[0, 70, 90][..], 90, "2 groups from position 9), expected epoch 0, step 1, rank 1 (3 groups"),
        (&[], 90, "expected epoch 0, step 1, rank 1 (3 groups"),
        (&[0, 70, 71, 90], 91, "are not its rows"),
        (&[1, 70, 71, 90], 90, "are not its rows"),
        (&[0, 71, 70, 90], 90, "are not its rows"),
    ] {
        let error = plan.check(1, &of(offsets, rows), rows, None).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let error = plan.check(1, &of(&[0, 70, 71, 90], 90), 89, None).unwrap_err().to_string();
    assert!(error.contains("holds 89 rows, expected 90"), "{error}");
    plan.summary.groups = None;
    let error =
        plan.check(1, &BatchMetadata { group_offsets: vec![0, 3], ..plan.expected(1) }, 3, None).unwrap_err();
    assert!(error.to_string().contains("are not its rows"), "{error}");
}

#[test]
fn a_padded_batch_holds_batch_size_rows_whatever_is_real() {
    let mut plan = plan(13, 5, 2, 1, true, Train::default());
    plan.summary.remainder = Remainder::Pad.into();
    let last = plan.expected(1);
    assert_eq!((last.rows, last.position), (2, 11));
    plan.check(1, &last, 5, None).unwrap();
    assert!(plan.check(1, &last, 2, None).unwrap_err().to_string().contains("holds 2 rows, expected 5"));
}

#[test]
fn a_batch_that_is_not_made_of_its_packs_is_refused() {
    let mut plan = plan(1000, 2, 2, 1, true, Train::default());
    (plan.summary.groups, plan.summary.packs, plan.summary.batch_rows) = (Some(200), Some(11), 100);
    let of = |group_offsets: &[u32], rows| BatchMetadata {
        group_offsets: group_offsets.to_vec(),
        rows,
        ..plan.expected(1)
    };
    assert_eq!((plan.expected(1).position, plan.expected(1).rows), (6, 2));
    plan.check(1, &of(&[0, 70, 71, 200], 200), 200, None).unwrap();
    for (offsets, rows, words) in [
        (
            &[0, 70, 71, 201][..],
            201,
            "holds 201 rows in 3 groups, expected one group or more and at most 100 rows a pack",
        ),
        (&[0, 200], 200, "holds 200 rows in 1 groups"),
        (&[], 200, "are not its rows"),
        (&[0, 70, 70, 200], 200, "are not its rows"),
    ] {
        let error = plan.check(1, &of(offsets, rows), rows, None).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let early = BatchMetadata { position: 4, ..of(&[0, 70, 200], 200) };
    let error = plan.check(1, &early, 200, None).unwrap_err().to_string();
    assert!(
        error.contains("2 packs from position 4), expected epoch 0, step 1, rank 1 (2 packs from position 6"),
        "{error}"
    );
    let padded = of(&[0, 70, 120], 120);
    plan.summary.remainder = Remainder::Pad.into();
    plan.check(1, &padded, 200, None).unwrap();
    assert!(plan.check(1, &padded, 120, None).unwrap_err().to_string().contains("expected 200"));
}
