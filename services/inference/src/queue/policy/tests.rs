mod reference;

use super::*;
use reference::Reference;

fn ms(milliseconds: u64) -> Time {
    Duration::from_millis(milliseconds)
}

/// A queue whose batches took 2 ms and 10 us a row, with one worker.
fn experienced(config: QueueConfig) -> (Batcher, WorkerId, Time) {
    let mut batcher = Batcher::new(config);
    let worker = batcher.join(Time::ZERO, 2);
    for rows in [1, 64, 512].repeat(20) {
        batcher.model.observe(rows, rows * 100, Duration::from_micros(2000 + 10 * rows));
    }
    (batcher, worker, ms(1000))
}

fn batch(next: Next) -> Formed {
    match next {
        Next::Batch(formed) => formed,
        Next::Wait(until) => panic!("waits until {until:?}"),
    }
}

#[test]
fn every_decision_is_that_of_a_reference_that_looks_at_everything_over_a_million_operations() {
    let mut operations = 0;
    for seed in 0..1000 {
        operations += compare(seed, 1000);
    }
    assert_eq!(operations, 1_000_000);
}

/// Does the same to both, and returns how often.
fn compare(seed: u64, operations: u64) -> u64 {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut tuned = || QueueConfig {
        max_batch_rows: random.u64(1..200),
        max_batch_bytes: random.u64(1000..20_000),
        max_queue_delay: Duration::from_micros(random.u64(0..4000)),
        idle: random.bool(),
        slo: Duration::from_micros(random.u64(1..50_000)),
        max_queue_time: Duration::from_micros(random.u64(1..80_000)),
        max_queue_requests: random.usize(1..60),
        max_queue_rows: random.u64(1..3000),
        max_queue_bytes: u64::MAX,
        max_attempts: random.u32(1..4),
        max_credits: random.u64(1..4),
        pad_to: if random.bool() { vec![] } else { vec![8, 64] },
    };
    let configs: Vec<QueueConfig> = (0..8).map(|_| tuned()).collect();
    let mut random = fastrand::Rng::with_seed(!seed);
    let mut batcher = Batcher::new(configs[0].clone());
    let mut reference = Reference::new(configs[0].clone());
    let (mut now, mut workers, mut batches, mut last) = (Time::ZERO, Vec::new(), Vec::new(), 0);
    for step in 0..operations {
        let most = random.u64(1..3000);
        now += Duration::from_micros(random.u64(0..most));
        // As its driver does.
        assert_eq!(batcher.expire(now), reference.expire(now), "seed {seed}, step {step}");
        match random.u32(0..100) {
            0..35 => {
                let rows = random.u64(1..100);
                let timeout = random.bool().then(|| Duration::from_micros(random.u64(0..60_000)));
                let asked = batcher.admit(now, rows, rows * 100, timeout);
                assert_eq!(
                    asked,
                    reference.admit(now, rows, rows * 100, timeout),
                    "seed {seed}, step {step}"
                );
                last = asked.map_or(last, |id| id.0);
            }
            35..40 => {
                let id = RequestId(random.u64(0..=last));
                batcher.cancel(id);
                reference.cancel(id);
            }
            40..43 => {
                let credits = random.u64(0..4);
                let worker = batcher.join(now, credits);
                assert_eq!(worker, reference.join(now, credits));
                workers.push(worker);
            }
            43..45 if !workers.is_empty() => {
                let worker = workers.swap_remove(random.usize(0..workers.len()));
                assert_eq!(batcher.leave(worker), reference.leave(worker), "seed {seed}, step {step}");
            }
            45..47 => {
                let config = &configs[random.usize(0..configs.len())];
                batcher.retune(config.clone());
                reference.retune(config.clone());
            }
            47..50 if !batches.is_empty() => {
                let (batch, _) = batches[random.usize(0..batches.len())];
                batcher.gathered(now, batch);
                reference.gathered(now, batch);
            }
            50..75 if !batches.is_empty() => {
                let (batch, worker) = batches.swap_remove(random.usize(0..batches.len()));
                let computed = random.u32(0..10) > 0;
                let done = batcher.complete(now, worker, batch, computed);
                assert_eq!(
                    done,
                    reference.complete(now, worker, batch, computed),
                    "seed {seed}, step {step}"
                );
            }
            _ => {
                let next = batcher.next(now);
                assert_eq!(next, reference.next(now), "seed {seed}, step {step}");
                if let Next::Batch(formed) = next {
                    batches.push((formed.batch, formed.worker));
                }
            }
        }
        assert_eq!(batcher.next_expiry(), reference.next_expiry());
        assert_eq!(batcher.load(now), reference.load(now));
    }
    operations
}

#[test]
fn a_lone_request_on_an_idle_system_does_not_wait() {
    let (mut batcher, worker, mut now) = experienced(QueueConfig::default());
    for _ in 0..50 {
        batcher.admit(now, 1, 100, None).expect("idle");
        let formed = batch(batcher.next(now));
        assert_eq!((formed.reason, formed.rows), (Reason::Idle, 1));
        batcher.complete(now + ms(2), worker, formed.batch, true);
        now += ms(20);
    }
}

#[test]
fn a_lone_request_after_a_burst_does_not_wait() {
    let (mut batcher, worker, now) = experienced(QueueConfig::default());
    for arrival in 0..40 {
        batcher.admit(now + arrival * Duration::from_micros(50), 1, 100, Some(ms(50))).expect("let in");
    }
    let formed = batch(batcher.next(now + ms(5)));
    batcher.complete(now + ms(8), worker, formed.batch, true);
    let later = now + ms(20);
    batcher.admit(later, 1, 100, None).expect("idle");
    assert_eq!(batch(batcher.next(later)).reason, Reason::Idle);
}

#[test]
fn a_free_worker_waits_for_company_only_while_it_pays() {
    // A batch costs 2 ms; 4,000 arrivals a second: it pays to wait for up to 8 of them.
    let (mut batcher, _, start) =
        experienced(QueueConfig { max_queue_delay: ms(50), ..QueueConfig::default() });
    let mut now = start;
    let mut count = 0;
    let formed = loop {
        batcher.admit(now, 1, 100, None).expect("let in");
        count += 1;
        match batcher.next(now) {
            Next::Batch(formed) if count >= 4 => break formed,
            // The rate is not known yet.
            Next::Batch(formed) => {
                batcher.complete(now, formed.worker, formed.batch, false);
            }
            Next::Wait(until) => assert!(until.expect("it waits for time") > now),
        }
        now += Duration::from_micros(250);
    };
    assert_eq!(formed.reason, Reason::Idle);
    assert!((5..=9).contains(&formed.rows), "{formed:?}");
}

#[test]
fn a_batch_is_closed_in_time_for_its_most_urgent_request() {
    let config = QueueConfig { max_queue_delay: ms(500), idle: false, ..QueueConfig::default() };
    let (mut batcher, _, now) = experienced(config);
    batcher.admit(now, 1, 100, Some(ms(80))).expect("idle");
    batcher.admit(now, 1, 100, Some(ms(20))).expect("let in");
    let Next::Wait(Some(at)) = batcher.next(now) else { panic!("closed at once") };
    // 20 ms less 2 ms of computing.
    assert!(at > now + ms(16) && at < now + ms(18) + Duration::from_micros(100), "{:?}", at - now);
    assert_eq!(batch(batcher.next(at)).reason, Reason::Deadline);
}

#[test]
fn what_can_not_be_in_time_is_refused_at_once_with_the_time_that_it_would_take() {
    let config = QueueConfig { max_batch_rows: 512, ..QueueConfig::default() };
    let (mut batcher, _, now) = experienced(config);
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
    assert!(batcher.admit(now, 1, 100, Some(ms(400))).is_ok(), "who has time is let in");
}

#[test]
fn a_queue_of_many_batches_is_predicted_to_take_as_long_as_they_take() {
    let config = QueueConfig { max_batch_rows: 64, ..QueueConfig::default() };
    let (mut batcher, _, now) = experienced(config);
    let batches: u64 = 20;
    for _ in 0..16 * batches {
        batcher.admit(now, 4, 400, Some(ms(500))).expect("let in");
    }
    let predicted = batcher.predict(now, 0, 0).expect("it is experienced").as_secs_f64();
    let truth = batches as f64 * (2e-3 + 64.0 * 10e-6);
    assert!((predicted / truth - 1.0).abs() < 0.05, "{predicted} for {truth}");
}

#[test]
fn a_wrong_prediction_keeps_nobody_out_for_ever() {
    let (mut batcher, worker, mut now) = experienced(QueueConfig::default());
    (0..200).for_each(|_| batcher.model.observe(1, 100, Duration::from_secs(60)));
    let mut waited = 0;
    while batcher.model.predict(1, 100) > ms(10) {
        batcher.admit(now, 1, 100, None).expect("nobody is before it");
        let formed = batch(batcher.next(now));
        now += ms(2);
        batcher.complete(now, worker, formed.batch, true);
        waited += 1;
        assert!(waited < 1000, "still {:?}", batcher.model.predict(1, 100));
    }
}

#[test]
fn a_worker_that_dies_gives_its_batch_back_in_front_and_only_so_often() {
    let (mut batcher, first, now) = experienced(QueueConfig { max_attempts: 2, ..QueueConfig::default() });
    let early = batcher.admit(now, 1, 100, None).expect("idle");
    let formed = batch(batcher.next(now));
    assert_eq!(formed.requests, [early]);
    batcher.gathered(now, formed.batch);
    let late = batcher.admit(now, 1, 100, None).expect("let in");
    assert_eq!(batcher.leave(first), []);
    let second = batcher.join(now, 1);
    let formed = batch(batcher.next(now + ms(6)));
    assert_eq!((formed.worker, formed.attempts), (second, 1));
    assert_eq!(formed.requests, [early, late]);
    batcher.gathered(now, formed.batch);
    assert_eq!(batcher.leave(second), [early], "it was given away twice");
    let third = batcher.join(now, 1);
    let formed = batch(batcher.next(now + ms(6)));
    assert_eq!(formed.requests, [late]);
    assert_eq!(batcher.leave(third), [], "it had not reached it");
    let third = batcher.join(now, 1);
    let formed = batch(batcher.next(now + ms(6)));
    batcher.gathered(now, formed.batch);
    assert_eq!(batcher.leave(third), [late]);
    assert_eq!(batcher.load(now).queued_requests, 0);
}

#[test]
fn a_busy_worker_gets_its_next_batch_when_it_is_about_to_be_done_and_a_late_one_nothing() {
    let (mut batcher, worker, now) = experienced(QueueConfig::default());
    batcher.lead = 0.0005;
    batcher.admit(now, 100, 10_000, None).expect("idle");
    let first = batch(batcher.next(now));
    batcher.admit(now, 100, 10_000, None).expect("let in");
    let Next::Wait(Some(at)) = batcher.next(now) else { panic!("given at once") };
    // 3 ms of computing, of which half of one is for gathering.
    assert!(at > now + ms(2) && at < now + ms(3), "{:?}", at - now);
    assert_eq!(batcher.next(now + ms(10)), Next::Wait(None), "it should have been done long ago");
    assert_eq!(batch(batcher.next(at.max(now + Duration::from_micros(2600)))).worker, worker);
    assert_eq!(batcher.oldest_batch(worker), Some(first.batch));
}

#[test]
fn batches_are_padded_to_the_next_size_and_larger_ones_are_left_as_they_are() {
    let config = QueueConfig { pad_to: vec![32, 8], ..QueueConfig::default() };
    assert_eq!([1, 8, 9, 32, 33].map(|rows| config.padded(rows)), [8, 8, 32, 32, 33]);
}

#[test]
fn a_request_of_no_rows_is_refused_and_one_of_endless_time_ends_nevertheless() {
    let (mut batcher, _, now) = experienced(QueueConfig::default());
    assert_eq!(batcher.admit(now, 0, 0, None), Err(Refusal::Empty));
    batcher.admit(now, 1, 100, Some(Duration::MAX)).expect("idle");
    assert_eq!(batcher.next_expiry(), Some(now + Duration::from_secs(3600)));
}

#[test]
fn a_request_of_no_time_expires_and_is_not_given_away() {
    let (mut batcher, _, now) = experienced(QueueConfig::default());
    let id = batcher.admit(now, 1, 100, Some(Duration::ZERO)).expect("idle");
    assert_eq!(batcher.expire(now), [id]);
    assert_eq!(batcher.next(now), Next::Wait(None));
}
