mod failures;
mod priorities;
mod reference;
mod tenants;

use super::*;
use crate::queue::{Cause, CloseReason, FormedBatch, SilentWorker};
use reference::Reference;

fn ms(milliseconds: u64) -> Time {
    Duration::from_millis(milliseconds)
}

/// A queue with one worker, whose model was trained on batches of 2 ms plus 10 us per row.
fn trained(config: QueueConfig) -> (Batcher, WorkerId, Time) {
    let mut batcher = Batcher::new(config);
    let worker = batcher.add_worker(Time::ZERO, 2);
    for rows in [1, 64, 512].repeat(20) {
        batcher.model.observe(rows, rows * 100, Duration::from_micros(2000 + 10 * rows));
    }
    (batcher, worker, ms(1000))
}

fn batch(decision: Decision) -> FormedBatch {
    match decision {
        Decision::Send(formed) => formed,
        Decision::Wait(until) => panic!("waits until {until:?}"),
    }
}

#[test]
fn decisions_equal_those_of_a_simple_reference_over_a_million_operations() {
    let (mut operations, mut suspensions) = (0, 0);
    for seed in 0..1000 {
        operations += 1000;
        suspensions += compare(seed, 1000);
    }
    assert_eq!(operations, 1_000_000);
    assert!(suspensions > 500, "{suspensions}");
}

/// Runs the same random operations on both. Returns the number of suspensions of workers.
fn compare(seed: u64, operations: u64) -> usize {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut random_config = || QueueConfig {
        max_batch_rows: random.u64(1..200),
        max_batch_bytes: random.u64(1000..20_000),
        max_batch_delay: Duration::from_micros(random.u64(0..4000)),
        eager_dispatch: random.bool(),
        default_timeout: Duration::from_micros(random.u64(1..50_000)),
        max_predicted_wait: Duration::from_micros(random.u64(1..80_000)),
        max_time_in_queue: Duration::from_micros(random.u64(1..80_000)),
        max_queue_requests: random.usize(1..60),
        max_queue_rows: random.u64(1..3000),
        max_queue_bytes: u64::MAX,
        max_attempts: random.u32(1..4),
        max_credits: random.u64(1..4),
        pad_to: if random.bool() { vec![] } else { vec![8, 64] },
    };
    let configs: Vec<QueueConfig> = (0..8).map(|_| random_config()).collect();
    let mut random = fastrand::Rng::with_seed(!seed);
    let mut batcher = Batcher::new(configs[0].clone());
    let mut reference = Reference::new(configs[0].clone());
    let (mut now, mut workers, mut last) = (Time::ZERO, Vec::new(), 0);
    let mut batches: Vec<(BatchId, WorkerId)> = Vec::new();
    let mut suspensions = 0;
    // Some seeds have one tenant, others several.
    let weights = [(1, 1), (2, 3), (3, 2)].map(|(id, weight)| tenants::tenant(id, weight));
    let tenants = if seed.is_multiple_of(3) { vec![Tenant::SERVER] } else { weights.to_vec() };
    for step in 0..operations {
        let most = random.u64(1..3000);
        now += Duration::from_micros(random.u64(0..most));
        // Sometimes a worker is overdue.
        now += Duration::from_secs(u64::from(random.u32(0..100) == 0));
        // As the driver does.
        assert_eq!(batcher.expire(now), reference.expire(now), "seed {seed}, step {step}");
        let unserved: Vec<RequestId> = batcher.unserved(now).into_iter().map(|(id, _)| id).collect();
        assert_eq!(unserved, reference.unserved(now), "seed {seed}, step {step}");
        assert_eq!(batcher.suspend_overdue(now), reference.suspend_overdue(now), "seed {seed}, step {step}");
        match random.u32(0..100) {
            0..35 => {
                let rows = random.u64(0..100);
                let timeout = random.bool().then(|| Duration::from_micros(random.u64(0..60_000)));
                let priority = if random.u32(0..3) == 0 { Priority::Low } else { Priority::Normal };
                let tenant = tenants[random.usize(0..tenants.len())];
                let (class, sizes) = (Class { tenant, priority }, (rows, rows * 100));
                let admitted = batcher.admit_for(class, now, sizes, timeout);
                assert_eq!(admitted, reference.admit(class, now, sizes, timeout), "seed {seed}, step {step}");
                if let Ok(id) = admitted
                    && random.u32(0..50) == 0
                {
                    batcher.withdraw(id);
                    reference.withdraw(id);
                }
                assert_eq!(batcher.displaced(), reference.displaced(), "seed {seed}, step {step}");
                last = admitted.map_or(last, |id| id.0);
            }
            35..40 => {
                let id = RequestId(random.u64(0..=last));
                batcher.cancel(now, id);
                reference.cancel(now, id);
            }
            40..43 => {
                let credits = random.u64(0..4);
                let worker = batcher.add_worker(now, credits);
                assert_eq!(worker, reference.add_worker(now, credits));
                workers.push(worker);
            }
            43..45 if !workers.is_empty() => {
                let worker = workers.swap_remove(random.usize(0..workers.len()));
                assert_eq!(
                    batcher.remove_worker(now, worker),
                    reference.remove_worker(now, worker),
                    "seed {seed}, step {step}"
                );
            }
            45..47 => {
                let config = &configs[random.usize(0..configs.len())];
                batcher.set_config(config.clone());
                reference.set_config(config.clone());
            }
            47..50 if !batches.is_empty() => {
                let (batch, _) = batches[random.usize(0..batches.len())];
                batcher.gathered(now, batch);
                reference.gathered(now, batch);
            }
            50..75 if !batches.is_empty() => {
                let (batch, worker) = batches.swap_remove(random.usize(0..batches.len()));
                // Some workers fail often, and so do some seeds.
                let fails = random.u64(0..10) < [1, 3, 8][((seed + worker.0) % 3) as usize];
                if !fails {
                    let done = batcher.complete(now, worker, batch);
                    assert_eq!(done, reference.complete(now, worker, batch), "seed {seed}, step {step}");
                } else {
                    let cause = match random.u32(0..9) {
                        0 => Cause::Features,
                        1 => Cause::Size,
                        _ => Cause::Worker,
                    };
                    let failed = batcher.fail(now, worker, batch, cause);
                    assert_eq!(failed, reference.fail(now, worker, batch, cause), "seed {seed}, step {step}");
                }
            }
            _ => {
                let next = batcher.next(now);
                assert_eq!(next, reference.next(now), "seed {seed}, step {step}");
                if let Decision::Send(formed) = next {
                    batches.push((formed.batch, formed.worker));
                }
            }
        }
        assert_eq!(batcher.next_expiry(), reference.next_expiry());
        assert_eq!(batcher.next_overdue(), reference.next_overdue());
        let suspended = batcher.suspended();
        suspensions += suspended.len();
        assert_eq!(suspended, reference.suspended(), "seed {seed}, step {step}");
        assert_eq!(batcher.load(now), reference.load(now), "seed {seed}, step {step}");
        let silent = batcher.silent_workers(now);
        let suspended = batcher.suspended_workers(now);
        let (mut silent_of_reference, mut suspended_of_reference) = reference.unavailable(now);
        silent_of_reference.truncate(16);
        suspended_of_reference.truncate(16);
        assert_eq!(silent, silent_of_reference, "seed {seed}, step {step}");
        assert_eq!(suspended, suspended_of_reference, "seed {seed}, step {step}");
    }
    suspensions
}

#[test]
fn a_lone_request_on_an_idle_system_does_not_wait() {
    let (mut batcher, worker, mut now) = trained(QueueConfig::default());
    for _ in 0..50 {
        batcher.admit(now, 1, 100, None).expect("idle");
        let formed = batch(batcher.next(now));
        assert_eq!((formed.close_reason, formed.rows), (CloseReason::Idle, 1));
        batcher.complete(now + ms(2), worker, formed.batch);
        now += ms(20);
    }
}

#[test]
fn a_lone_request_after_a_burst_does_not_wait() {
    let (mut batcher, worker, now) = trained(QueueConfig::default());
    for arrival in 0..40 {
        batcher.admit(now + arrival * Duration::from_micros(50), 1, 100, Some(ms(50))).expect("admitted");
    }
    let formed = batch(batcher.next(now + ms(5)));
    batcher.complete(now + ms(8), worker, formed.batch);
    let later = now + ms(20);
    batcher.admit(later, 1, 100, None).expect("idle");
    assert_eq!(batch(batcher.next(later)).close_reason, CloseReason::Idle);
}

#[test]
fn a_free_worker_waits_for_further_requests_only_while_it_pays() {
    // A batch costs 2 ms. At 4,000 arrivals per second it pays to wait for up to 8 requests.
    let (mut batcher, _, start) = trained(QueueConfig { max_batch_delay: ms(50), ..QueueConfig::default() });
    let mut now = start;
    let mut count = 0;
    let formed = loop {
        batcher.admit(now, 1, 100, None).expect("admitted");
        count += 1;
        match batcher.next(now) {
            Decision::Send(formed) if count >= 4 => break formed,
            // The arrival rate is not known yet.
            Decision::Send(formed) => {
                batcher.fail(now, formed.worker, formed.batch, Cause::Features);
            }
            Decision::Wait(until) => assert!(until.expect("waits for a time") > now),
        }
        now += Duration::from_micros(250);
    };
    assert_eq!(formed.close_reason, CloseReason::Idle);
    assert!((5..=9).contains(&formed.rows), "{formed:?}");
}

#[test]
fn a_batch_is_closed_in_time_for_its_most_urgent_request() {
    let config = QueueConfig { max_batch_delay: ms(500), eager_dispatch: false, ..QueueConfig::default() };
    let (mut batcher, _, now) = trained(config);
    batcher.admit(now, 1, 100, Some(ms(80))).expect("idle");
    batcher.admit(now, 1, 100, Some(ms(20))).expect("admitted");
    let Decision::Wait(Some(at)) = batcher.next(now) else { panic!("closed at once") };
    // 20 ms minus 2 ms of computing.
    assert!(at > now + ms(16) && at < now + ms(18) + Duration::from_micros(100), "{:?}", at - now);
    assert_eq!(batch(batcher.next(at)).close_reason, CloseReason::Deadline);
}

#[test]
fn a_request_that_would_be_late_is_refused_at_once_with_its_prediction() {
    let config = QueueConfig { max_batch_rows: 512, ..QueueConfig::default() };
    let (mut batcher, _, now) = trained(config);
    // Batches of 512 rows take 7 ms.
    let mut refused = None;
    for _ in 0..100 {
        match batcher.admit(now, 128, 12_800, Some(ms(40))) {
            Ok(_) => {
                batcher.next(now);
            }
            Err(refusal) => refused = refused.or(Some(refusal)),
        }
    }
    let Some(Refusal::Late { predicted, limit }) = refused else { panic!("{refused:?}") };
    assert_eq!(limit, ms(40));
    assert!(predicted > ms(40) && predicted < ms(50), "{predicted:?}");
    assert!(batcher.admit(now, 1, 100, Some(ms(400))).is_ok(), "a request with a longer timeout is admitted");
}

#[test]
fn a_queue_of_many_batches_is_predicted_to_take_as_long_as_they_take() {
    let config = QueueConfig { max_batch_rows: 64, ..QueueConfig::default() };
    let (mut batcher, _, now) = trained(config);
    let batches: u64 = 20;
    for _ in 0..16 * batches {
        batcher.admit(now, 4, 400, Some(ms(500))).expect("admitted");
    }
    let predicted = batcher.predict(now).expect("the model is trained").as_secs_f64();
    let truth = batches as f64 * (2e-3 + 64.0 * 10e-6);
    assert!((predicted / truth - 1.0).abs() < 0.05, "{predicted} for {truth}");
}

#[test]
fn a_wrong_prediction_does_not_refuse_requests_permanently() {
    let (mut batcher, worker, mut now) = trained(QueueConfig::default());
    (0..200).for_each(|_| batcher.model.observe(1, 100, Duration::from_secs(60)));
    let mut waited = 0;
    while batcher.model.predict(1, 100) > ms(10) {
        batcher.admit(now, 1, 100, None).expect("the queue is empty");
        let formed = batch(batcher.next(now));
        now += ms(2);
        batcher.complete(now, worker, formed.batch);
        waited += 1;
        assert!(waited < 1000, "still {:?}", batcher.model.predict(1, 100));
    }
}

#[test]
fn requests_of_a_removed_worker_are_sent_again_and_after_max_attempts_each_by_itself() {
    let (mut batcher, first, now) = trained(QueueConfig { max_attempts: 2, ..QueueConfig::default() });
    let early = batcher.admit(now, 1, 100, None).expect("idle");
    let formed = batch(batcher.next(now));
    assert_eq!(formed.requests, [early]);
    batcher.gathered(now, formed.batch);
    let late = batcher.admit(now, 1, 100, None).expect("admitted");
    assert_eq!(batcher.remove_worker(now, first), []);
    let second = batcher.add_worker(now, 1);
    let formed = batch(batcher.next(now + ms(6)));
    assert_eq!((formed.worker, formed.previous_attempts), (second, 1));
    assert_eq!(formed.requests, [early, late]);
    batcher.gathered(now, formed.batch);
    assert_eq!(batcher.remove_worker(now, second), []);
    let third = batcher.add_worker(now, 1);
    let formed = batch(batcher.next(now));
    assert_eq!((formed.requests, formed.close_reason), (vec![early], CloseReason::Alone), "two attempts");
    assert_eq!(batcher.remove_worker(now, third), [early]);
    let fourth = batcher.add_worker(now, 1);
    let formed = batch(batcher.next(now + ms(6)));
    assert_eq!(formed.requests, [late]);
    batcher.gathered(now, formed.batch);
    assert_eq!(batcher.remove_worker(now, fourth), [late]);
    assert_eq!(batcher.load(now).queued_requests, 0);
}

/// Sends three batches to a worker, and replies to them.
fn warm_up(batcher: &mut Batcher, now: Time) {
    for _ in 0..3 {
        batcher.admit(now, 64, 6400, None).expect("idle");
        let formed = batch(batcher.next(now));
        batcher.gathered(now, formed.batch);
        batcher.complete(now + ms(3), formed.worker, formed.batch).expect("in flight");
    }
}

#[test]
fn an_overdue_worker_loses_its_requests_to_another_one_and_receives_none_until_it_replies() {
    let long = Some(Duration::from_secs(60));
    let (mut batcher, first, now) = trained(QueueConfig { max_batch_delay: ms(0), ..QueueConfig::default() });
    warm_up(&mut batcher, now);
    let now = now + ms(10);
    let request = batcher.admit(now, 1, 100, long).expect("idle");
    let formed = batch(batcher.next(now));
    batcher.gathered(now, formed.batch);
    let second = batcher.add_worker(now, 2);
    assert_eq!(batcher.next_overdue(), Some(now + ms(1000)));
    assert_eq!(batcher.suspend_overdue(now + ms(999)), []);
    let now = now + ms(1000);
    assert_eq!(batcher.suspend_overdue(now), [first]);
    assert_eq!(batcher.suspend_overdue(now), [], "once");
    assert_eq!((batcher.load(now).workers, batcher.load(now).overdue_workers), (1, 1));
    let again = batch(batcher.next(now));
    assert_eq!((again.worker, again.requests.as_slice()), (second, [request].as_slice()));
    batcher.gathered(now, again.batch);
    let next = batcher.admit(now, 1, 100, long).expect("admitted");
    let Decision::Wait(_) = batcher.next(now) else { panic!("sent to an overdue worker") };
    // The first reply counts, and the second one answers no request.
    assert_eq!(batcher.complete(now, second, again.batch), Some(vec![Some(request)]));
    assert_eq!(batcher.complete(now, first, formed.batch), Some(vec![None]));
    assert_eq!(batcher.load(now).overdue_workers, 0);
    assert_eq!(batch(batcher.next(now)).requests, [next]);
}

#[test]
fn the_first_batches_of_a_worker_may_take_minutes() {
    let (mut batcher, worker, now) =
        trained(QueueConfig { max_batch_delay: ms(0), ..QueueConfig::default() });
    batcher.admit(now, 1, 100, Some(Duration::from_secs(3600))).expect("idle");
    let formed = batch(batcher.next(now));
    batcher.gathered(now, formed.batch);
    assert_eq!(batcher.suspend_overdue(now + Duration::from_secs(299)), []);
    assert_eq!(batcher.suspend_overdue(now + Duration::from_secs(300)), [worker]);
}

#[test]
fn a_request_waits_for_a_worker_no_longer_than_max_time_in_queue() {
    let config = QueueConfig { max_time_in_queue: ms(500), ..QueueConfig::default() };
    let mut batcher = Batcher::new(config);
    let id = batcher.admit(ms(0), 1, 100, Some(Duration::from_secs(3600))).expect("admitted");
    assert_eq!(batcher.next_expiry(), Some(ms(500)));
    assert_eq!(batcher.expire(ms(499)), []);
    assert_eq!(batcher.expire(ms(500)), [id]);
}

#[test]
fn a_busy_worker_receives_its_next_batch_shortly_before_it_is_free_and_a_late_one_does_not() {
    let (mut batcher, worker, now) = trained(QueueConfig::default());
    batcher.gather_seconds = 0.0005;
    batcher.admit(now, 100, 10_000, None).expect("idle");
    let first = batch(batcher.next(now));
    batcher.admit(now, 100, 10_000, None).expect("admitted");
    let Decision::Wait(Some(at)) = batcher.next(now) else { panic!("sent at once") };
    // 3 ms of computing minus 0.5 ms of gathering.
    assert!(at > now + ms(2) && at < now + ms(3), "{:?}", at - now);
    assert_eq!(batcher.next(now + ms(10)), Decision::Wait(None), "the worker is late");
    assert_eq!(batch(batcher.next(at.max(now + Duration::from_micros(2600)))).worker, worker);
    assert_eq!(batcher.oldest_batch(worker), Some(first.batch));
}

#[test]
fn batches_are_padded_to_the_next_size_and_larger_ones_are_not_padded() {
    let config = QueueConfig { pad_to: vec![32, 8], ..QueueConfig::default() };
    assert_eq!([1, 8, 9, 32, 33].map(|rows| config.padded_rows(rows)), [8, 8, 32, 32, 33]);
}

#[test]
fn a_request_without_rows_is_refused_and_an_unlimited_timeout_is_limited() {
    let (mut batcher, _, now) = trained(QueueConfig::default());
    assert_eq!(batcher.admit(now, 0, 0, None), Err(Refusal::Empty));
    batcher.admit(now, 1, 100, Some(Duration::MAX)).expect("idle");
    batch(batcher.next(now + ms(6)));
    assert_eq!(batcher.next_expiry(), Some(now + Duration::from_secs(3600)));
}

#[test]
fn a_request_with_a_zero_timeout_expires_unsent() {
    let (mut batcher, _, now) = trained(QueueConfig::default());
    let id = batcher.admit(now, 1, 100, Some(Duration::ZERO)).expect("idle");
    assert_eq!(batcher.expire(now), [id]);
    assert_eq!(batcher.next(now), Decision::Wait(None));
}

#[test]
fn a_request_whose_prediction_equals_its_timeout_is_admitted() {
    let (mut batcher, _, now) = trained(QueueConfig::default());
    batcher.admit(now, 64, 6400, Some(ms(1000))).expect("idle");
    let predicted = batcher.predict_for(Tenant::SERVER.into(), now, 64, 6400).expect("trained");
    let late = batcher.admit(now, 64, 6400, Some(predicted - Duration::from_nanos(1)));
    assert!(matches!(late, Err(Refusal::Late { .. })), "{late:?}");
    batcher.admit(now, 64, 6400, Some(predicted)).expect("in time");
}

#[test]
fn a_batch_has_waiting_requests_until_the_last_one_is_cancelled() {
    let (mut batcher, _, now) =
        trained(QueueConfig { max_batch_delay: Duration::ZERO, ..QueueConfig::default() });
    let requests = [1, 2].map(|rows| batcher.admit(now, rows, 100, Some(ms(1000))).expect("admitted"));
    let formed = batch(batcher.next(now));
    assert_eq!(formed.requests, requests);
    for request in requests {
        assert!(batcher.has_waiting_requests(formed.batch));
        batcher.cancel(now, request);
    }
    assert!(!batcher.has_waiting_requests(formed.batch));
}

#[test]
fn requests_that_return_to_a_worker_that_was_overdue_go_to_another_one_if_it_disconnects() {
    let config = QueueConfig { max_batch_rows: 1, max_batch_delay: Duration::ZERO, ..QueueConfig::default() };
    let (mut batcher, worker, mut now) = trained(config);
    assert_eq!(batcher.model().observations(), 60);
    let minute = Some(Duration::from_secs(60));
    // Its first batches may take minutes.
    for _ in 0..3 {
        batcher.admit(now, 1, 100, minute).expect("admitted");
        let formed = batch(batcher.next(now));
        now += ms(3);
        batcher.complete(now, worker, formed.batch).expect("the batch is in flight");
    }
    let first = batcher.admit(now, 1, 100, minute).expect("admitted");
    let given = batch(batcher.next(now));
    assert_eq!(given.requests, [first]);
    let second = batcher.admit(now, 1, 100, minute).expect("admitted");
    let Decision::Wait(Some(soon)) = batcher.next(now) else { panic!("the worker is busy") };
    assert_eq!(batch(batcher.next(soon)).requests, [second]);
    now += ms(1500);
    assert_eq!(batcher.suspend_overdue(now), [worker]);
    assert_eq!(batcher.load(now).queued_requests, 2);
    assert_eq!(batcher.complete(now, worker, given.batch), Some(vec![Some(first)]));
    assert_eq!(batcher.load(now).queued_requests, 0, "the worker has the second one");
    assert!(batcher.remove_worker(now, worker).is_empty());
    assert_eq!(batcher.load(now).queued_requests, 1);
    batcher.add_worker(now, 1);
    assert_eq!(batch(batcher.next(now)).requests, [second]);
}

#[test]
fn a_request_that_another_worker_has_is_not_queued_again_when_the_overdue_one_disconnects() {
    let (mut batcher, first, now) = trained(QueueConfig { max_batch_delay: ms(0), ..QueueConfig::default() });
    warm_up(&mut batcher, now);
    let now = now + ms(10);
    let request = batcher.admit(now, 1, 100, Some(Duration::from_secs(60))).expect("idle");
    let formed = batch(batcher.next(now));
    batcher.gathered(now, formed.batch);
    let second = batcher.add_worker(now, 2);
    let now = now + ms(1000);
    assert_eq!(batcher.suspend_overdue(now), [first]);
    let again = batch(batcher.next(now));
    assert_eq!((again.worker, again.requests.as_slice()), (second, [request].as_slice()));
    assert_eq!(batcher.remove_worker(now, first), []);
    assert_eq!(batcher.load(now).queued_requests, 0);
    assert_eq!(batcher.complete(now, second, again.batch), Some(vec![Some(request)]));
}
