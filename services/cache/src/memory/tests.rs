use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::join_all;
use tokio::sync::Notify;

use super::*;
use crate::NoForecast;

struct Bytes(u64);

impl Weigh for Bytes {
    fn weight(&self) -> u64 {
        self.0
    }
}

async fn load(memory: &Memory<u32, Bytes>, key: u32, weight: u64) -> Arc<Bytes> {
    memory.get_or_load(&key, weight, || async move { Ok::<_, ()>(Bytes(weight)) }).await.unwrap()
}

#[tokio::test]
async fn the_least_recently_used_value_is_evicted_first_and_values_in_use_stay() {
    let memory = Memory::new(30, Arc::new(NoForecast));
    let held = load(&memory, 1, 10).await;
    for key in [2, 3, 2, 4] {
        load(&memory, key, 10).await;
    }
    assert!(memory.weight(&1).is_some(), "in use");
    assert!(memory.weight(&2).is_some() && memory.weight(&4).is_some());
    assert!(memory.weight(&3).is_none(), "least recently used");
    assert_eq!(memory.resident_bytes(), 30);
    drop(held);
}

#[tokio::test]
async fn values_leave_room_for_long_lived_reservations_outside_of_the_tier() {
    let memory = Memory::new(30, Arc::new(NoForecast));
    for key in 1..4 {
        load(&memory, key, 10).await;
    }
    let mut outside = memory.budget().try_reserve(15, &[]).unwrap();
    outside.keep_outside();
    let part = outside.split(5).unwrap();
    assert_eq!((memory.budget().tier_bytes(), memory.budget().available_bytes()), (15, 15));
    load(&memory, 4, 10).await;
    assert_eq!(memory.resident_bytes(), 10);
    drop(outside);
    load(&memory, 5, 10).await;
    assert_eq!((memory.resident_bytes(), memory.budget().tier_bytes()), (20, 25));
    drop(part);
    assert_eq!(memory.budget().tier_bytes(), 30);
}

#[tokio::test]
async fn a_value_heavier_than_expected_is_charged_in_full() {
    let memory = Memory::new(30, Arc::new(NoForecast));
    load(&memory, 1, 10).await;
    memory.get_or_load(&2, 5, || async { Ok::<_, ()>(Bytes(25)) }).await.unwrap();
    assert_eq!(memory.resident_bytes(), 25);
    memory.get_or_load(&3, 20, || async { Ok::<_, ()>(Bytes(4)) }).await.unwrap();
    assert_eq!(memory.resident_bytes(), 4);
}

#[tokio::test]
async fn concurrent_callers_share_one_load() {
    let memory = Memory::<u32, Bytes>::new(100, Arc::new(NoForecast));
    let loads = AtomicUsize::new(0);
    let gate = Notify::new();
    let reads = (0..10).map(|_| {
        memory.get_or_load(&7, 1, || async {
            loads.fetch_add(1, Ordering::Relaxed);
            gate.notified().await;
            Ok::<_, ()>(Bytes(1))
        })
    });
    let (results, ()) = tokio::join!(join_all(reads), async {
        tokio::task::yield_now().await;
        gate.notify_one();
    });
    assert!(results.iter().all(Result::is_ok));
    assert_eq!(loads.into_inner(), 1);
}

#[tokio::test]
async fn when_a_load_fails_or_is_cancelled_the_next_waiting_caller_loads() {
    let memory = Memory::<u32, Bytes>::new(100, Arc::new(NoForecast));
    let never = tokio::spawn({
        let memory = memory.clone();
        async move { memory.get_or_load(&7, 50, std::future::pending::<Result<Bytes, ()>>).await.is_ok() }
    });
    tokio::task::yield_now().await;
    let gate = Arc::new(Notify::new());
    let failing = tokio::spawn({
        let (memory, gate) = (memory.clone(), Arc::clone(&gate));
        async move {
            let load = || async {
                gate.notified().await;
                Err(())
            };
            memory.get_or_load(&7, 50, load).await.is_ok()
        }
    });
    tokio::task::yield_now().await;
    let last = tokio::spawn({
        let memory = memory.clone();
        async move { load(&memory, 7, 50).await.0 }
    });
    tokio::task::yield_now().await;
    never.abort();
    gate.notify_one();
    assert_eq!(last.await.unwrap(), 50);
    // The two waiting callers may run in either order, so the failing one may have found the value.
    drop(failing.await);
    assert_eq!(memory.resident_bytes(), 50);
}

#[tokio::test]
async fn a_failed_load_leaves_no_charge() {
    let memory = Memory::<u32, Bytes>::new(100, Arc::new(NoForecast));
    assert!(memory.get_or_load(&7, 50, || async { Err("no") }).await.is_err());
    assert_eq!(memory.resident_bytes(), 0);
    assert!(memory.tier.loads.is_empty());
}

/// Forecast in which a greater key is needed later.
struct ByKey;

impl Forecast<u32> for ByKey {
    fn next_use(&self, key: &u32) -> u64 {
        u64::from(*key)
    }
}

#[tokio::test]
async fn the_value_needed_last_is_evicted_first_unless_it_is_in_use() {
    let memory = Memory::new(40, Arc::new(ByKey));
    let held = load(&memory, 9, 10).await;
    for key in [3, 8, 1] {
        load(&memory, key, 10).await;
    }
    load(&memory, 2, 10).await;
    assert!(memory.weight(&9).is_some(), "in use");
    assert!(memory.weight(&8).is_none(), "needed last of the values that can be evicted");
    drop(held);
    load(&memory, 4, 10).await;
    assert!(memory.weight(&9).is_none());
    assert_eq!(memory.resident_bytes(), 40);
}

#[tokio::test]
async fn removed_values_no_longer_count_even_while_in_use() {
    let memory = Memory::new(40, Arc::new(NoForecast));
    let held = load(&memory, 1, 10).await;
    for key in [2, 3, 4] {
        load(&memory, key, 10).await;
    }
    assert_eq!(memory.remove_where(|key| *key % 2 == 1), 20);
    assert_eq!((memory.resident_bytes(), held.0), (20, 10));
    assert!(memory.weight(&1).is_none() && memory.weight(&2).is_some());
    let again = load(&memory, 1, 10).await;
    assert!(!Arc::ptr_eq(&held, &again));
    drop(held);
    assert_eq!(memory.resident_bytes(), 30);
    assert_eq!(memory.remove_where(|_| true), 30);
    assert_eq!(memory.resident_bytes(), 0);
    assert!(memory.tier.policy.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn accounting_is_correct_under_concurrent_use() {
    let memory = Memory::new(200, Arc::new(ByKey));
    let readers = (0..4u32).map(|reader| {
        let memory = memory.clone();
        tokio::spawn(async move {
            for step in 0..5000 {
                let key = (step * 7 + reader * 13) % 40;
                drop(load(&memory, key, u64::from(key % 9) + 1).await);
                if step % 500 == 0 {
                    memory.remove_where(|key| key % 5 == 0);
                }
            }
        })
    });
    join_all(readers).await.into_iter().for_each(|reader| reader.unwrap());
    let weights: u64 = memory.tier.values.iter().map(|value| value.weight).sum();
    assert_eq!(memory.resident_bytes(), weights);
    assert_eq!(memory.tier.policy.len(), memory.tier.values.len());
    assert!(weights <= 200);
}
