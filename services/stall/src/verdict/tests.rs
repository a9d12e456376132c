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
fn the_stage_with_most_of_the_wait_is_the_bottleneck_with_its_speedup() {
    let verdict = agreed(&[
        (Bucket::Compute, 2.0),
        (Bucket::Storage, 6.0),
        (Bucket::Decode, 1.5),
        (Bucket::Network, 0.5),
    ]);
    assert_eq!((verdict.bottleneck, verdict.level), (Bottleneck::Storage, Level::InputBound));
    assert_eq!(verdict.confidence, Confidence::High);
    assert_eq!(verdict.compute_fraction, Some(0.2));
    let what_if = verdict.what_if.unwrap();
    assert!((what_if.speedup - 2.5).abs() < 1e-9, "{what_if:?}");
    assert_eq!((what_if.removed, what_if.next_bottleneck), (Bottleneck::Storage, Bottleneck::Compute));
}

#[test]
fn a_trainer_that_hardly_waits_is_the_bottleneck() {
    let verdict = agreed(&[(Bucket::Compute, 9.6), (Bucket::Storage, 0.4)]);
    assert_eq!((verdict.bottleneck, verdict.level), (Bottleneck::Compute, Level::None));
    assert_eq!(verdict.what_if, None);
    let verdict = agreed(&[(Bucket::ComputeOrNetwork, 9.6), (Bucket::Gather, 0.4)]);
    assert_eq!((verdict.bottleneck, verdict.compute_fraction), (Bottleneck::ComputeOrNetwork, None));
    let verdict = agreed(&[(Bucket::Compute, 9.0), (Bucket::Gather, 1.0)]);
    assert_eq!((verdict.bottleneck, verdict.level), (Bottleneck::Gather, Level::Moderate));
}

#[test]
fn no_verdict_without_enough_time_or_agreement() {
    let storage = window(&[(Bucket::Storage, 9.0), (Bucket::Compute, 1.0)]);
    let decode = window(&[(Bucket::Decode, 9.0), (Bucket::Compute, 1.0)]);
    let evidence = |recent, before, batches| {
        judge(&Evidence { recent, before, window: WINDOW, sessions: 1, batches }).bottleneck
    };
    assert_eq!(evidence(storage, decode, 1000), Bottleneck::Unknown);
    let short = window(&[(Bucket::Storage, 2.7), (Bucket::Compute, 0.3)]);
    assert_eq!(evidence(storage, short, 10), Bottleneck::Unknown);
    assert_eq!(evidence(storage, short, 200), Bottleneck::Storage);
    assert_eq!(evidence(storage, Buckets::default(), 200), Bottleneck::Unknown);
    assert_eq!(evidence(Buckets::default(), storage, 200), Bottleneck::Idle);
    // Only one of two trainers is accounted for.
    let half = Evidence { recent: storage, before: storage, window: WINDOW, sessions: 2, batches: 3 };
    assert_eq!(judge(&half).bottleneck, Bottleneck::Unknown);
}

#[test]
fn a_wait_without_a_main_cause_has_low_confidence() {
    let verdict = agreed(&[
        (Bucket::Compute, 4.0),
        (Bucket::Storage, 2.2),
        (Bucket::Decode, 2.0),
        (Bucket::Gather, 1.8),
    ]);
    assert_eq!((verdict.bottleneck, verdict.confidence), (Bottleneck::Storage, Confidence::Low));
}
