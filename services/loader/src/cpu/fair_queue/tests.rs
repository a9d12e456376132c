use std::{collections::BTreeMap, num::NonZeroU32};

use proptest::prelude::*;

use super::*;
use Priority::{Background, Interactive};
use Urgency::{Later, Now};

fn next<T>(queue: &mut FairQueue<T>) -> Option<T> {
    queue.pop().map(|(work, _)| work)
}

/// Pops all queued work.
fn rest<T>(queue: &mut FairQueue<T>) -> Vec<T> {
    std::iter::from_fn(|| next(queue)).collect()
}

#[test]
fn urgent_work_precedes_prefetching() {
    let mut queue = FairQueue::default();
    let (busy, full, starved) = (Flow::new(), Flow::new(), Flow::new());
    for piece in ["busy 1", "busy 2", "busy 3"] {
        queue.push(Interactive, busy, Now, piece);
    }
    assert_eq!([next(&mut queue), next(&mut queue)], [Some("busy 1"), Some("busy 2")]);
    queue.push(Interactive, full, Later, "full 1");
    queue.push(Interactive, full, Later, "full 2");
    queue.push(Interactive, starved, Now, "starved 1");
    queue.push(Interactive, starved, Now, "starved 2");
    assert_eq!(rest(&mut queue), ["starved 1", "busy 3", "full 1", "starved 2", "full 2"]);
}

#[test]
fn flows_are_served_evenly() {
    for urgency in [Now, Later] {
        let mut queue = FairQueue::default();
        let flows = [Flow::new(), Flow::new(), Flow::new()];
        for flow in flows {
            for _ in 0..4 {
                queue.push(Background, flow, urgency, flow);
            }
        }
        let order = rest(&mut queue);
        assert_eq!(order.len(), 12);
        for end in 4..12 {
            let counts = flows.map(|flow| order[..end].iter().filter(|of| **of == flow).count());
            assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 3, "{end}: {counts:?}");
        }
    }
}

#[test]
fn a_constant_supply_of_new_flows_does_not_starve_old_flows() {
    let mut queue = FairQueue::default();
    let busy = Flow::new();
    for piece in 0..100 {
        queue.push(Interactive, busy, Now, Some(piece));
    }
    let mut popped = Vec::new();
    for _ in 0..300 {
        queue.push(Interactive, Flow::new(), Now, None);
        popped.extend(next(&mut queue));
    }
    assert_eq!(popped.iter().flatten().count(), 100);
    // Flows that were served once are removed, too.
    let known: usize = queue.interactive.of.values().map(|turns| turns.of.len()).sum();
    let known = known - queue.interactive.waiting;
    assert!(known <= 2, "{known} flows without queued work");
}

#[test]
fn a_flow_that_submits_again_does_not_count_as_new() {
    let mut queue = FairQueue::default();
    let (busy, eager) = (Flow::new(), Flow::new());
    for _ in 0..10 {
        queue.push(Interactive, busy, Now, "busy");
    }
    let mut popped = Vec::new();
    for _ in 0..20 {
        if !popped.ends_with(&["eager"]) || queue.waiting().0 == 0 {
            queue.push(Interactive, eager, Now, "eager");
        }
        popped.extend(next(&mut queue));
    }
    let busy = popped.iter().filter(|of| **of == "busy").count();
    assert_eq!(busy, 10, "{popped:?}");
}

#[test]
fn background_work_gets_an_eighth_of_the_time_and_all_unused_time() {
    let (short, long) = (Duration::from_millis(1), Duration::from_millis(50));
    let mut queue = FairQueue::default();
    let flow = Flow::new();
    let mut spent = [Duration::ZERO; 2];
    queue.push(Background, flow, Now, Background);
    queue.push(Interactive, flow, Now, Interactive);
    for _ in 0..5000 {
        let (priority, turn) = queue.pop().unwrap();
        let took = if priority == Interactive { short } else { long };
        spent[priority as usize] += took;
        queue.ended(turn, took);
        queue.push(priority, flow, Now, priority);
    }
    let fraction = spent[1].as_secs_f64() / (spent[0] + spent[1]).as_secs_f64();
    assert!((0.115..0.135).contains(&fraction), "{fraction}");
    // While one background operation runs, and until the time owed has passed, no thread starts another one.
    let mut queue = FairQueue::default();
    for priority in [Interactive, Interactive, Interactive, Background, Background] {
        queue.push(priority, flow, Now, priority);
    }
    let start = |queue: &mut FairQueue<Priority>, expected: (Priority, Kind)| {
        let (priority, turn) = queue.pop().unwrap();
        assert_eq!((priority, turn.kind), expected);
        turn
    };
    let first = start(&mut queue, (Interactive, Kind::Interactive));
    queue.ended(first, INTERACTIVE_ALONE);
    let share = start(&mut queue, (Background, Kind::Share));
    start(&mut queue, (Interactive, Kind::Interactive));
    queue.ended(share, long);
    start(&mut queue, (Interactive, Kind::Interactive));
    // No more interactive work is queued.
    start(&mut queue, (Background, Kind::Background));
}

/// Work of tenants with many flows each, all of which always have work. Returns the time that each tenant got.
fn share_time(weights: &[u32], took: impl Fn(usize, u32) -> Duration) -> Vec<Duration> {
    let mut queue = FairQueue::default();
    let mut spent = vec![Duration::ZERO; weights.len()];
    let tenant = |of: usize| Tenant::new(of as u64 + 1, NonZeroU32::new(weights[of]).unwrap());
    for of in 0..weights.len() {
        for _ in 0..=of * 3 {
            queue.push(Interactive, Flow::of(tenant(of)), Now, of);
        }
    }
    for number in 0..10_000 {
        let (of, turn) = queue.pop().unwrap();
        let took = took(of, number);
        spent[of] += took;
        queue.push(Interactive, Flow::of(tenant(of)), Now, of);
        queue.ended(turn, took);
    }
    spent
}

#[test]
fn tenants_share_time_by_weight_whatever_the_number_of_flows_and_the_length_of_their_operations() {
    let spent = share_time(&[3, 1, 4], |of, number| {
        Duration::from_micros(10 + of as u64 * 90 + u64::from(number % 50))
    });
    let all: Duration = spent.iter().sum();
    for (spent, weight) in spent.iter().zip([3.0, 1.0, 4.0]) {
        let share = spent.as_secs_f64() / all.as_secs_f64() * 8.0 / weight;
        assert!((0.99..1.01).contains(&share), "{share}");
    }
}

#[test]
fn a_tenant_gets_no_credit_for_time_without_work_and_no_work_is_delayed_without_competition() {
    let mut queue = FairQueue::default();
    let [busy, late] = [1, 2].map(|id| Tenant::new(id, NonZeroU32::MIN));
    let run = |queue: &mut FairQueue<&'static str>| {
        let (work, turn) = queue.pop().unwrap();
        queue.ended(turn, Duration::from_millis(1));
        work
    };
    for _ in 0..100 {
        queue.push(Interactive, Flow::of(busy), Now, "busy");
        assert_eq!(run(&mut queue), "busy");
    }
    for _ in 0..20 {
        queue.push(Interactive, Flow::of(busy), Now, "busy");
        queue.push(Interactive, Flow::of(late), Now, "late");
    }
    let order: Vec<_> = (0..20).map(|_| run(&mut queue)).collect();
    let late = order.iter().filter(|of| **of == "late").count();
    assert!((9..=11).contains(&late), "{order:?}");
}

#[test]
fn a_tenant_that_was_slow_for_long_gets_no_credit_although_it_always_had_work_running() {
    let mut queue = FairQueue::default();
    let [slow, busy] = [1, 2].map(|id| Tenant::new(id, NonZeroU32::MIN));
    let millisecond = Duration::from_millis(1);
    // One operation of the slow tenant is always running.
    queue.push(Interactive, Flow::of(slow), Now, "slow");
    let (_, mut running) = queue.pop().unwrap();
    for _ in 0..100 {
        for _ in 0..100 {
            queue.push(Interactive, Flow::of(busy), Now, "busy");
            let (_, turn) = queue.pop().unwrap();
            queue.ended(turn, millisecond);
        }
        queue.push(Interactive, Flow::of(slow), Now, "slow");
        let (_, next) = queue.pop().unwrap();
        queue.ended(std::mem::replace(&mut running, next), millisecond);
    }
    for _ in 0..100 {
        queue.push(Interactive, Flow::of(slow), Now, "slow");
        queue.push(Interactive, Flow::of(busy), Now, "busy");
    }
    let mut order = Vec::new();
    for _ in 0..100 {
        let (work, turn) = queue.pop().unwrap();
        order.push(work);
        queue.ended(turn, millisecond);
    }
    let slow = order.iter().filter(|of| **of == "slow").count();
    assert!((45..=55).contains(&slow), "{slow} of 100");
}

#[test]
fn decoding_of_one_tenant_is_not_preferred_because_another_only_gathers() {
    let mut queue = FairQueue::default();
    let [decodes, gathers, late] = [1, 2, 3].map(|id| Tenant::new(id, NonZeroU32::MIN));
    let (short, long) = (Duration::from_millis(1), Duration::from_millis(10));
    let mut popped = Vec::new();
    for round in 0..2000 {
        queue.push(Interactive, Flow::of(gathers), Now, "gathers");
        queue.push(Background, Flow::of(decodes), Now, "decodes");
        if round >= 1000 {
            queue.push(Background, Flow::of(late), Now, "late");
        }
        let (work, turn) = queue.pop().unwrap();
        queue.ended(turn, if work == "gathers" { short } else { long });
        if round >= 1000 {
            popped.push(work);
        }
    }
    let count = |of: &str| popped.iter().filter(|work| **work == of).count();
    let (late, decodes) = (count("late"), count("decodes"));
    assert!(late > 0 && late.abs_diff(decodes) <= 2, "{late} and {decodes}");
}

#[test]
fn interactive_work_after_an_idle_time_runs_alone_at_first() {
    let mut queue = FairQueue::default();
    let flow = Flow::new();
    for priority in [Interactive, Background] {
        queue.push(priority, flow, Now, priority);
    }
    let (_, turn) = queue.pop().unwrap();
    queue.ended(turn, INTERACTIVE_ALONE);
    rest(&mut queue);
    for priority in [Interactive, Interactive, Background] {
        queue.push(priority, flow, Now, priority);
    }
    assert_eq!(rest(&mut queue), [Interactive, Interactive, Background]);
}

#[test]
fn tenants_without_work_are_forgotten() {
    let mut queue = FairQueue::default();
    for id in 0..1000 {
        queue.push(Interactive, Flow::of(Tenant::new(id, NonZeroU32::MIN)), Now, ());
        let ((), turn) = queue.pop().unwrap();
        queue.ended(turn, Duration::from_millis(1));
    }
    assert_eq!(queue.interactive.shares.len(), 0);
    assert!(queue.pop().is_none() && queue.interactive.of.is_empty());
}

proptest! {
    #[test]
    fn every_operation_is_popped_once_and_in_the_order_of_its_flow(
        steps in prop::collection::vec(prop::option::of((any::<bool>(), any::<bool>(), 0_usize..6)), 0..200),
    ) {
        let mut queue = FairQueue::default();
        let tenant = |flow: u32| Tenant::new((flow % 3).into(), NonZeroU32::new(flow % 3 + 1).unwrap());
        let flows: Vec<Flow> = (0..6).map(|flow| Flow::of(tenant(flow))).collect();
        let mut pushed: BTreeMap<(bool, usize), Vec<usize>> = BTreeMap::new();
        let mut popped: BTreeMap<(bool, usize), Vec<usize>> = BTreeMap::new();
        let mut note = |of: Option<((bool, usize), usize)>| {
            of.map(|(key, number)| popped.entry(key).or_default().push(number)).is_some()
        };
        let mut waiting = 0;
        for (number, step) in steps.into_iter().enumerate() {
            if let Some((is_interactive, is_needed, flow)) = step {
                let (priority, urgency) = (if is_interactive { Interactive } else { Background }, if is_needed { Now } else { Later });
                queue.push(priority, flows[flow], urgency, ((is_interactive, flow), number));
                pushed.entry((is_interactive, flow)).or_default().push(number);
                waiting += 1;
            } else {
                let next = queue.pop();
                if let Some((_, turn)) = next {
                    queue.ended(turn, Duration::from_millis(number as u64 % 7));
                }
                waiting -= usize::from(note(next.map(|(work, _)| work)));
            }
            let (interactive, background) = queue.waiting();
            prop_assert_eq!(interactive + background, waiting);
        }
        while note(next(&mut queue)) {}
        prop_assert_eq!(popped, pushed);
        prop_assert!(queue.interactive.of.is_empty() && queue.background.of.is_empty());
    }
}
