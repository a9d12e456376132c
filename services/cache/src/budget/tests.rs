use std::{num::NonZeroU32, time::Duration};

use futures::FutureExt;
use tokio::time::timeout;

use super::*;

#[tokio::test]
async fn a_reservation_over_the_capacity_is_rejected_immediately() {
    let error = Budget::new(10).reserve(11, &[]).await.err();
    assert_eq!(error, Some(TooLarge { bytes: 11, available_bytes: 10 }));
}

#[tokio::test(start_paused = true)]
async fn reservations_are_granted_in_order_and_a_small_one_does_not_overtake() {
    let budget = Budget::new(10);
    let first = budget.reserve(8, &[]).await.unwrap();
    let large = tokio::spawn({
        let budget = budget.clone();
        async move { budget.reserve(6, &[]).await }
    });
    tokio::task::yield_now().await;
    assert!(budget.try_reserve(1, &[]).is_none(), "another caller is waiting");
    let mut small = Box::pin(budget.reserve(1, &[]));
    assert!(timeout(Duration::from_secs(1), &mut small).await.is_err());
    drop(first);
    let large = large.await.unwrap().unwrap();
    let small = small.await.unwrap();
    assert_eq!(budget.reserved_bytes(), 7);
    drop((large, small));
    assert_eq!(budget.reserved_bytes(), 0);
}

#[tokio::test]
async fn a_cancelled_wait_leaves_the_queue() {
    let budget = Budget::new(10);
    let held = budget.reserve(8, &[]).await.unwrap();
    assert!(budget.reserve(10, &[]).now_or_never().is_none());
    assert!(budget.try_reserve(2, &[]).is_some());
    drop(held);
    assert!(budget.reserve(10, &[]).now_or_never().is_some());
    assert_eq!(budget.reserved_bytes(), 0);
}

#[tokio::test(start_paused = true)]
async fn when_the_head_of_the_queue_is_cancelled_the_next_is_granted() {
    let budget = Budget::new(100);
    let held = budget.reserve(60, &[]).await.unwrap();
    let head = tokio::spawn({
        let budget = budget.clone();
        async move { budget.reserve(90, &[]).await }
    });
    tokio::task::yield_now().await;
    let next = tokio::spawn({
        let budget = budget.clone();
        async move { budget.reserve(10, &[]).await.map(|share| share.bytes()) }
    });
    tokio::task::yield_now().await;
    head.abort();
    assert_eq!(timeout(Duration::from_secs(1), next).await.unwrap().unwrap(), Ok(10));
    drop(held);
}

#[tokio::test]
async fn a_raised_reservation_exceeds_the_budget_and_delays_others() {
    let budget = Budget::new(10);
    let mut held = budget.reserve(5, &[]).await.unwrap();
    held.raise(12);
    held.raise(3);
    assert_eq!((held.bytes(), budget.reserved_bytes()), (12, 12));
    assert!(budget.reserve(1, &[]).now_or_never().is_none());
    drop(held);
    assert!(budget.reserve(10, &[]).now_or_never().is_some());
}

#[tokio::test]
async fn a_reservation_is_raised_only_if_all_reservations_stay_within_a_limit() {
    let budget = Budget::new(10);
    let (mut first, second) = (budget.reserve(5, &[]).await.unwrap(), budget.reserve(4, &[]).await.unwrap());
    assert!(first.try_raise(7, 11));
    assert!(!first.try_raise(8, 11));
    assert_eq!((first.bytes(), budget.reserved_bytes()), (7, 11));
    // What is already reserved is within every limit.
    assert!(first.try_raise(7, 10));
    drop(second);
    assert!(first.try_raise(8, 10));
    drop(first);
    assert_eq!(budget.reserved_bytes(), 0);
}

proptest::proptest! {
    #[test]
    fn every_wait_ends_and_callers_of_the_same_sources_stay_in_order(
        steps in proptest::collection::vec((0u64..=10, 0..4_usize, proptest::bool::ANY, proptest::bool::ANY), 1..60)
    ) {
        let budget = Budget::new(10);
        let sources: [&[SourceId]; 4] = [&[], SLOW, OTHER, &[SLOW[0], OTHER[0]]];
        let (mut waiting, mut held) = (Vec::new(), VecDeque::new());
        let mut last_granted = HashMap::new();
        // After these steps, one reservation is loaded and released at a time.
        for step in 0..3 * steps.len() {
            let (bytes, of, load, release) = steps.get(step).copied().unwrap_or((0, 0, true, true));
            if step < steps.len() {
                waiting.push((step, of, Box::pin(budget.reserve(bytes, sources[of]))));
            }
            let mut still_waiting = Vec::new();
            for (number, of, mut wait) in waiting {
                match (&mut wait).now_or_never() {
                    Some(reservation) => {
                        let before = last_granted.insert(of, number);
                        proptest::prop_assert!(before < Some(number), "{number} after {before:?}");
                        held.push_back(reservation.unwrap());
                    }
                    None => still_waiting.push((number, of, wait)),
                }
            }
            waiting = still_waiting;
            let sum: u64 = held.iter().map(Reservation::bytes).sum();
            proptest::prop_assert!(sum <= budget.reserved_bytes() && budget.reserved_bytes() <= 10);
            if load && let Some(first) = held.front_mut() {
                first.loaded();
            }
            if release {
                held.pop_front();
            }
        }
        proptest::prop_assert!(waiting.is_empty() && held.is_empty());
        proptest::prop_assert_eq!(budget.reserved_bytes(), 0);
        proptest::prop_assert!(budget.shared.state.lock().loading_bytes.is_empty());
    }

    #[test]
    fn reservations_never_exceed_the_budget_and_are_all_released(
        sizes in proptest::collection::vec((0u64..=10, proptest::bool::ANY), 1..60)
    ) {
        let budget = Budget::new(10);
        let mut held = VecDeque::new();
        for (bytes, release) in sizes {
            if let Some(Ok(share)) = budget.reserve(bytes, &[]).now_or_never() {
                held.push_back(share);
            }
            let sum: u64 = held.iter().map(Reservation::bytes).sum();
            proptest::prop_assert_eq!(budget.reserved_bytes(), sum);
            proptest::prop_assert!(sum <= 10);
            if release {
                held.pop_front();
            }
        }
        held.clear();
        proptest::prop_assert_eq!(budget.reserved_bytes(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_long_lived_reservation_rejects_waits_for_its_bytes_and_no_others() {
    let budget = Budget::new(10);
    let mut kept = budget.reserve(6, &[]).await.unwrap();
    let reserve = |bytes| {
        let budget = budget.clone();
        tokio::spawn(async move { budget.reserve(bytes, &[]).await })
    };
    let held = budget.reserve(3, &[]).await.unwrap();
    let (never, later) = (reserve(7), reserve(4));
    tokio::task::yield_now().await;
    kept.keep();
    let refused = timeout(Duration::from_secs(1), never).await.unwrap().unwrap();
    assert_eq!(refused.err(), Some(TooLarge { bytes: 7, available_bytes: 4 }));
    drop(held);
    let later = timeout(Duration::from_secs(1), later).await.unwrap().unwrap().unwrap();
    assert!(budget.reserve(5, &[]).now_or_never().unwrap().is_err());
    drop((kept, later));
    assert!(budget.reserve(10, &[]).now_or_never().unwrap().is_ok());
}

#[tokio::test]
async fn splitting_and_merging_reservations_preserves_their_bytes() {
    let budget = Budget::new(10);
    let mut all = budget.reserve(8, &[]).await.unwrap();
    all.keep();
    let part = all.split(5).unwrap();
    assert!(all.split(4).is_none());
    assert_eq!((all.bytes(), part.bytes(), budget.reserved_bytes(), budget.available_bytes()), (3, 5, 8, 2));
    all.merge(part);
    let part = all.split(6).unwrap();
    drop(all);
    assert_eq!((budget.reserved_bytes(), budget.available_bytes()), (6, 4));
    drop(part);
    assert_eq!((budget.reserved_bytes(), budget.available_bytes()), (0, 10));
}

const SLOW: &[SourceId] = &[SourceId(1)];
const OTHER: &[SourceId] = &[SourceId(2)];

#[tokio::test(start_paused = true)]
async fn a_source_that_never_answers_holds_at_most_four_fifths_and_others_continue() {
    let budget = Budget::new(100);
    let reserve_slow = || {
        let budget = budget.clone();
        tokio::spawn(async move { budget.reserve(15, SLOW).await.unwrap() })
    };
    let slow: Vec<_> = (0..20).map(|_| reserve_slow()).collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(budget.reserved_bytes(), 75);
    for _ in 0..100 {
        assert!(budget.has_room(15, OTHER) && !budget.has_room(15, SLOW));
        let mut first =
            budget.reserve(15, OTHER).now_or_never().expect("the slow source delays others").unwrap();
        assert!(budget.try_reserve(10, OTHER).is_none(), "others have more than a fifth left for themselves");
        first.loaded();
        assert!(budget.try_reserve(5, OTHER).is_some());
    }
    // The source answers.
    for reserved in slow {
        reserved.await.unwrap().loaded();
    }
    assert_eq!(budget.reserved_bytes(), 0);
}

#[tokio::test]
async fn callers_of_one_source_receive_their_bytes_in_order() {
    let budget = Budget::new(100);
    let mut first = budget.reserve(50, SLOW).await.unwrap();
    let mut large = Box::pin(budget.reserve(35, SLOW));
    assert!((&mut large).now_or_never().is_none());
    let mut small = Box::pin(budget.reserve(1, SLOW));
    assert!((&mut small).now_or_never().is_none(), "a small one does not overtake");
    assert!(budget.try_reserve(1, SLOW).is_none());
    let both = [OTHER[0], SLOW[0]];
    let mut of_both = Box::pin(budget.reserve(1, &both));
    assert!((&mut of_both).now_or_never().is_none(), "it waits for its slow source");
    assert!(budget.try_reserve(1, OTHER).is_some(), "it delays no caller of the other source");
    first.loaded();
    let large = large.now_or_never().expect("its source has loaded everything").unwrap();
    assert!((&mut small).now_or_never().is_some());
    assert!((&mut of_both).now_or_never().is_some());
    drop((first, large));
}

#[tokio::test]
async fn a_caller_of_two_busy_sources_is_not_overtaken_permanently() {
    let budget = Budget::new(100);
    let both = [SLOW[0], OTHER[0]];
    let mut busy: VecDeque<_> = VecDeque::new();
    for _ in 0..2 {
        busy.push_back(Box::pin(budget.reserve(30, SLOW)).now_or_never().unwrap().unwrap());
        busy.push_back(Box::pin(budget.reserve(15, OTHER)).now_or_never().unwrap().unwrap());
    }
    let mut large = Box::pin(budget.reserve(75, &both));
    assert!((&mut large).now_or_never().is_none());
    let mut waiting: Vec<_> = Vec::new();
    for step in 0..100 {
        // Each source always has callers that wait.
        for source in [SLOW, OTHER, SLOW, OTHER] {
            waiting.push(Box::pin(budget.reserve(15, source)));
        }
        waiting.retain_mut(|wait| match wait.now_or_never() {
            Some(granted) => {
                busy.push_back(granted.unwrap());
                false
            }
            None => true,
        });
        if (&mut large).now_or_never().is_some() {
            return;
        }
        let first = busy.pop_front();
        assert!(first.is_some(), "nothing is reserved in step {step}");
    }
    panic!("it was overtaken permanently");
}

#[tokio::test]
async fn a_reservation_of_two_sources_is_charged_to_the_one_from_which_it_loads() {
    let budget = Budget::new(100);
    let both = [SLOW[0], OTHER[0]];
    let mut of_slow = budget.reserve(80, &both).await.unwrap();
    let mut of_other = of_slow.split(40).unwrap();
    of_slow.load_only_from(SLOW[0]);
    of_other.load_only_from(OTHER[0]);
    of_other.loaded();
    assert!(budget.try_reserve(20, SLOW).is_none());
    assert!(budget.try_reserve(20, OTHER).is_some());
    drop((of_slow, of_other));
    assert!(budget.shared.state.lock().loading_bytes.is_empty());
}

#[tokio::test]
async fn only_bytes_that_are_being_loaded_count_for_their_source() {
    let budget = Budget::new(100);
    let mut first = budget.reserve(40, SLOW).await.unwrap();
    let part = first.split(10).unwrap();
    first.raise(50);
    first.loaded();
    assert!(budget.try_reserve(35, SLOW).is_none(), "10 + 35 are more than four times 5");
    drop(part);
    let second = budget.try_reserve(35, SLOW).unwrap();
    first.loading();
    drop(second);
    assert!(budget.try_reserve(10, SLOW).is_some() && budget.try_reserve(40, SLOW).is_none());
    drop(first);
    assert!(budget.try_reserve(100, SLOW).is_some());
    assert!(budget.shared.state.lock().loading_bytes.is_empty());
}

#[test]
fn tenants_that_wait_receive_bytes_in_proportion_to_their_weights() {
    let budget = Budget::new(12);
    let all = budget.try_reserve(12, &[]).unwrap();
    let of = |id: u32| budget.of_tenant(Tenant::new(id.into(), NonZeroU32::new(id).unwrap()));
    let (light, heavy) = (of(1), of(3));
    let mut waits: Vec<_> =
        (0..40).map(|at| (at, Box::pin(if at < 20 { &light } else { &heavy }.reserve(1, &[])))).collect();
    for (_, wait) in &mut waits {
        assert!(wait.now_or_never().is_none());
    }
    drop(all);
    let mut granted: Vec<_> =
        waits.iter_mut().filter_map(|(at, wait)| Some((*at, wait.now_or_never()?))).collect();
    let numbers: Vec<u32> = granted.iter().map(|(at, _)| *at).collect();
    // In the order of arrival within each tenant.
    assert_eq!(numbers, (0..3).chain(20..29).collect::<Vec<_>>());
    // What a tenant releases goes to the tenant that has the least in relation to its weight.
    drop(granted.remove(0));
    assert!((&mut waits[3].1).now_or_never().is_some());
}

#[test]
fn a_tenant_yields_to_one_that_waits_and_would_have_less() {
    let budget = Budget::new(12);
    let of = |id: u64| budget.of_tenant(Tenant::new(id, NonZeroU32::MIN));
    let (first, second) = (of(1), of(2));
    let held: Vec<_> = (0..3).map(|_| first.try_reserve(4, &[]).unwrap()).collect();
    assert!(!first.should_yield());
    let mut wait = Box::pin(second.reserve(4, &[]));
    assert!((&mut wait).now_or_never().is_none());
    assert!(first.should_yield() && !second.should_yield());
    let mut own = Box::pin(first.reserve(4, &[]));
    assert!((&mut own).now_or_never().is_none());
    drop(held.into_iter().next());
    assert!((&mut wait).now_or_never().is_some(), "before the earlier tenant, which has more");
    assert!(!first.should_yield(), "only its own caller waits");
}

/// Queues a caller of `flow`, which reports its name when it has the bytes, and then releases them.
fn queue(budget: &Budget, flow: u64, bytes: u64, name: &'static str, log: &Arc<Mutex<Vec<&'static str>>>) {
    let (budget, log) = (budget.of_flow(flow), Arc::clone(log));
    let mut waiting = Box::pin(async move {
        let _reserved = budget.reserve(bytes, &[]).await.unwrap();
        log.lock().push(name);
        tokio::time::sleep(Duration::from_millis(1)).await;
    });
    // Joins the queue now.
    assert!((&mut waiting).now_or_never().is_none());
    tokio::spawn(waiting);
}

#[tokio::test(start_paused = true)]
async fn waiting_flows_receive_bytes_in_turn_however_many_callers_each_has() {
    let (budget, log) = (Budget::new(10), Arc::default());
    let held = budget.reserve(10, &[]).await.unwrap();
    for name in ["a1", "a2", "a3", "a4"] {
        queue(&budget, 1, 10, name, &log);
    }
    queue(&budget, 2, 10, "b1", &log);
    queue(&budget, 2, 10, "b2", &log);
    // Smaller callers, and therefore more of them.
    for name in ["c1", "c2", "c3"] {
        queue(&budget, 3, 6, name, &log);
    }
    drop(held);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(*log.lock(), ["a1", "b1", "c1", "c2", "a2", "b2", "c3", "a3", "a4"]);
    assert_eq!(budget.reserved_bytes(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_flow_that_waits_with_one_caller_at_a_time_has_every_second_turn() {
    let (budget, log) = (Budget::new(10), Arc::default());
    let held = budget.reserve(10, &[]).await.unwrap();
    for name in ["a1", "a2", "a3"] {
        queue(&budget, 1, 10, name, &log);
    }
    let one_by_one = tokio::spawn({
        let (budget, log) = (budget.of_flow(2), Arc::clone(&log));
        async move {
            for name in ["b1", "b2"] {
                let reserved = budget.reserve(10, &[]).await.unwrap();
                log.lock().push(name);
                tokio::time::sleep(Duration::from_millis(1)).await;
                drop(reserved);
            }
        }
    });
    tokio::task::yield_now().await;
    drop(held);
    one_by_one.await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(*log.lock(), ["a1", "b1", "a2", "b2", "a3"]);
}

/// Lets callers of two tenants reserve the whole budget: three of the first, and `second` of the second, which arrive after 8
/// grants. Each returns to the queue when it has released its bytes. Returns the tenants of the next 12 grants.
async fn turns_of_two_tenants(weights: [u32; 2], second: usize) -> Vec<u64> {
    let (budget, log) = (Budget::new(12), Arc::new(Mutex::new(Vec::new())));
    let start = |id: u64, flow: u64| {
        let tenant = Tenant::new(id, NonZeroU32::new(weights[id as usize - 1]).unwrap());
        let (budget, log) = (budget.of_tenant(tenant).of_flow(flow), Arc::clone(&log));
        tokio::spawn(async move {
            loop {
                let reserved = budget.reserve(12, &[]).await.unwrap();
                log.lock().push(id);
                tokio::time::sleep(Duration::from_millis(1)).await;
                drop(reserved);
            }
        })
    };
    let after = async |turns: usize| {
        while log.lock().len() < turns {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let mut callers = [1, 1, 2].map(|flow| start(1, flow)).into_iter().collect::<Vec<_>>();
    after(8).await;
    callers.extend((0..second).map(|_| start(2, 1)));
    tokio::task::yield_now().await;
    let before = log.lock().len();
    after(before + 12).await;
    callers.iter().for_each(tokio::task::JoinHandle::abort);
    let log = log.lock();
    log[before..before + 12].to_vec()
}

#[tokio::test(start_paused = true)]
async fn tenants_of_which_one_at_a_time_has_bytes_alternate_however_many_callers_each_has() {
    for callers in [1, 2] {
        assert_eq!(turns_of_two_tenants([1, 1], callers).await, [2, 1].repeat(6), "{callers}");
    }
}

#[tokio::test(start_paused = true)]
async fn tenants_of_which_one_at_a_time_has_bytes_receive_them_in_proportion_to_their_weights() {
    let turns = turns_of_two_tenants([3, 1], 2).await;
    // Nine, but the second tenant has the first turn.
    let of_first = turns.iter().filter(|id| **id == 1).count();
    assert!((8..=9).contains(&of_first), "{turns:?}");
}
