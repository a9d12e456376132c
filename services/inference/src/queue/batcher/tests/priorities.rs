//! Requests of low priority wait for the others, and make room for them.

use super::*;

const LOW: Class = Class { tenant: Tenant::SERVER, priority: Priority::Low };
const NORMAL: Class = Class { tenant: Tenant::SERVER, priority: Priority::Normal };
const SECOND: Duration = Duration::from_secs(1);

fn config() -> QueueConfig {
    QueueConfig {
        max_batch_rows: 64,
        max_batch_delay: Duration::ZERO,
        max_queue_requests: 10,
        ..QueueConfig::default()
    }
}

/// Sends all queued requests and returns them in the order of the batches.
fn sent(batcher: &mut Batcher, worker: WorkerId, mut now: Time) -> Vec<Vec<RequestId>> {
    let mut batches = Vec::new();
    while let Decision::Send(formed) = batcher.next(now) {
        now += ms(3);
        batcher.gathered(now, formed.batch);
        batcher.complete(now, worker, formed.batch).expect("the batch is in flight");
        batches.push(formed.requests);
    }
    batches
}

#[test]
fn a_request_of_normal_priority_overtakes_all_of_low_priority() {
    let (mut batcher, worker, now) = trained(config());
    let mut admit = |class| batcher.admit_for(class, now, (48, 4800), Some(SECOND)).expect("admitted");
    let low = [LOW, LOW, LOW].map(&mut admit);
    let normal = [NORMAL, NORMAL].map(&mut admit);
    let batches = sent(&mut batcher, worker, now);
    assert_eq!(batches.concat(), [normal[0], normal[1], low[0], low[1], low[2]]);
}

#[test]
fn the_rest_of_a_batch_is_filled_with_requests_of_low_priority() {
    let (mut batcher, worker, now) = trained(config());
    let low = batcher.admit_for(LOW, now, (16, 1600), Some(SECOND)).expect("admitted");
    let normal = batcher.admit_for(NORMAL, now, (48, 4800), Some(SECOND)).expect("admitted");
    assert_eq!(sent(&mut batcher, worker, now), [[normal, low]]);
}

#[test]
fn a_request_of_low_priority_joins_a_batch_only_if_the_others_are_in_time_with_it() {
    // 48 rows take 2.5 ms, 4,048 rows take 42 ms.
    let (mut batcher, worker, now) = trained(QueueConfig { max_batch_rows: 5000, ..config() });
    let low = batcher.admit_for(LOW, now, (4000, 4000), Some(SECOND)).expect("admitted");
    let normal = batcher.admit_for(NORMAL, now, (48, 4800), Some(ms(20))).expect("admitted");
    let formed = batch(batcher.next(now + ms(10)));
    assert_eq!(formed.requests, [normal]);
    batcher.complete(now + ms(13), worker, formed.batch).expect("the batch is in flight");
    assert_eq!(batch(batcher.next(now + ms(20))).requests, [low]);
}

#[test]
fn requests_of_low_priority_delay_the_prediction_of_low_priority_only() {
    let (mut batcher, _, now) = trained(QueueConfig { max_queue_requests: 1000, ..config() });
    let predicted = |batcher: &Batcher, class| batcher.predict_for(class, now, 1, 100).expect("trained");
    let empty = predicted(&batcher, NORMAL);
    for _ in 0..100 {
        batcher.admit_for(LOW, now, (64, 6400), Some(SECOND)).expect("admitted");
    }
    assert_eq!(predicted(&batcher, NORMAL), empty);
    let low = predicted(&batcher, LOW);
    assert!(low > ms(200), "{low:?}");
    batcher.admit_for(NORMAL, now, (64, 6400), Some(SECOND)).expect("admitted");
    assert!(predicted(&batcher, LOW) > low && predicted(&batcher, NORMAL) > empty);
}

#[test]
fn in_a_full_queue_the_last_requests_of_low_priority_make_room() {
    let (mut batcher, worker, now) = trained(config());
    let low: Vec<RequestId> =
        (0..10).map(|_| batcher.admit_for(LOW, now, (1, 100), Some(SECOND)).expect("admitted")).collect();
    let refusal = batcher.admit_for(LOW, now, (1, 100), Some(SECOND)).expect_err("the queue is full");
    assert!(matches!(refusal, Refusal::Full { .. }), "{refusal}");
    let normal: Vec<RequestId> = (0..10)
        .map(|number| {
            let id = batcher.admit_for(NORMAL, now, (1, 100), Some(SECOND)).expect("admitted");
            assert_eq!(batcher.displaced(), [low[9 - number]]);
            id
        })
        .collect();
    let refusal = batcher.admit_for(NORMAL, now, (1, 100), Some(SECOND)).expect_err("the queue is full");
    assert!(matches!(refusal, Refusal::Full { .. }), "{refusal}");
    assert!(batcher.displaced().is_empty());
    assert_eq!(sent(&mut batcher, worker, now).concat(), normal);
}
