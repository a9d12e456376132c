use super::*;

const WINDOW: Duration = Duration::from_secs(10);

fn window(parts: &[(Bucket, f64)]) -> Buckets {
    let mut buckets = Buckets::default();
    parts.iter().for_each(|(bucket, seconds)| buckets[*bucket] = Duration::from_secs_f64(*seconds));
    buckets
}

fn agreed(parts: &[(Bucket, f64)]) -> Verdict {
    let recent = window(parts);
    judge(&Evidence { recent, before: recent, window: WINDOW, sessions: 1, batches: 3 })
}

#[test]
fn the_stage_with_most_of_the_wait_is_named_with_what_it_costs() {
    let verdict = agreed(&[
        (Bucket::Consumer, 2.0),
        (Bucket::Storage, 6.0),
        (Bucket::Decode, 1.5),
        (Bucket::Network, 0.5),
    ]);
    assert_eq!((verdict.limit, verdict.level), (Limit::Storage, Level::InputBound));
    assert_eq!(verdict.confidence, Confidence::High);
    assert_eq!(verdict.utilization, Some(0.2));
    let what_if = verdict.what_if.unwrap();
    assert!((what_if.speedup - 2.5).abs() < 1e-9, "{what_if:?}");
    assert_eq!((what_if.without, what_if.then), (Limit::Storage, Limit::Consumer));
}

#[test]
fn a_trainer_that_hardly_waits_is_the_limit() {
    let verdict = agreed(&[(Bucket::Consumer, 9.6), (Bucket::Storage, 0.4)]);
    assert_eq!((verdict.limit, verdict.level), (Limit::Consumer, Level::None));
    assert_eq!(verdict.what_if, None);
    let verdict = agreed(&[(Bucket::Downstream, 9.6), (Bucket::Gather, 0.4)]);
    assert_eq!((verdict.limit, verdict.utilization), (Limit::Downstream, None));
    let verdict = agreed(&[(Bucket::Consumer, 9.0), (Bucket::Gather, 1.0)]);
    assert_eq!((verdict.limit, verdict.level), (Limit::Gather, Level::Moderate));
}

#[test]
fn no_verdict_without_enough_time_or_agreement() {
    let storage = window(&[(Bucket::Storage, 9.0), (Bucket::Consumer, 1.0)]);
    let decode = window(&[(Bucket::Decode, 9.0), (Bucket::Consumer, 1.0)]);
    let evidence = |recent, before, batches| {
        judge(&Evidence { recent, before, window: WINDOW, sessions: 1, batches }).limit
    };
    assert_eq!(evidence(storage, decode, 1000), Limit::Unknown);
    let short = window(&[(Bucket::Storage, 2.7), (Bucket::Consumer, 0.3)]);
    assert_eq!(evidence(storage, short, 10), Limit::Unknown);
    assert_eq!(evidence(storage, short, 200), Limit::Storage);
    assert_eq!(evidence(storage, Buckets::default(), 200), Limit::Unknown);
    assert_eq!(evidence(Buckets::default(), storage, 200), Limit::Idle);
    // Of two trainers one is seen.
    let half = Evidence { recent: storage, before: storage, window: WINDOW, sessions: 2, batches: 3 };
    assert_eq!(judge(&half).limit, Limit::Unknown);
}

#[test]
fn a_wait_without_one_cause_is_told_with_low_confidence() {
    let verdict = agreed(&[
        (Bucket::Consumer, 4.0),
        (Bucket::Storage, 2.2),
        (Bucket::Decode, 2.0),
        (Bucket::Gather, 1.8),
    ]);
    assert_eq!((verdict.limit, verdict.confidence), (Limit::Storage, Confidence::Low));
}
