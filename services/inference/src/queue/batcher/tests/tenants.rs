//! Tenants share the workers of a queue by weight.

use std::num::NonZeroU32;

use super::*;

pub(super) fn tenant(id: u64, weight: u32) -> Tenant {
    Tenant::new(id, NonZeroU32::new(weight).expect("the weight is not zero"))
}

/// Settings under which requests wait for long, and batches for nothing.
fn patient() -> QueueConfig {
    QueueConfig {
        max_batch_rows: 64,
        max_batch_delay: Duration::ZERO,
        max_predicted_wait: Duration::from_secs(60),
        max_time_in_queue: Duration::from_secs(600),
        max_queue_requests: 1000,
        ..QueueConfig::default()
    }
}

/// Two tenants send requests as fast as the queue admits them. Returns the answered rows of each.
fn answered_rows(weights: [u32; 2], request_rows: [u64; 2]) -> [u64; 2] {
    let (mut batcher, worker, mut now) = trained(patient());
    let tenants = [tenant(1, weights[0]), tenant(2, weights[1])];
    let (mut rows, mut of) = ([0; 2], HashMap::new());
    for _ in 0..2000 {
        for index in [0, 1] {
            let sizes = (request_rows[index], request_rows[index] * 100);
            while let Ok(id) =
                batcher.admit_for(tenants[index].into(), now, sizes, Some(Duration::from_secs(60)))
            {
                of.insert(id, index);
            }
        }
        let Decision::Send(formed) = batcher.next(now) else { panic!("the worker is free") };
        batcher.gathered(now, formed.batch);
        now += Duration::from_micros(2000 + 10 * formed.padded_rows);
        for id in
            batcher.complete(now, worker, formed.batch).expect("the batch is in flight").into_iter().flatten()
        {
            rows[of[&id]] += request_rows[of[&id]];
        }
    }
    rows
}

#[test]
fn two_tenants_of_weights_3_and_1_that_want_everything_get_the_workers_3_to_1() {
    for request_rows in [[1, 1], [16, 1], [1, 16]] {
        for (weights, expected) in [([3, 1], 3.0), ([1, 1], 1.0), ([1000, 500], 2.0)] {
            let [one, other] = answered_rows(weights, request_rows);
            let ratio = one as f64 / other as f64;
            assert!(
                (ratio / expected - 1.0).abs() < 0.1,
                "{weights:?}, requests of {request_rows:?} rows: {ratio}"
            );
        }
    }
}

#[test]
fn a_tenant_that_floods_the_queue_does_not_delay_or_displace_the_requests_of_another() {
    let (mut batcher, worker, now) = trained(QueueConfig { max_predicted_wait: ms(500), ..patient() });
    let [flood, calm] = [tenant(1, 1), tenant(2, 1)];
    let mut flooded = 0;
    while batcher.admit_for(flood.into(), now, (8, 800), Some(Duration::from_secs(60))).is_ok() {
        flooded += 1;
    }
    assert!(flooded > 100, "{flooded}");
    // The request is predicted to wait for a few batches, not for the whole queue.
    let request =
        batcher.admit_for(calm.into(), now, (1, 100), Some(ms(20))).expect("the queue has room for others");
    let formed = batch(batcher.next(now));
    assert!(formed.requests.contains(&request), "{formed:?}");
    batcher.gathered(now, formed.batch);
    let answered = batcher.complete(now + ms(3), worker, formed.batch).expect("the batch is in flight");
    assert!(answered.contains(&Some(request)));
}

#[test]
fn a_tenant_whose_requests_are_answered_has_no_caution_factor() {
    let (mut batcher, worker, now) = trained(patient());
    batcher.admit_for(tenant(1, 1).into(), now, (1, 100), None).expect("idle");
    let formed = batch(batcher.next(now));
    batcher.gathered(now, formed.batch);
    batcher.complete(now + ms(3), worker, formed.batch).expect("the batch is in flight");
    assert!(batcher.caution.is_empty());
}

#[test]
fn requests_of_a_tenant_stay_in_the_order_of_arrival_although_others_are_cancelled() {
    let (mut batcher, _, now) = trained(QueueConfig { max_batch_rows: 8, ..patient() });
    let tenant = tenant(1, 3);
    let mut admit =
        |rows| batcher.admit_for(tenant.into(), now, (rows, rows * 100), None).expect("the queue has room");
    let (cancelled, first, second) = (admit(5), admit(4), admit(4));
    batcher.cancel(now, cancelled);
    let third = batcher.admit_for(tenant.into(), now, (4, 400), None).expect("the queue has room");
    assert_eq!(batch(batcher.next(now)).requests, [first, second]);
    assert!(batcher.queued.iter().any(|(.., id)| *id == third));
}

#[test]
fn a_tenant_whose_requests_expire_unanswered_pays_nothing_for_them() {
    let (mut batcher, worker, now) = trained(patient());
    batcher.remove_worker(now, worker);
    let [unlucky, other] = [tenant(1, 1), tenant(2, 1)];
    for _ in 0..100 {
        batcher
            .admit_for(unlucky.into(), now, (64, 6400), Some(ms(1)))
            .expect("there is no prediction without workers");
    }
    let now = now + ms(2);
    assert_eq!(batcher.expire(now).len(), 100);
    let worker = batcher.add_worker(now, 1);
    let sizes = (64, 6400);
    batcher.admit_for(unlucky.into(), now, sizes, Some(ms(1000))).expect("idle");
    batcher.admit_for(other.into(), now, sizes, Some(ms(1000))).expect("the queue has room");
    let again = batcher.admit_for(unlucky.into(), now, sizes, Some(ms(1000))).expect("the queue has room");
    let last = batcher.admit_for(other.into(), now, sizes, Some(ms(1000))).expect("the queue has room");
    let mut order = Vec::new();
    let mut at = now;
    for _ in 0..4 {
        let formed = batch(batcher.next(at));
        order.extend(formed.requests);
        at += ms(3);
        batcher.complete(at, worker, formed.batch);
    }
    assert_eq!(order[2..], [again, last]);
}

/// Number of requests of `rows` rows that a tenant can queue without workers.
fn queued_alone(config: QueueConfig, rows: u64) -> usize {
    let mut batcher = Batcher::new(config);
    (0..100).take_while(|_| batcher.admit_for(tenant(1, 1).into(), ms(0), (rows, rows), None).is_ok()).count()
}

#[test]
fn a_tenant_may_queue_seven_times_the_requests_and_rows_that_are_left() {
    let requests = |max_queue_requests| QueueConfig { max_queue_requests, ..QueueConfig::default() };
    assert_eq!(queued_alone(requests(8), 1), 7, "seven, and one is left");
    assert_eq!(queued_alone(requests(9), 1), 7, "eight would leave one");
    let rows = QueueConfig { max_queue_rows: 32, ..QueueConfig::default() };
    assert_eq!(queued_alone(rows, 2), 14, "28 rows, and 4 are left");
}

#[test]
fn the_bytes_before_a_request_are_in_proportion_to_the_rows_before_it() {
    let config =
        QueueConfig { max_batch_rows: 10, max_batch_bytes: 1000, default_timeout: ms(10_000), ..patient() };
    let (mut batcher, _, now) = trained(config);
    for _ in 0..40 {
        batcher.admit_for(tenant(1, 1).into(), now, (1, 1000), None).expect("the queue has room");
    }
    // Before its answer, each of the two tenants sends 4 rows.
    let predicted = batcher.predict_for(tenant(2, 1).into(), now, 4, 8).expect("trained");
    let same_limits = QueueConfig { max_batch_rows: 10, max_batch_bytes: 1000, ..patient() };
    let (mut alone, _, _) = trained(same_limits);
    for _ in 0..4 {
        alone.admit_for(Tenant::SERVER.into(), now, (1, 1000), None).expect("the queue has room");
    }
    assert_eq!(alone.predict_for(Tenant::SERVER.into(), now, 4, 8), Some(predicted));
}
