use proptest::prelude::*;

use super::*;
use crate::Remainder;
use crate::testing::cases;

fn cursors(run: &Run) -> Vec<Cursor> {
    (0..run.len()).map(|j| run.cursor(j)).collect()
}

fn ten_steps() -> Steps {
    Steps::new(97, 5, 2, Remainder::Short).unwrap()
}

#[test]
fn a_run_continues_across_epochs() {
    let steps = Steps::new(30, 10, 1, Remainder::Short).unwrap();
    let run = Run::new(&steps, 4, 2, 1, None).unwrap();
    let expected = [(4, 1), (4, 2), (5, 0), (5, 1), (5, 2)].map(|(epoch, step)| Cursor { epoch, step });
    assert_eq!(cursors(&run), expected);
}

#[test]
fn the_step_after_the_last_is_the_next_epoch_or_an_empty_run() {
    let steps = ten_steps();
    let run = Run::new(&steps, 3, 2, 10, None).unwrap();
    assert_eq!(run.len(), 10);
    assert_eq!(run.cursor(0), Cursor { epoch: 4, step: 0 });
    assert!(Run::new(&steps, 3, 1, 10, None).unwrap().is_empty());
    assert!(Run::new(&steps, 3, 0, 0, None).unwrap().is_empty());
}

#[test]
fn a_start_past_the_end_is_an_error_that_names_both() {
    let error = Run::new(&ten_steps(), 0, 5, 11, None).unwrap_err();
    assert_eq!(error, Error::StartStepPastEnd { start_step: 11, steps: 10 });
    assert!(error.to_string().contains("start_step 11 is past the end of an epoch of 10 steps"));
}

#[test]
fn a_limit_shortens_the_run_but_never_extends_it() {
    let steps = ten_steps();
    assert_eq!(Run::new(&steps, 0, 1, 4, Some(0)).unwrap().len(), 0);
    assert_eq!(Run::new(&steps, 0, 1, 4, Some(6)).unwrap().len(), 6);
    assert_eq!(Run::new(&steps, 0, 1, 4, Some(u64::MAX)).unwrap().len(), 6);
    assert_eq!(Run::new(&steps, 0, 3, 4, Some(9)).unwrap().len(), 9);
}

#[test]
fn an_epoch_without_steps_is_an_empty_run() {
    for steps in
        [Steps::new(0, 5, 2, Remainder::Short).unwrap(), Steps::new(9, 5, 2, Remainder::Drop).unwrap()]
    {
        let run = Run::new(&steps, 0, u64::MAX, 0, None).unwrap();
        assert!(run.is_empty());
        assert_eq!(run.lane_rows(&steps, 1, 2, 3), 0);
        assert!(Run::new(&steps, 0, 1, 1, None).is_err());
    }
}

#[test]
fn the_largest_numbers_do_not_overflow() {
    let few = Steps::new(7, 3, 1, Remainder::Short).unwrap();
    let many = Steps::new(u64::MAX, 1, 1, Remainder::Short).unwrap();
    for steps in [few, many] {
        for epoch in [0, 1, u64::MAX - 1, u64::MAX] {
            for epochs in [0, 1, 2, u64::MAX] {
                for start_step in [0, 1, steps.count() - 1, steps.count(), u64::MAX] {
                    for limit in [None, Some(0), Some(u64::MAX)] {
                        let Ok(run) = Run::new(&steps, epoch, epochs, start_step, limit) else {
                            assert!(start_step > steps.count());
                            continue;
                        };
                        for j in [0, 1, run.len() / 2, run.len().saturating_sub(1)] {
                            if j < run.len() {
                                let cursor = run.cursor(j);
                                assert!(cursor.epoch >= epoch && cursor.step < steps.count());
                            }
                        }
                        for (lane, lanes) in [(0, 1), (0, u32::MAX), (u32::MAX - 1, u32::MAX), (3, 7)] {
                            assert!(run.lane_len(lane, lanes) <= run.len());
                            let _ = run.lane_rows(&steps, 0, lane, lanes);
                        }
                    }
                }
            }
        }
    }
}

#[test]
#[should_panic = "lane 2 of 2"]
fn a_lane_outside_the_lanes_panics() {
    let _ = Run::new(&ten_steps(), 0, 1, 0, None).unwrap().lane_len(2, 2);
}

proptest! {
    #![proptest_config(cases(500))]

    #[test]
    fn resume_at_any_step_is_exactly_the_tail(
        items in 1u64..500, batch_size in 1u32..40, epochs in 1u64..6, at in any::<prop::sample::Index>(),
    ) {
        let steps = Steps::new(items, batch_size, 1, Remainder::Short).unwrap();
        let whole = cursors(&Run::new(&steps, 2, epochs, 0, None).unwrap());
        let at = at.index(whole.len());
        let Cursor { epoch, step } = whole[at];
        let resumed = Run::new(&steps, epoch, 2 + epochs - epoch, step, None).unwrap();
        prop_assert_eq!(&cursors(&resumed), &whole[at..]);
    }

    #[test]
    fn round_robin_over_the_lanes_restores_the_order(
        items in 0u64..500, batch_size in 1u32..40, epochs in 0u64..6, lanes in 1u32..9,
    ) {
        let steps = Steps::new(items, batch_size, 1, Remainder::Short).unwrap();
        let run = Run::new(&steps, 0, epochs, 0, None).unwrap();
        let mut streams: Vec<_> = (0..lanes).map(|lane| run.lane(lane, lanes)).collect();
        for j in 0..run.len() {
            let lane = (j % u64::from(lanes)) as usize;
            prop_assert_eq!(streams[lane].next(), Some(j));
        }
        for (lane, stream) in streams.iter_mut().enumerate() {
            prop_assert_eq!(stream.next(), None);
            prop_assert_eq!(run.lane_len(lane as u32, lanes), run.lane(lane as u32, lanes).count() as u64);
        }
    }

    #[test]
    fn lane_rows_is_the_sum_over_the_batches(
        items in 0u64..500, batch_size in 1u32..40, world_size in 1u32..5, drop in any::<bool>(),
        epochs in 0u64..9, start in any::<prop::sample::Index>(), lanes in 1u32..9, limit in prop::option::of(0u64..100),
    ) {
        let remainder = if drop { Remainder::Drop } else { Remainder::Short };
        let steps = Steps::new(items, batch_size, world_size, remainder).unwrap();
        let start_step = start.index(steps.count() as usize + 1) as u64;
        let run = Run::new(&steps, 1, epochs, start_step, limit).unwrap();
        for rank in 0..world_size {
            for lane in 0..lanes {
                let batches = run.lane(lane, lanes).map(|j| steps.rank(run.cursor(j).step, rank));
                let sum: u64 = batches.map(|positions| positions.end - positions.start).sum();
                prop_assert_eq!(run.lane_rows(&steps, rank, lane, lanes), sum);
            }
        }
    }
}
