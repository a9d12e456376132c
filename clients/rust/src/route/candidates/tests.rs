use proptest::prelude::*;

use super::*;

const INTERVALS: Intervals =
    Intervals { replan: Duration::from_secs(300), failback: Duration::from_secs(60) };

fn urls(names: &str) -> Vec<Arc<str>> {
    names.chars().map(|name| format!("grpc://{name}").into()).collect()
}

fn location(name: char) -> Candidate {
    Candidate::Location(format!("grpc://{name}").into())
}

fn candidates(names: &str) -> Candidates {
    Candidates::new(Instant::now(), 0.5, urls(names), INTERVALS)
}

fn on(candidates: &mut Candidates, event: Event<'_>) {
    candidates.on(Instant::now(), 0.5, event);
}

fn fail(candidates: &mut Candidates, own_targets: usize) -> Candidate {
    let current = candidates.current();
    on(candidates, Event::Failed(&current, own_targets));
    current
}

#[test]
fn a_round_has_the_locations_in_order_and_then_the_servers_of_the_client() {
    let mut candidates = candidates("ab");
    let tried: Vec<_> = (0..6).map(|_| fail(&mut candidates, 2)).collect();
    let round = [location('a'), location('b'), Candidate::Own, Candidate::Own];
    assert_eq!(tried, [&round[..], &round[..2]].concat());
}

#[test]
fn several_streams_that_fail_at_one_candidate_leave_it_once() {
    let mut candidates = candidates("abc");
    for _ in 0..5 {
        on(&mut candidates, Event::Failed(&location('a'), 1));
    }
    assert_eq!(candidates.current(), location('b'));
}

#[test]
fn without_locations_the_servers_of_the_client_are_used() {
    let mut candidates = candidates("");
    assert!((0..5).all(|_| fail(&mut candidates, 1) == Candidate::Own));
    assert_eq!(candidates.to_probe(Instant::now()), None);
    assert!(!candidates.has_moved_from(&Candidate::Own));
}

#[test]
fn every_candidate_has_its_number_and_the_last_one_has_to_serve() {
    let several = candidates("abc");
    let numbers = ['a', 'b', 'c', 'x'].map(|name| several.number(&location(name)));
    let (number, last) = (CandidateNumber::Number, CandidateNumber::Last);
    assert_eq!(numbers, [number(0), number(1), last, last]);
    assert_eq!(several.number(&Candidate::Own), last);
    assert_eq!(candidates("a").number(&location('a')), last);
}

#[test]
fn streams_move_to_a_new_first_location_after_it_has_answered() {
    let mut candidates = candidates("ab");
    on(&mut candidates, Event::Opened(&location('a')));
    assert_eq!(candidates.to_probe(Instant::now()), None);
    on(&mut candidates, Event::Planned(urls("ca")));
    assert_eq!(candidates.current(), location('a'), "it is in use until the new one has answered");
    assert_eq!(candidates.to_probe(Instant::now()), Some(&urls("c")[0]));
    assert!(!candidates.has_moved_from(&location('a')));
    on(&mut candidates, Event::Answered(&urls("c")[0]));
    assert_eq!(candidates.current(), location('c'));
    assert!(candidates.has_moved_from(&location('a')) && candidates.has_moved_from(&Candidate::Own));
    assert!(!candidates.has_moved_from(&location('c')));
    // An answer that comes after another plan counts for nothing.
    on(&mut candidates, Event::Planned(urls("da")));
    on(&mut candidates, Event::Answered(&urls("c")[0]));
    assert!(!candidates.has_moved_from(&location('a')));
}

#[test]
fn streams_stay_where_they_are_while_the_plan_names_the_same_first_location() {
    let mut candidates = candidates("abc");
    on(&mut candidates, Event::Opened(&location('a')));
    on(&mut candidates, Event::Planned(urls("acb")));
    assert_eq!((candidates.current(), candidates.to_probe(Instant::now())), (location('a'), None));
    on(&mut candidates, Event::Planned(Vec::new()));
    assert_eq!((candidates.current(), candidates.to_probe(Instant::now())), (Candidate::Own, None));
}

#[test]
fn a_first_location_that_failed_is_probed_after_the_failback_interval() {
    let mut candidates = candidates("ab");
    on(&mut candidates, Event::Opened(&location('a')));
    let now = Instant::now();
    candidates.on(now, 0.0, Event::NotPlanned);
    let current = candidates.current();
    candidates.on(now, 0.5, Event::Failed(&current, 1));
    candidates.on(now, 0.5, Event::Opened(&location('b')));
    assert!(candidates.replan_at() <= now + Duration::from_secs(21), "the plan may have changed");
    candidates.on(now, 0.0, Event::Planned(urls("ab")));
    assert!(candidates.replan_at() <= now + Duration::from_secs(61));
    on(&mut candidates, Event::Answered(&urls("a")[0]));
    assert!(candidates.has_moved_from(&location('b')));
    assert!(candidates.replan_at() >= now + Duration::from_secs(150));
}

#[test]
fn a_first_location_that_stays_down_is_probed_again_and_again_with_pauses() {
    let (mut now, mut candidates) = (Instant::now(), candidates("ab"));
    candidates.on(now, 0.0, Event::Failed(&location('a'), 1));
    candidates.on(now, 0.0, Event::Opened(&location('b')));
    for _ in 0..10 {
        now = now.max(candidates.replan_at());
        candidates.on(now, 0.0, Event::NotPlanned);
        let pause = candidates.replan_at() - now;
        assert!((Duration::from_secs(10)..=Duration::from_secs(60)).contains(&pause), "{pause:?}");
        assert_eq!(candidates.to_probe(now), Some(&urls("a")[0]));
    }
}

#[test]
fn a_redirected_stream_goes_to_the_next_candidate_and_changes_no_time() {
    let mut candidates = candidates("ab");
    let due = candidates.replan_at();
    on(&mut candidates, Event::Redirected(&location('a')));
    assert_eq!((candidates.current(), candidates.replan_at()), (location('b'), due));
}

#[test]
fn a_first_location_that_redirected_a_stream_is_left_alone_until_the_plan_changes_or_a_long_time_has_passed()
{
    let (now, first) = (Instant::now(), &urls("a")[0]);
    let redirected = || {
        let mut candidates = candidates("abc");
        candidates.on(now, 0.0, Event::Redirected(&location('a')));
        candidates.on(now, 0.0, Event::Opened(&location('b')));
        candidates
    };
    let mut candidates = redirected();
    for number in 1..=6 {
        let at = now + INTERVALS.replan * number;
        candidates.on(at, 0.0, Event::Planned(urls("abc")));
        let expected = (number == 6).then_some(first);
        assert_eq!(candidates.to_probe(at), expected, "after {number} intervals");
    }
    // After its answer it is the first choice again, and another refusal counts anew.
    candidates.on(now, 0.0, Event::Answered(first));
    assert!(candidates.has_moved_from(&location('b')));
    candidates.on(now + INTERVALS.replan * 6, 0.0, Event::Redirected(&location('a')));
    assert_eq!(candidates.to_probe(now + INTERVALS.replan * 11), None);
    let mut changed = redirected();
    changed.on(now, 0.0, Event::Planned(urls("ab")));
    assert_eq!(changed.to_probe(now), Some(first));
    // Once it has served or failed, its earlier load says nothing.
    for event in [Event::Opened(&location('a')), Event::Failed(&location('a'), 1)] {
        let mut candidates = redirected();
        candidates.on(now, 0.0, event);
        candidates.on(now, 0.0, Event::Opened(&location('b')));
        assert_eq!(candidates.to_probe(now), Some(first));
    }
    // A location behind the first one does not keep streams away from it.
    let mut second = self::candidates("abc");
    second.on(now, 0.0, Event::Failed(&location('a'), 1));
    second.on(now, 0.0, Event::Redirected(&location('b')));
    second.on(now, 0.0, Event::Opened(&location('c')));
    assert_eq!(second.to_probe(now), Some(first));
}

#[derive(Debug, Clone)]
enum Step {
    Fail,
    Redirect,
    Open,
    Epoch,
    Plan(String),
    Answer,
    NoPlan,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => Just(Step::Fail),
        1 => Just(Step::Redirect),
        3 => Just(Step::Open),
        1 => Just(Step::Epoch),
        2 => "[a-d]{0,3}".prop_map(Step::Plan),
        1 => Just(Step::Answer),
        1 => Just(Step::NoPlan),
    ];
    proptest::collection::vec(step, 0..60)
}

fn apply(candidates: &mut Candidates, now: Instant, random: f64, step: &Step, own_targets: usize) {
    let current = candidates.current();
    let first = candidates.urls().into_iter().next();
    match (step, &first) {
        (Step::Fail, _) => candidates.on(now, random, Event::Failed(&current, own_targets)),
        (Step::Redirect, _) => candidates.on(now, random, Event::Redirected(&current)),
        (Step::Open, _) => candidates.on(now, random, Event::Opened(&current)),
        (Step::Epoch, _) => candidates.on(now, random, Event::Epoch),
        (Step::Plan(names), _) => {
            let mut unique = urls(names);
            unique.sort();
            unique.dedup();
            candidates.on(now, random, Event::Planned(unique));
        }
        (Step::Answer, Some(first)) => candidates.on(now, random, Event::Answered(first)),
        (Step::NoPlan, _) => candidates.on(now, random, Event::NotPlanned),
        (Step::Answer, None) => {}
    }
}

proptest! {
    #[test]
    fn from_any_state_a_round_of_failures_reaches_every_candidate(
        names in "[a-d]{0,1}", steps in steps(), random in 0.0..1.0_f64, own in 1_usize..4,
    ) {
        let (now, mut candidates) = (Instant::now(), candidates(&names));
        for (second, step) in (0..).zip(&steps) {
            apply(&mut candidates, now + Duration::from_secs(second), random, step, own);
        }
        let rounds = 2 * (candidates.locations() + own);
        let tried: Vec<_> = (0..rounds).map(|_| fail(&mut candidates, own)).collect();
        for url in candidates.urls() {
            prop_assert!(tried.contains(&Candidate::Location(url)));
        }
        prop_assert!(tried.iter().filter(|candidate| **candidate == Candidate::Own).count() >= own);
    }

    #[test]
    fn streams_move_only_to_the_first_location_and_only_after_it_has_answered(
        steps in steps(), random in 0.0..1.0_f64,
    ) {
        let (now, mut candidates) = (Instant::now(), candidates("ab"));
        let mut has_answered = false;
        for (second, step) in (0..).zip(&steps) {
            let before = candidates.urls();
            apply(&mut candidates, now + Duration::from_secs(second), random, step, 1);
            has_answered = match step {
                Step::Answer => !candidates.urls().is_empty(),
                _ => has_answered && before == candidates.urls(),
            };
            for candidate in ['a', 'b', 'c', 'd'].map(location).into_iter().chain([Candidate::Own]) {
                if candidates.has_moved_from(&candidate) {
                    prop_assert!(has_answered && candidates.current() == Candidate::Location(candidates.urls()[0].clone()));
                    prop_assert!(candidate != candidates.current());
                }
            }
            prop_assert!(candidates.at <= candidates.locations());
            prop_assert!(candidates.replan_at() <= now + Duration::from_secs(second) + INTERVALS.replan);
        }
    }
}
