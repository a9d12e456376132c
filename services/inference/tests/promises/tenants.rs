//! Tenants share the threads for lookups by weight.

#![allow(clippy::disallowed_methods)] // The time is simulated.

use std::{
    num::NonZeroU32,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use forebay_inference::{Config, LookupMemory, OnlineDataset, Requirements};
use forebay_loader::{Loader, Pool, Tenant};
use forebay_proto::v1::Train;
use tokio::{task::JoinSet, time::Instant};

use crate::fixture::{Fixture, ids, spec, users};

/// Callers of each tenant.
const CALLERS: usize = 4;
/// Keys of a lookup that is large enough for the pool.
const KEYS: i64 = 2000;

/// Work on the keys of a large message is an operation of the lookup threads, which tenants share.
#[tokio::test(start_paused = true)]
async fn large_keys_wait_for_one_operation_of_a_tenant_that_sends_many() {
    let (fixture, folder) = (Fixture::new(), tempfile::tempdir().unwrap());
    fixture.write(0, &users(0..KEYS, 1)).await;
    let online = online(&fixture, folder.path()).await;
    let of = |id: u64| online.lookup(&Train::default(), vec![]).of_tenant(Tenant::new(id, NonZeroU32::MIN));
    let began = Instant::now();
    let mut many = JoinSet::new();
    for _ in 0..16 {
        let mut lookup = of(1);
        many.spawn(async move { lookup.encode(&ids(0..KEYS)).await.map(drop) });
    }
    tokio::time::sleep(Duration::from_micros(500)).await;
    of(2).encode(&ids(0..KEYS)).await.unwrap();
    assert_eq!(began.elapsed().as_millis(), 2, "after the operation that was running");
    of(2).encode(&ids(0..10)).await.unwrap();
    assert_eq!(began.elapsed().as_millis(), 2, "few keys are encoded at once");
    for done in many.join_all().await {
        done.unwrap();
    }
    assert_eq!(began.elapsed().as_millis(), 17, "each of them is an operation");
}

/// A dataset with one thread for each kind of work, on which each operation takes 1 ms.
async fn online(fixture: &Fixture, folder: &Path) -> OnlineDataset {
    let pool = || Pool::simulated(1, || Duration::from_millis(1));
    let loader = Loader::new(1 << 29, forebay_loader::Config::default(), pool());
    loader.reserve_for_lookups(1 << 28).unwrap();
    let online = OnlineDataset::new(
        "d",
        spec(&["user_id"], None),
        Config::default(),
        LookupMemory::new(loader),
        (pool(), pool()),
        folder.to_owned(),
        Requirements::default(),
    );
    online.load_snapshot(fixture.reader().await).await.unwrap();
    online
}

#[tokio::test(start_paused = true)]
async fn two_tenants_of_weights_3_and_1_that_want_everything_get_lookups_3_to_1() {
    let (fixture, folder) = (Fixture::new(), tempfile::tempdir().unwrap());
    fixture.write(0, &users(0..KEYS, 1)).await;
    let online = online(&fixture, folder.path()).await;
    let lookups: [Arc<AtomicU64>; 2] = Default::default();
    let mut callers = Vec::new();
    for (weight, lookups) in [3, 1].into_iter().zip(&lookups) {
        for _ in 0..CALLERS {
            let tenant = Tenant::new(weight.into(), NonZeroU32::new(weight).unwrap());
            let mut lookup = online.lookup(&Train::default(), vec![]).of_tenant(tenant);
            let lookups = Arc::clone(lookups);
            callers.push(tokio::spawn(async move {
                loop {
                    lookup.look_up(&ids(0..KEYS)).await.unwrap();
                    lookups.fetch_add(1, Ordering::Relaxed);
                }
            }));
        }
    }
    let count = || lookups.each_ref().map(|lookups| lookups.load(Ordering::Relaxed));
    tokio::time::sleep(Duration::from_millis(100)).await;
    let before = count();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let [heavy, light] = [0, 1].map(|of| count()[of] - before[of]);
    callers.iter().for_each(tokio::task::JoinHandle::abort);
    let ratio = heavy as f64 / light as f64;
    assert!((2.7..3.3).contains(&ratio), "{heavy} and {light} lookups: {ratio}");
    // Each lookup is two operations: one for its keys and one for its rows.
    assert!(heavy + light > 750, "{heavy} and {light} lookups: the thread was idle");
}
