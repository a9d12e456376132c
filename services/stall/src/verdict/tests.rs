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

#[test]
fn no_speedup_is_predicted_for_trainers_that_do_nothing_but_wait() {
    let verdict = agreed(&[(Bucket::Storage, 10.0)]);
    assert_eq!((verdict.bottleneck, verdict.level), (Bottleneck::Storage, Level::InputBound));
    assert_eq!(verdict.what_if, None);
    let verdict = agreed(&[(Bucket::Storage, 9.7), (Bucket::Compute, 0.3)]);
    assert!((verdict.what_if.unwrap().speedup - 1.0 / 0.03).abs() < 1e-6);
}

#[test]
fn a_store_that_does_not_answer_is_the_bottleneck_at_once_and_nothing_is_predicted() {
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    let judged = |recent: &[(Bucket, f64)], before: &[(Bucket, f64)], silence| {
        let (recent, before) = (window(recent), window(before));
        let verdict = judge(&Evidence { recent, before, window: WINDOW, sessions: 1, batches: 3 });
        while_silent(verdict, &recent, silence)
    };
    // A first window that never arrives: there is no second window to compare.
    let verdict = judged(&[(Bucket::Storage, 4.0)], &[], seconds(5));
    assert_eq!((verdict.bottleneck, verdict.level), (Bottleneck::Storage, Level::InputBound));
    assert_eq!((verdict.silence, verdict.what_if), (seconds(5), None));
    // A slow store answers.
    let slow = [(Bucket::Storage, 8.0), (Bucket::Compute, 2.0)];
    assert_eq!(judged(&slow, &slow, seconds(2)), judged(&slow, &slow, None));
    assert_eq!(judged(&slow, &slow, None).silence, None);
    // Trainers that have enough prefetched batches do not wait for the store.
    let busy = [(Bucket::Storage, 0.3), (Bucket::Compute, 9.7)];
    let verdict = judged(&busy, &busy, seconds(30));
    assert_eq!((verdict.bottleneck, verdict.silence), (Bottleneck::Compute, None));
}
