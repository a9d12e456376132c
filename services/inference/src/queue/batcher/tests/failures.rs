//! Failed batches: the request or the worker that is the cause is found, and others hardly notice.

use super::{tenants::tenant, *};

fn apart_until(until: Time) -> Apart {
    Apart { until, is_suspected: false }
}

/// Settings under which batches wait for nothing, and requests for long.
fn eager() -> QueueConfig {
    QueueConfig { max_batch_delay: ms(0), default_timeout: ms(60_000), ..QueueConfig::default() }
}

#[test]
fn a_poison_request_is_found_by_halving_its_batch_and_its_neighbours_are_answered() {
    let (mut batcher, worker, now) = trained(QueueConfig::default());
    let requests: Vec<_> = (0..8).map(|_| batcher.admit(now, 1, 100, None).expect("admitted")).collect();
    let poison = requests[3];
    let (mut answered, mut refused, mut batches) = (vec![], vec![], vec![]);
    while answered.len() + refused.len() < requests.len() {
        let formed = batch(batcher.next(now + ms(6)));
        batches.push(formed.requests.len());
        batcher.gathered(now, formed.batch);
        if formed.requests.contains(&poison) {
            refused.extend(batcher.fail(now, worker, formed.batch, Cause::Worker).expect("in flight"));
        } else {
            let done = batcher.complete(now, worker, formed.batch).expect("in flight");
            answered.extend(done.into_iter().flatten());
        }
    }
    assert_eq!(refused, [poison]);
    assert_eq!(answered, [0, 1, 2, 4, 5, 6, 7].map(|at| requests[at]));
    assert_eq!(batches, [8, 4, 2, 2, 1, 1, 4]);
}

#[test]
fn a_failed_batch_of_several_tenants_is_split_by_tenant_first() {
    let (mut batcher, worker, now) = trained(eager());
    let of = |batcher: &mut Batcher, id| {
        batcher.admit_for(tenant(id, 1).into(), now, (1, 100), None).expect("the queue has room")
    };
    let requests = [1, 2, 1, 3, 2, 1].map(|id| of(&mut batcher, id));
    let formed = batch(batcher.next(now));
    assert_eq!(formed.requests.len(), 6);
    assert_eq!(batcher.fail(now, worker, formed.batch, Cause::Worker), Some(vec![]));
    let mut parts = vec![];
    for _ in 0..3 {
        let formed = batch(batcher.next(now));
        assert_eq!(formed.close_reason, CloseReason::Alone);
        parts.push(formed.requests);
        batcher.complete(now, worker, formed.batch).expect("in flight");
    }
    parts.sort();
    let at = |places: &[usize]| places.iter().map(|place| requests[*place]).collect::<Vec<_>>();
    assert_eq!(parts, [at(&[0, 2, 5]), at(&[1, 4]), at(&[3])]);
    assert_eq!(batcher.load(now).queued_requests, 0);
}

/// Requests of a tenant in a simulation.
struct Sender {
    tenant: Tenant,
    every: Duration,
    is_poison: bool,
}

/// Outcomes of one tenant's requests.
#[derive(Debug, Default)]
struct Count {
    sent: usize,
    refused: usize,
    answered: usize,
    failed: usize,
    expired: usize,
    batches: usize,
}

/// Runs a queue for `seconds`. A batch takes 2 ms and 10 us per row, and fails if it has a poison request, or if its worker is
/// `broken`. Broken workers fail at once. Returns the outcomes by sender.
fn simulate(batcher: &mut Batcher, senders: &[Sender], broken: &[WorkerId], seconds: u64) -> Vec<Count> {
    let mut counts: Vec<Count> = senders.iter().map(|_| Count::default()).collect();
    let mut sender_of: HashMap<RequestId, usize> = HashMap::new();
    let mut in_flight: Vec<(Time, FormedBatch)> = vec![];
    let mut busy_until: BTreeMap<WorkerId, Time> = BTreeMap::new();
    let (start, step) = (ms(1000), Duration::from_micros(250));
    for tick in 0..seconds * 4000 {
        let now = start + step * u32::try_from(tick).expect("few ticks");
        for (index, sender) in senders.iter().enumerate() {
            if (now - start).as_nanos() % sender.every.as_nanos() == 0 {
                counts[index].sent += 1;
                match batcher.admit_for(sender.tenant.into(), now, (1, 100), Some(ms(100))) {
                    Ok(id) => drop(sender_of.insert(id, index)),
                    Err(_) => counts[index].refused += 1,
                }
            }
        }
        for id in batcher.expire(now) {
            counts[sender_of[&id]].expired += 1;
        }
        in_flight.sort_by_key(|(end, formed)| (*end, formed.batch));
        while in_flight.first().is_some_and(|(end, _)| *end <= now) {
            let (_, formed) = in_flight.remove(0);
            let is_poison = |id: &RequestId| senders[sender_of[id]].is_poison;
            if broken.contains(&formed.worker) || formed.requests.iter().any(is_poison) {
                let failed = batcher.fail(now, formed.worker, formed.batch, Cause::Worker);
                failed.expect("in flight").iter().for_each(|id| counts[sender_of[id]].failed += 1);
            } else {
                let done = batcher.complete(now, formed.worker, formed.batch).expect("in flight");
                done.iter().flatten().for_each(|id| counts[sender_of[id]].answered += 1);
            }
        }
        while let Decision::Send(formed) = batcher.next(now) {
            batcher.gathered(now, formed.batch);
            counts[sender_of[&formed.requests[0]]].batches += 1;
            let busy = busy_until.entry(formed.worker).or_default();
            let takes = Duration::from_micros(2000 + 10 * formed.padded_rows);
            *busy = (*busy).max(now) + if broken.contains(&formed.worker) { Duration::ZERO } else { takes };
            in_flight.push((*busy, formed));
        }
    }
    counts
}

#[test]
fn a_tenant_whose_requests_all_fail_does_not_end_batching_for_others() {
    let (mut batcher, _, _) = trained(eager());
    let senders = [
        Sender { tenant: tenant(1, 1), every: Duration::from_micros(500), is_poison: false },
        Sender { tenant: tenant(2, 1), every: ms(100), is_poison: true },
    ];
    let [calm, poison] = &simulate(&mut batcher, &senders, &[], 5)[..] else { panic!("two senders") };
    assert_eq!((calm.failed, calm.expired, calm.refused), (0, 0, 0), "{calm:?}");
    assert!(calm.answered >= calm.sent - 10, "{calm:?}");
    assert!(poison.failed >= poison.sent - 1, "{poison:?}");
    let rows = calm.answered as f64 / calm.batches as f64;
    assert!(rows > 3.0, "batches of {rows} rows");
}

#[test]
fn a_tenant_that_floods_a_queue_with_failing_requests_pays_for_their_batches() {
    let (mut batcher, _, _) = trained(QueueConfig { max_batch_rows: 64, ..eager() });
    let senders = [
        Sender { tenant: tenant(1, 1), every: ms(4), is_poison: false },
        Sender { tenant: tenant(2, 1), every: Duration::from_micros(250), is_poison: true },
    ];
    let [calm, poison] = &simulate(&mut batcher, &senders, &[], 5)[..] else { panic!("two senders") };
    assert_eq!(poison.answered, 0);
    // Without the charge, two of three requests expire or are refused.
    assert!(calm.answered * 10 >= calm.sent * 8, "{calm:?} {poison:?}");
}

#[test]
fn a_worker_that_fails_at_once_fails_no_request_while_another_one_works_and_is_suspended() {
    let (mut batcher, good, now) = trained(eager());
    let broken = batcher.add_worker(now, 2);
    let senders = [Sender { tenant: tenant(1, 1), every: ms(5), is_poison: false }];
    let counts = simulate(&mut batcher, &senders, &[broken], 5);
    assert_eq!((counts[0].failed, counts[0].expired), (0, 0), "{:?}", counts[0]);
    assert!(counts[0].answered >= counts[0].sent - 2, "{:?}", counts[0]);
    let suspended = batcher.suspended();
    let expected = [1, 2, 4].map(|seconds| (broken, Duration::from_secs(seconds)));
    assert_eq!(suspended, expected, "one batch after each suspension");
    let load = batcher.load(ms(6000));
    assert_eq!((load.workers, load.suspended_workers, load.overdue_workers), (1, 1, 0));
    let [listed] = batcher.suspended_workers(ms(6000))[..] else { panic!("one is suspended") };
    assert!(listed.worker == broken && listed.remaining > Duration::ZERO, "{listed:?}");
    assert!(listed.remaining <= Duration::from_secs(4), "{listed:?}");
    assert!(!suspended.iter().any(|(worker, _)| *worker == good));
}

#[test]
fn a_suspended_worker_that_computes_its_next_batch_is_as_good_as_before() {
    let (mut batcher, _, now) = trained(eager());
    let broken = batcher.add_worker(now, 2);
    let senders = [Sender { tenant: tenant(1, 1), every: ms(5), is_poison: false }];
    simulate(&mut batcher, &senders, &[broken], 1);
    assert_eq!(batcher.suspended().len(), 1);
    let mut now = ms(10_000);
    batcher.expire(now);
    assert_eq!(batcher.load(now).workers, 2, "the suspension has ended");
    // One batch at a time, until it has computed one.
    let mut probed = 0;
    while probed == 0 {
        batcher.admit(now, 1, 100, None).expect("admitted");
        let formed = batch(batcher.next(now));
        now += ms(3);
        probed += usize::from(formed.worker == broken);
        batcher.complete(now, formed.worker, formed.batch).expect("in flight");
    }
    assert!(batcher.workers[&broken].record.is_trusted());
    simulate(&mut batcher, &[], &[], 0);
    assert_eq!(batcher.suspended(), []);
}

#[test]
fn requests_wait_for_a_slow_worker_and_do_not_fail_at_a_suspended_one() {
    let (mut batcher, good, now) = trained(eager());
    let broken = batcher.add_worker(now, 2);
    let senders = [Sender { tenant: tenant(1, 1), every: ms(5), is_poison: false }];
    simulate(&mut batcher, &senders, &[broken], 1);
    // Suspended again and again, for longer each time.
    for _ in 0..4 {
        batcher.suspend(ms(10_000), broken);
    }
    let mut now = ms(10_000);
    let slow = batcher.admit(now, 1, 100, None).expect("admitted");
    let formed = batch(batcher.next(now));
    assert_eq!(formed.worker, good);
    now += Duration::from_secs(2);
    assert_eq!(batcher.suspend_overdue(now), [good]);
    let waiting = batcher.admit(now, 1, 100, None).expect("admitted");
    assert!(matches!(batcher.next(now), Decision::Wait(_)), "the suspended worker gets a batch");
    // The suspension ends. The next batch finds out whether the worker is good again, and it is not.
    now += Duration::from_secs(120);
    let probe = batch(batcher.next(now));
    assert_eq!((probe.worker, batcher.workers[&broken].record.is_trusted()), (broken, false));
    assert_eq!(batcher.fail(now, broken, probe.batch, Cause::Worker), Some(vec![]), "no request fails");
    assert!(matches!(batcher.next(now), Decision::Wait(_)), "it is suspended again");
    batcher.complete(now, good, formed.batch).expect("in flight");
    let mut answered = vec![slow];
    while answered.len() < 2 {
        let formed = batch(batcher.next(now));
        assert_eq!(formed.worker, good);
        answered.extend(batcher.complete(now, good, formed.batch).expect("in flight").into_iter().flatten());
    }
    assert_eq!(answered, [slow, waiting]);
}

#[test]
fn the_only_worker_is_not_suspended_and_callers_receive_its_error_at_once() {
    let (mut batcher, only, _) = trained(eager());
    let senders = [Sender { tenant: tenant(1, 1), every: ms(50), is_poison: false }];
    let counts = simulate(&mut batcher, &senders, &[only], 2);
    assert!(counts[0].failed >= counts[0].sent - 1, "{:?}", counts[0]);
    assert_eq!(batcher.suspended(), []);
}

#[test]
fn a_tenant_whose_requests_fail_has_no_worker_suspended() {
    let (mut batcher, _, now) = trained(eager());
    batcher.add_worker(now, 2);
    let senders = [Sender { tenant: tenant(1, 1), every: ms(5), is_poison: true }];
    let counts = simulate(&mut batcher, &senders, &[], 2);
    assert!(counts[0].failed >= counts[0].sent - 2, "{:?}", counts[0]);
    assert_eq!(batcher.suspended(), []);
    assert_eq!(batcher.load(ms(3000)).workers, 2);
}

#[test]
fn requests_whose_features_cannot_be_looked_up_say_nothing_about_their_worker() {
    let (mut batcher, worker, now) = trained(eager());
    batcher.add_worker(now, 2);
    for _ in 0..10 {
        let id = batcher.admit(now, 1, 100, None).expect("idle");
        let formed = batch(batcher.next(now));
        let failed = batcher.fail(now, formed.worker, formed.batch, Cause::Features);
        assert_eq!(failed, Some(vec![id]), "another worker would receive the same features");
    }
    assert_eq!(batcher.load(now).workers, 2);
    assert!(batcher.workers[&worker].record.is_trusted() && batcher.trials.is_empty());
}

/// Computes batches until no request is queued. Returns their numbers of requests.
fn sizes_of_computed_batches(batcher: &mut Batcher, worker: WorkerId, now: Time) -> Vec<usize> {
    let mut sizes = vec![];
    while batcher.load(now).queued_requests > 0 {
        let formed = batch(batcher.next(now));
        sizes.push(formed.requests.len());
        batcher.complete(now, worker, formed.batch).expect("in flight");
    }
    sizes
}

#[test]
fn a_worker_has_a_second_attempt_at_a_request_while_all_others_are_overdue() {
    for (fails, failed) in [(1, false), (2, true)] {
        let (mut batcher, slow, start) = trained(eager());
        // Its first batches may take minutes.
        for _ in 0..3 {
            batcher.admit(start, 1, 100, None).expect("admitted");
            let formed = batch(batcher.next(start));
            batcher.complete(start, slow, formed.batch).expect("in flight");
        }
        let id = batcher.admit(start, 1, 100, None).expect("admitted");
        assert_eq!(batch(batcher.next(start)).worker, slow);
        let now = start + Duration::from_secs(2);
        assert_eq!(batcher.suspend_overdue(now), [slow]);
        let flaky = batcher.add_worker(now, 1);
        let mut lost = vec![];
        for _ in 0..fails {
            let formed = batch(batcher.next(now));
            assert_eq!((formed.worker, formed.requests), (flaky, vec![id]));
            lost = batcher.fail(now, flaky, formed.batch, Cause::Worker).expect("in flight");
        }
        assert_eq!(lost, if failed { vec![id] } else { vec![] });
        if !failed {
            let formed = batch(batcher.next(now));
            assert_eq!(batcher.complete(now, flaky, formed.batch), Some(vec![Some(id)]));
            assert!(batcher.workers[&flaky].record.is_trusted());
        }
    }
}

#[test]
fn failures_at_a_worker_that_is_not_trusted_say_nothing_about_a_request_while_another_one_is_overdue() {
    let (mut batcher, slow, start) = trained(eager());
    let broken = batcher.add_worker(start, 1);
    let senders = [Sender { tenant: tenant(1, 1), every: ms(5), is_poison: false }];
    simulate(&mut batcher, &senders, &[broken], 1);
    assert!(!batcher.workers[&broken].record.is_trusted());
    let mut now = ms(10_000);
    batcher.suspend(now, broken);
    let id = batcher.admit(now, 1, 100, Some(Duration::from_secs(600))).expect("admitted");
    assert_eq!(batch(batcher.next(now)).worker, slow);
    now += Duration::from_secs(2);
    assert_eq!(batcher.suspend_overdue(now), [slow]);
    for _ in 0..3 {
        let formed = loop {
            match batcher.next(now) {
                Decision::Send(formed) => break formed,
                Decision::Wait(suspended_until) => now = suspended_until.expect("the suspension ends"),
            }
        };
        assert_eq!((formed.worker, formed.requests), (broken, vec![id]));
        assert_eq!(batcher.fail(now, broken, formed.batch, Cause::Worker), Some(vec![]));
    }
    batcher.remove_worker(now, broken);
    assert_eq!(batcher.unshared.len(), 0, "its tenant is not to blame");
}

#[test]
fn a_failed_request_waits_at_most_a_second_longer_than_predicted_for_another_worker() {
    let (mut batcher, flaky, start) = trained(eager());
    let id = batcher.admit(start, 1, 100, None).expect("admitted");
    let failed = batch(batcher.next(start));
    assert_eq!(failed.worker, flaky);
    // A worker that compiles its model takes minutes for its first batch, before it is overdue.
    let new = batcher.add_worker(start, 1);
    batcher.admit(start, 1, 100, None).expect("admitted");
    let compiling = batch(batcher.next(start));
    assert_eq!(compiling.worker, new);
    assert_eq!(batcher.fail(start, flaky, failed.batch, Cause::Worker), Some(vec![]));
    let Decision::Wait(Some(at)) = batcher.next(start) else { panic!("another worker is busy") };
    assert!(at > start + ms(1000) && at < start + ms(1010), "{at:?}");
    let again = batch(batcher.next(at));
    assert_eq!((again.worker, again.requests), (flaky, vec![id]));
}

#[test]
fn a_tenant_that_withdraws_its_failing_requests_has_no_worker_suspended_and_is_set_apart() {
    for (is_cancelled, is_early) in [(true, false), (false, false), (true, true), (false, true)] {
        let (mut batcher, first, mut now) = trained(eager());
        let second = batcher.add_worker(now, 1);
        let [calm, evil] = [tenant(1, 1), tenant(2, 1)];
        for _ in 0..20 {
            let calm = batcher.admit_for(calm.into(), now, (1, 100), None).expect("the queue has room");
            let timeout = if is_cancelled { None } else { Some(ms(100)) };
            let evil = batcher.admit_for(evil.into(), now, (1, 100), timeout).expect("the queue has room");
            let mut is_answered = false;
            while !is_answered {
                let formed = batch(batcher.next(now));
                if formed.requests.contains(&evil) {
                    let fail = |batcher: &mut Batcher, now| {
                        batcher.fail(now, formed.worker, formed.batch, Cause::Worker).expect("in flight")
                    };
                    if !is_early {
                        fail(&mut batcher, now);
                    }
                    if is_cancelled {
                        batcher.cancel(now, evil);
                    } else {
                        batcher.expire(now + ms(100));
                    }
                    if is_early {
                        fail(&mut batcher, now + ms(100));
                    }
                } else {
                    assert_eq!(formed.requests, [calm]);
                    batcher.complete(now, formed.worker, formed.batch).expect("in flight");
                    is_answered = true;
                }
            }
            now += ms(200);
            batcher.cancel(now, evil);
        }
        assert_eq!(batcher.suspended(), [], "{first:?} and {second:?} work");
        assert!(batcher.unshared.contains_key(&evil.id()) && !batcher.unshared.contains_key(&calm.id()));
    }
}

#[test]
fn a_tenant_is_set_apart_for_failures_that_its_requests_leave_only_until_one_is_answered() {
    let (mut batcher, good, start) = trained(eager());
    let slow = batcher.add_worker(start, 1);
    let impatient = tenant(1, 1);
    let mut now = start;
    // A batch of the tenant. It is computed, or it fails and its requests leave before that or later.
    let mut send = |batcher: &mut Batcher, outcome: Option<bool>| {
        now += Duration::from_secs(1);
        for _ in 0..4 {
            batcher.admit_for(impatient.into(), now, (1, 100), Some(ms(100))).expect("the queue has room");
        }
        let formed = batch(batcher.next(now));
        let later = now + ms(100);
        match outcome {
            None => drop(batcher.complete(now, formed.worker, formed.batch).expect("in flight")),
            Some(true) => {
                batcher.expire(later);
                batcher.fail(later, formed.worker, formed.batch, Cause::Worker).expect("in flight");
            }
            Some(false) => {
                batcher.fail(now, formed.worker, formed.batch, Cause::Worker).expect("in flight");
                batcher.expire(later);
            }
        }
        batcher.unshared.contains_key(&impatient.id())
    };
    // A worker that fails all batches, or a new one each time, next to one that works.
    for is_early in [true, false, true, false, true, false] {
        assert!(!send(&mut batcher, Some(is_early)) && !send(&mut batcher, None));
    }
    assert_eq!([(); 3].map(|()| send(&mut batcher, Some(true))), [false, false, true]);
    assert!(!send(&mut batcher, None), "it shares batches again");
    assert_eq!(batcher.suspended(), [], "{good:?} and {slow:?} may work");
}

#[test]
fn a_request_that_fails_at_an_untrusted_worker_alone_in_the_queue_fails_without_setting_its_tenant_apart() {
    let (mut batcher, good, now) = trained(eager());
    let broken = batcher.add_worker(now, 1);
    batcher.suspend(now, broken);
    batcher.remove_worker(now, good);
    let only = tenant(1, 1);
    batcher.admit_for(only.into(), now, (1, 100), None).expect("the queue has room");
    let formed = batch(batcher.next(now));
    assert_eq!(formed.worker, broken);
    assert_eq!(batcher.fail(now, broken, formed.batch, Cause::Worker), Some(formed.requests));
    assert!(batcher.unshared.is_empty());
}

#[test]
fn a_worker_receives_batches_after_its_suspension_also_if_no_tenant_shares_batches() {
    let (mut batcher, good, now) = trained(eager());
    let broken = batcher.add_worker(now, 1);
    let only = tenant(1, 1);
    simulate(&mut batcher, &[Sender { tenant: only, every: ms(5), is_poison: false }], &[broken], 1);
    let mut now = ms(100_000);
    assert!(!batcher.workers[&broken].record.is_trusted());
    batcher.unshared.insert(only.id(), apart_until(now + Duration::from_secs(60)));
    let mut admit = |now: Time| {
        batcher.admit_for(only.into(), now, (1, 100), None).expect("the queue has room");
        batch(batcher.next(now))
    };
    // A worker that is trusted comes first, if it is free.
    let busy = admit(now);
    assert_eq!(busy.worker, good);
    let probe = admit(now);
    assert_eq!(probe.worker, broken);
    now += ms(2);
    batcher.complete(now, broken, probe.batch).expect("in flight");
    assert!(batcher.workers[&broken].record.is_trusted());
}

#[test]
fn a_failed_probe_of_a_tenant_that_shares_no_batches_does_not_lengthen_the_suspension() {
    let (mut batcher, good, now) = trained(eager());
    let broken = batcher.add_worker(now, 1);
    let only = tenant(1, 1);
    simulate(&mut batcher, &[Sender { tenant: only, every: ms(5), is_poison: false }], &[broken], 1);
    batcher.suspended();
    let suspensions = batcher.workers[&broken].record.suspensions;
    let now = ms(100_000);
    batcher.unshared.insert(only.id(), apart_until(now + Duration::from_secs(60)));
    for worker in [good, broken] {
        batcher.admit_for(only.into(), now, (1, 100), None).expect("the queue has room");
        let formed = batch(batcher.next(now));
        assert_eq!(formed.worker, worker);
        if worker == broken {
            batcher.fail(now, broken, formed.batch, Cause::Worker).expect("in flight");
        }
    }
    assert_eq!(batcher.suspended().len(), 1);
    assert_eq!(batcher.workers[&broken].record.suspensions, suspensions);
}

#[test]
fn a_tenant_whose_features_cannot_be_looked_up_shares_batches_with_others_afterwards() {
    let sizes_after = |cause| {
        let (mut batcher, worker, now) = trained(eager());
        let tenants = [tenant(1, 1), tenant(2, 1)];
        let admit = |batcher: &mut Batcher| {
            for tenant in tenants {
                batcher.admit_for(tenant.into(), now, (1, 100), None).expect("the queue has room");
            }
        };
        admit(&mut batcher);
        // The batch of both, and then that of each.
        let mut failed = 0;
        while failed < 2 {
            let formed = batch(batcher.next(now));
            failed += batcher.fail(now, worker, formed.batch, cause).expect("in flight").len();
        }
        admit(&mut batcher);
        sizes_of_computed_batches(&mut batcher, worker, now)
    };
    assert_eq!(sizes_after(Cause::Features), [2], "no tenant is to blame");
    assert_eq!(sizes_after(Cause::Size), [1, 1]);
    assert_eq!(sizes_after(Cause::Worker), [1, 1]);
}

#[test]
fn features_that_cannot_be_looked_up_are_no_reply_of_an_overdue_worker() {
    let (mut batcher, worker, now) = trained(QueueConfig { max_batch_rows: 1, ..eager() });
    let admit = |batcher: &mut Batcher, now| batcher.admit(now, 1, 100, None).expect("the queue has room");
    // Its first batches may take minutes.
    for _ in 0..3 {
        admit(&mut batcher, now);
        let formed = batch(batcher.next(now));
        batcher.complete(now, worker, formed.batch).expect("in flight");
    }
    admit(&mut batcher, now);
    let held = batch(batcher.next(now));
    batcher.gathered(now, held.batch);
    admit(&mut batcher, now);
    let Decision::Wait(Some(soon)) = batcher.next(now) else { panic!("the worker is busy") };
    let unsent = batch(batcher.next(soon));
    let due = now + ms(1000);
    assert_eq!(batcher.suspend_overdue(due), [worker]);
    batcher.fail(due, worker, unsent.batch, Cause::Features).expect("in flight");
    assert_eq!((batcher.load(due).overdue_workers, batcher.answering()), (1, vec![]));
    let later = due + ms(500);
    assert_eq!(batcher.silent_workers(later), [SilentWorker { worker, silence: ms(1500) }]);
    batcher.complete(later, worker, held.batch).expect("in flight");
    assert_eq!(batcher.answering(), [(worker, ms(1500))]);
    assert_eq!(batcher.silent_workers(later), []);
}

#[test]
fn the_workers_that_have_not_replied_for_the_longest_time_are_listed_first_and_at_most_16() {
    let (mut batcher, worker, start) = trained(QueueConfig { max_batch_rows: 1, ..eager() });
    batcher.remove_worker(start, worker);
    let mut workers = vec![];
    for number in 0..20 {
        let now = start + ms(10) * number;
        workers.push(batcher.add_worker(now, 1));
        batcher.admit(now, 1, 100, Some(Duration::from_secs(3600))).expect("a worker is free");
        batcher.next(now);
    }
    // Each has its first batch, for which it may take five minutes.
    let due = start + Duration::from_secs(300) + ms(190);
    assert_eq!(batcher.suspend_overdue(due), workers);
    let silent = batcher.silent_workers(due);
    let expected = |(number, worker): (u32, &WorkerId)| SilentWorker {
        worker: *worker,
        silence: due - start - ms(10) * number,
    };
    assert_eq!(silent, (0..16).zip(&workers).map(expected).collect::<Vec<_>>());
    assert_eq!(batcher.load(due).overdue_workers, 20);
}

#[test]
fn a_tenant_shares_batches_again_a_minute_after_its_last_failure() {
    let (mut batcher, worker, now) = trained(eager());
    let [calm, poison] = [tenant(1, 1), tenant(2, 1)];
    batcher.admit_for(poison.into(), now, (1, 100), None).expect("idle");
    let formed = batch(batcher.next(now));
    assert_eq!(batcher.fail(now, worker, formed.batch, Cause::Worker).map(|failed| failed.len()), Some(1));
    let mut together = |now: Time| {
        for tenant in [calm, poison] {
            batcher.admit_for(tenant.into(), now, (1, 100), None).expect("the queue has room");
        }
        sizes_of_computed_batches(&mut batcher, worker, now)
    };
    assert_eq!(together(now + Duration::from_secs(59)), [1, 1]);
    assert_eq!(together(now + Duration::from_secs(60)), [2]);
}

#[test]
fn a_prediction_counts_the_batches_that_requests_have_for_themselves() {
    let (mut batcher, worker, now) = trained(eager());
    let requests: Vec<_> = (0..8).map(|_| batcher.admit(now, 1, 100, None).expect("admitted")).collect();
    let together = batcher.predict_for(Tenant::SERVER.into(), now, 1, 100).expect("trained");
    let formed = batch(batcher.next(now));
    assert_eq!(formed.requests, requests);
    batcher.fail(now, worker, formed.batch, Cause::Worker);
    let in_halves = batcher.predict_for(Tenant::SERVER.into(), now, 1, 100).expect("trained");
    // Two batches of 2 ms before its own one.
    let more = in_halves - together;
    assert!(more > ms(3) && more < ms(5), "{together:?} {in_halves:?}");
}

#[test]
fn requests_that_no_queue_could_answer_are_no_arrivals() {
    let (mut batcher, worker, mut now) = trained(QueueConfig::default());
    for _ in 0..200 {
        now += ms(10);
        batcher.admit(now, 1, 100, None).expect("idle");
        let formed = batch(batcher.next(now + ms(6)));
        batcher.complete(now + ms(8), worker, formed.batch).expect("in flight");
    }
    batcher.admit(now, 64, 6400, None).expect("idle");
    let (rate, mean) = (batcher.load(now).requests_per_second, batcher.mean_arrival_rate(now));
    let pays = batcher.arrivals.pays_until(1, 0.002);
    for _ in 0..2000 {
        let (too_many, too_large) = (batcher.config.max_batch_rows + 1, batcher.config.max_batch_bytes + 1);
        assert_eq!(batcher.admit(now, 0, 0, None), Err(Refusal::Empty));
        assert!(matches!(batcher.admit(now, too_many, 1, None), Err(Refusal::Rows { .. })));
        assert!(matches!(batcher.admit(now, 1, too_large, None), Err(Refusal::Bytes { .. })));
        // Its timeout is shorter than any computation.
        let late = batcher.admit(now, 1, 100, Some(Duration::from_micros(1)));
        assert!(matches!(late, Err(Refusal::Late { .. })), "{late:?}");
    }
    batcher.drain();
    assert_eq!(batcher.admit(now, 1, 100, None), Err(Refusal::Draining));
    assert_eq!(batcher.load(now).requests_per_second, rate);
    assert_eq!(batcher.mean_arrival_rate(now), mean);
    assert_eq!(batcher.arrivals.pays_until(1, 0.002), pays);
}

#[test]
fn requests_that_are_refused_because_the_queue_is_long_are_demand_but_do_not_delay_others() {
    let (mut batcher, _, now) = trained(QueueConfig { max_predicted_wait: ms(20), ..eager() });
    while batcher.admit(now, 512, 51_200, None).is_ok() {}
    let pays = batcher.arrivals.pays_until(1, 0.002);
    let mean = batcher.mean_arrival_rate(now);
    for _ in 0..100 {
        assert!(matches!(batcher.admit(now, 512, 51_200, None), Err(Refusal::Late { .. })));
    }
    assert!(batcher.mean_arrival_rate(now) >= mean + 99.0);
    assert_eq!(batcher.arrivals.pays_until(1, 0.002), pays);
}

#[test]
fn a_worker_that_fails_its_first_batches_still_may_take_long_for_the_first_that_it_computes() {
    let (mut batcher, worker, now) = trained(eager());
    for _ in 0..5 {
        batcher.admit(now, 1, 100, None).expect("idle");
        let formed = batch(batcher.next(now));
        batcher.fail(now, worker, formed.batch, Cause::Worker).expect("in flight");
    }
    batcher.admit(now, 1, 100, None).expect("idle");
    batch(batcher.next(now));
    assert_eq!(batcher.suspend_overdue(now + Duration::from_secs(299)), []);
}
