use std::time::Duration;

use futures::FutureExt;
use tokio::time::timeout;

use super::*;

#[tokio::test]
async fn a_reservation_over_the_capacity_is_rejected_immediately() {
    let error = Budget::new(10).reserve(11).await.err();
    assert_eq!(error, Some(TooLarge { bytes: 11, available_bytes: 10 }));
}

#[tokio::test(start_paused = true)]
async fn reservations_are_granted_in_order_and_a_small_one_does_not_overtake() {
    let budget = Budget::new(10);
    let first = budget.reserve(8).await.unwrap();
    let large = tokio::spawn({
        let budget = budget.clone();
        async move { budget.reserve(6).await }
    });
    tokio::task::yield_now().await;
    assert!(budget.try_reserve(1).is_none(), "another caller is waiting");
    let mut small = Box::pin(budget.reserve(1));
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
    let held = budget.reserve(8).await.unwrap();
    assert!(budget.reserve(10).now_or_never().is_none());
    assert!(budget.try_reserve(2).is_some());
    drop(held);
    assert!(budget.reserve(10).now_or_never().is_some());
    assert_eq!(budget.reserved_bytes(), 0);
}

#[tokio::test(start_paused = true)]
async fn when_the_head_of_the_queue_is_cancelled_the_next_is_granted() {
    let budget = Budget::new(100);
    let held = budget.reserve(60).await.unwrap();
    let head = tokio::spawn({
        let budget = budget.clone();
        async move { budget.reserve(90).await }
    });
    tokio::task::yield_now().await;
    let next = tokio::spawn({
        let budget = budget.clone();
        async move { budget.reserve(10).await.map(|share| share.bytes()) }
    });
    tokio::task::yield_now().await;
    head.abort();
    assert_eq!(timeout(Duration::from_secs(1), next).await.unwrap().unwrap(), Ok(10));
    drop(held);
}

#[tokio::test]
async fn a_raised_reservation_exceeds_the_budget_and_delays_others() {
    let budget = Budget::new(10);
    let mut held = budget.reserve(5).await.unwrap();
    held.raise(12);
    held.raise(3);
    assert_eq!((held.bytes(), budget.reserved_bytes()), (12, 12));
    assert!(budget.reserve(1).now_or_never().is_none());
    drop(held);
    assert!(budget.reserve(10).now_or_never().is_some());
}

proptest::proptest! {
    #[test]
    fn reservations_never_exceed_the_budget_and_are_all_released(
        sizes in proptest::collection::vec((0u64..=10, proptest::bool::ANY), 1..60)
    ) {
        let budget = Budget::new(10);
        let mut held = VecDeque::new();
        for (bytes, release) in sizes {
            if let Some(Ok(share)) = budget.reserve(bytes).now_or_never() {
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
    let mut kept = budget.reserve(6).await.unwrap();
    let reserve = |bytes| {
        let budget = budget.clone();
        tokio::spawn(async move { budget.reserve(bytes).await })
    };
    let held = budget.reserve(3).await.unwrap();
    let (never, later) = (reserve(7), reserve(4));
    tokio::task::yield_now().await;
    kept.keep();
    let refused = timeout(Duration::from_secs(1), never).await.unwrap().unwrap();
    assert_eq!(refused.err(), Some(TooLarge { bytes: 7, available_bytes: 4 }));
    drop(held);
    let later = timeout(Duration::from_secs(1), later).await.unwrap().unwrap().unwrap();
    assert!(budget.reserve(5).now_or_never().unwrap().is_err());
    drop((kept, later));
    assert!(budget.reserve(10).now_or_never().unwrap().is_ok());
}

#[tokio::test]
async fn splitting_and_merging_reservations_preserves_their_bytes() {
    let budget = Budget::new(10);
    let mut all = budget.reserve(8).await.unwrap();
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
