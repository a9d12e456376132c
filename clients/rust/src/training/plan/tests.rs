use std::sync::Arc;

use arrow_schema::Schema;
use proptest::prelude::*;

use super::*;

fn plan(rows: u64, batch_size: u64, world_size: u64, rank: u64, short: bool, train: Train) -> Plan {
    let global = batch_size * world_size;
    let steps = if short { rows.div_ceil(global) } else { rows / global };
    Plan {
        locations: Vec::new(),
        schema: Arc::new(Schema::empty()),
        summary: PlanSummary { rows, steps, batch_size, world_size, ..PlanSummary::default() },
        total_records: 0,
        tickets: Vec::new(),
        resolved: Train { rank: Some(rank), ..train },
    }
}

proptest! {
    #[test]
    fn the_ranks_of_all_steps_cover_each_row_of_an_epoch_once(
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
    fn a_resumed_request_has_the_remaining_batches_of_the_original(
        steps in 1u64..20, epoch in 0u64..5, epochs in 1u64..5, start in 0u64..20, limit in 0u64..60,
        first: u64, second: u64,
    ) {
        let start_step = start.min(steps);
        let train = Train { epoch, epochs: Some(epochs), start_step, steps: limit, lanes: Some(3), ..Train::default() };
        let whole = plan(steps * 10, 10, 1, 0, true, train);
        prop_assume!(whole.batches() > 0);
        let first = first % whole.batches();
        let rest = Plan { resolved: whole.remaining_request(first), ..whole.clone() };
        prop_assert_eq!(rest.batches(), whole.batches() - first);
        let second = second % rest.batches();
        prop_assert_eq!(rest.cursor(second), whole.cursor(first + second));
        let rest_of_rest = Plan { resolved: rest.remaining_request(second), ..rest.clone() };
        prop_assert_eq!(rest_of_rest.batches(), whole.batches() - first - second);
        prop_assert_eq!(rest.lanes(), 3);
    }
}

#[test]
fn a_gap_a_repeat_another_ranks_batch_and_a_wrong_hash_are_rejected() {
    let plan = plan(100, 5, 2, 1, true, Train::default());
    let next = plan.expected(3);
    let verify = |found: &BatchMetadata, rows, hash| {
        plan.verify(3, found, rows, hash).map_err(|error| {
            assert!(matches!(error, Error::BatchMismatch(_)), "{error:?}");
            error.to_string()
        })
    };
    let hashed = BatchMetadata { content_hash: Some(7), ..next.clone() };
    verify(&next, 5, None).unwrap();
    verify(&hashed, 5, None).unwrap();
    verify(&hashed, 5, Some(7)).unwrap();
    for other in [
        plan.expected(2),
        plan.expected(4),
        BatchMetadata { rank: 0, ..next.clone() },
        BatchMetadata { epoch: 1, ..next.clone() },
        BatchMetadata { position: 0, ..next.clone() },
        BatchMetadata { rows: 4, ..next.clone() },
    ] {
        let message = verify(&other, other.rows, None).unwrap_err();
        assert!(message.contains("expected epoch 0, step 3, rank 1"), "{message}");
    }
    assert!(verify(&next, 4, None).unwrap_err().contains("has 4 rows, expected 5"));
    assert!(verify(&hashed, 5, Some(8)).unwrap_err().contains("0000000000000008"));
    assert!(verify(&next, 5, Some(8)).unwrap_err().contains("has no hash"));
}

#[test]
fn groups_that_do_not_cover_the_rows_of_their_batch_are_rejected() {
    let mut plan = plan(1000, 3, 2, 1, true, Train::default());
    plan.summary.groups = Some(20);
    let of = |group_offsets: &[u32], rows| BatchMetadata {
        group_offsets: group_offsets.to_vec(),
        rows,
        ..plan.expected(1)
    };
    plan.verify(1, &of(&[0, 70, 71, 90], 90), 90, None).unwrap();
    for (offsets, rows, expected) in [
        (&[0, 70, 90][..], 90, "2 groups from position 9), expected epoch 0, step 1, rank 1 (3 groups"),
        (&[], 90, "expected epoch 0, step 1, rank 1 (3 groups"),
        (&[0, 70, 71, 90], 91, "do not cover its rows"),
        (&[1, 70, 71, 90], 90, "do not cover its rows"),
        (&[0, 71, 70, 90], 90, "do not cover its rows"),
    ] {
        let error = plan.verify(1, &of(offsets, rows), rows, None).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let error = plan.verify(1, &of(&[0, 70, 71, 90], 90), 89, None).unwrap_err().to_string();
    assert!(error.contains("has 89 rows, expected 90"), "{error}");
    plan.summary.groups = None;
    let error = plan
        .verify(1, &BatchMetadata { group_offsets: vec![0, 3], ..plan.expected(1) }, 3, None)
        .unwrap_err();
    assert!(error.to_string().contains("do not cover its rows"), "{error}");
}

#[test]
fn a_padded_batch_has_batch_size_rows_whatever_the_number_of_valid_rows() {
    let mut plan = plan(13, 5, 2, 1, true, Train::default());
    plan.summary.remainder = Remainder::Pad.into();
    let last = plan.expected(1);
    assert_eq!((last.rows, last.position), (2, 11));
    plan.verify(1, &last, 5, None).unwrap();
    assert!(plan.verify(1, &last, 2, None).unwrap_err().to_string().contains("has 2 rows, expected 5"));
}

#[test]
fn a_batch_that_does_not_match_its_packs_is_rejected() {
    let mut plan = plan(1000, 2, 2, 1, true, Train::default());
    (plan.summary.groups, plan.summary.packs, plan.summary.max_pack_rows) = (Some(200), Some(11), 100);
    let of = |group_offsets: &[u32], rows| BatchMetadata {
        group_offsets: group_offsets.to_vec(),
        rows,
        ..plan.expected(1)
    };
    assert_eq!((plan.expected(1).position, plan.expected(1).rows), (6, 2));
    plan.verify(1, &of(&[0, 70, 71, 200], 200), 200, None).unwrap();
    for (offsets, rows, expected) in [
        (
            &[0, 70, 71, 201][..],
            201,
            "has 201 rows in 3 groups, expected at least one group and at most 100 rows per pack",
        ),
        (&[0, 200], 200, "has 200 rows in 1 groups"),
        (&[], 200, "do not cover its rows"),
        (&[0, 70, 70, 200], 200, "do not cover its rows"),
    ] {
        let error = plan.verify(1, &of(offsets, rows), rows, None).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let early = BatchMetadata { position: 4, ..of(&[0, 70, 200], 200) };
    let error = plan.verify(1, &early, 200, None).unwrap_err().to_string();
    assert!(
        error.contains("2 packs from position 4), expected epoch 0, step 1, rank 1 (2 packs from position 6"),
        "{error}"
    );
    let padded = of(&[0, 70, 120], 120);
    plan.summary.remainder = Remainder::Pad.into();
    plan.verify(1, &padded, 200, None).unwrap();
    assert!(plan.verify(1, &padded, 120, None).unwrap_err().to_string().contains("expected 200"));
}
