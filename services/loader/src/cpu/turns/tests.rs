use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use Need::{Later, Now};
use Priority::{First, Second};

fn next<T>(turns: &mut Turns<T>) -> Option<T> {
    turns.pop().map(|(work, _)| work)
}

/// Pops all queued work.
fn rest<T>(turns: &mut Turns<T>) -> Vec<T> {
    std::iter::from_fn(|| next(turns)).collect()
}

#[test]
fn what_is_needed_now_comes_next_in_turn_before_what_streams_make_ahead() {
    let mut turns = Turns::default();
    let (busy, full, starved) = (Flow::new(), Flow::new(), Flow::new());
    for piece in ["busy 1", "busy 2", "busy 3"] {
        turns.push(First, busy, Now, piece);
    }
    assert_eq!([next(&mut turns), next(&mut turns)], [Some("busy 1"), Some("busy 2")]);
    turns.push(First, full, Later, "full 1");
    turns.push(First, full, Later, "full 2");
    turns.push(First, starved, Now, "starved 1");
    turns.push(First, starved, Now, "starved 2");
    assert_eq!(rest(&mut turns), ["starved 1", "busy 3", "full 1", "starved 2", "full 2"]);
}

#[test]
fn streams_take_turns() {
    for need in [Now, Later] {
        let mut turns = Turns::default();
        let flows = [Flow::new(), Flow::new(), Flow::new()];
        for flow in flows {
            for _ in 0..4 {
                turns.push(Second, flow, need, flow);
            }
        }
        let order = rest(&mut turns);
        assert_eq!(order.len(), 12);
        for end in 4..12 {
            let counts = flows.map(|flow| order[..end].iter().filter(|of| **of == flow).count());
            assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 3, "{end}: {counts:?}");
        }
    }
}

#[test]
fn newcomers_without_end_do_not_stop_the_others() {
    let mut turns = Turns::default();
    let busy = Flow::new();
    for piece in 0..100 {
        turns.push(First, busy, Now, Some(piece));
    }
    let mut popped = Vec::new();
    for _ in 0..300 {
        turns.push(First, Flow::new(), Now, None);
        popped.extend(next(&mut turns));
    }
    assert_eq!(popped.iter().flatten().count(), 100);
    // Flows that were served once are removed, too.
    let known = turns.first.of.len() - turns.first.waiting;
    assert!(known <= 2, "{known} of which nothing waits");
}

#[test]
fn who_comes_again_and_again_is_not_new() {
    let mut turns = Turns::default();
    let (busy, eager) = (Flow::new(), Flow::new());
    for _ in 0..10 {
        turns.push(First, busy, Now, "busy");
    }
    let mut popped = Vec::new();
    for _ in 0..20 {
        if !popped.ends_with(&["eager"]) || turns.waiting().0 == 0 {
            turns.push(First, eager, Now, "eager");
        }
        popped.extend(next(&mut turns));
    }
    let busy = popped.iter().filter(|of| **of == "busy").count();
    assert_eq!(busy, 10, "{popped:?}");
}

#[test]
fn the_second_priority_gets_an_eighth_of_the_time_and_all_that_the_first_leaves() {
    let (short, long) = (Duration::from_millis(1), Duration::from_millis(50));
    let mut turns = Turns::default();
    let flow = Flow::new();
    let mut spent = [Duration::ZERO; 2];
    turns.push(Second, flow, Now, Second);
    turns.push(First, flow, Now, First);
    for _ in 0..5000 {
        let (priority, piece) = turns.pop().unwrap();
        let took = if priority == First { short } else { long };
        spent[priority as usize] += took;
        turns.ended(piece, took);
        turns.push(priority, flow, Now, priority);
    }
    let share = spent[1].as_secs_f64() / (spent[0] + spent[1]).as_secs_f64();
    assert!((0.115..0.135).contains(&share), "{share}");
    // While one operation of the second priority runs, and until the time owed has passed, no thread starts another
    // one.
    let mut turns = Turns::default();
    for priority in [First, First, First, Second, Second] {
        turns.push(priority, flow, Now, priority);
    }
    assert_eq!(turns.pop(), Some((First, Piece::First)));
    turns.ended(Piece::First, FIRST_ALONE);
    let (_, beside) = turns.pop().unwrap();
    assert_eq!(beside, Piece::Beside);
    assert_eq!(turns.pop(), Some((First, Piece::First)));
    turns.ended(beside, long);
    assert_eq!(turns.pop(), Some((First, Piece::First)));
    // No more work of the first priority is queued.
    assert_eq!(turns.pop(), Some((Second, Piece::Second)));
}

proptest! {
    #[test]
    fn all_that_is_pushed_is_popped_once_and_in_the_order_of_its_stream(
        steps in prop::collection::vec(prop::option::of((any::<bool>(), any::<bool>(), 0_usize..5)), 0..200),
    ) {
        let mut turns = Turns::default();
        let flows: Vec<Flow> = (0..5).map(|_| Flow::new()).collect();
        let mut pushed: BTreeMap<(bool, usize), Vec<usize>> = BTreeMap::new();
        let mut popped: BTreeMap<(bool, usize), Vec<usize>> = BTreeMap::new();
        let mut note = |of: Option<((bool, usize), usize)>| {
            of.map(|(key, number)| popped.entry(key).or_default().push(number)).is_some()
        };
        let mut waiting = 0;
        for (number, step) in steps.into_iter().enumerate() {
            if let Some((is_first, is_needed, flow)) = step {
                let (priority, need) = (if is_first { First } else { Second }, if is_needed { Now } else { Later });
                turns.push(priority, flows[flow], need, ((is_first, flow), number));
                pushed.entry((is_first, flow)).or_default().push(number);
                waiting += 1;
            } else {
                let next = turns.pop();
                if let Some((_, piece)) = next {
                    turns.ended(piece, Duration::from_millis(number as u64 % 7));
                }
                waiting -= usize::from(note(next.map(|(work, _)| work)));
            }
            let (first, second) = turns.waiting();
            prop_assert_eq!(first + second, waiting);
        }
        while note(next(&mut turns)) {}
        prop_assert_eq!(popped, pushed);
        prop_assert!(turns.first.of.is_empty() && turns.second.of.is_empty());
    }
}
