use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::join_all;
use tokio::sync::Notify;

use super::*;

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
async fn the_least_recently_used_value_goes_first_and_held_ones_stay() {
    let memory = Memory::new(30);
    let held = load(&memory, 1, 10).await;
    for key in [2, 3, 2, 4] {
        load(&memory, key, 10).await;
    }
    assert!(memory.weight(&1).is_some(), "held");
    assert!(memory.weight(&2).is_some() && memory.weight(&4).is_some());
    assert!(memory.weight(&3).is_none(), "the oldest use of an unheld value");
    assert_eq!(memory.resident_bytes(), 30);
    drop(held);
}

#[tokio::test]
async fn a_value_heavier_than_expected_is_charged_in_full() {
    let memory = Memory::new(30);
    load(&memory, 1, 10).await;
    memory.get_or_load(&2, 5, || async { Ok::<_, ()>(Bytes(25)) }).await.unwrap();
    assert_eq!(memory.resident_bytes(), 25);
    memory.get_or_load(&3, 20, || async { Ok::<_, ()>(Bytes(4)) }).await.unwrap();
    assert_eq!(memory.resident_bytes(), 4);
}

#[tokio::test]
async fn concurrent_readers_share_one_load() {
    let memory = Memory::<u32, Bytes>::new(100);
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
async fn when_the_leader_fails_or_is_cancelled_the_next_waiter_loads() {
    let memory = Memory::<u32, Bytes>::new(100);
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
    // Either order of the two waiters is right; the failing one may have found the value.
    drop(failing.await);
    assert_eq!(memory.resident_bytes(), 50);
}

#[tokio::test]
async fn a_failed_load_leaves_no_charge() {
    let memory = Memory::<u32, Bytes>::new(100);
    assert!(memory.get_or_load(&7, 50, || async { Err("no") }).await.is_err());
    assert_eq!(memory.resident_bytes(), 0);
    assert!(memory.tier.flights.is_empty());
}
