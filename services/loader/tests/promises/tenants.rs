//! Tenants share the CPU and the memory by weight.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use forebay_loader::{Config, Loader, Pool, Scheduling, Tenant};
use forebay_proto::v1::Train;
use parking_lot::Mutex;

use crate::fixture::{digests, drain, numbered, reader, store};

/// Streams of one tenant.
const STREAMS: usize = 4;

#[tokio::test(start_paused = true)]
async fn two_tenants_of_weights_3_and_1_that_want_everything_get_rows_3_to_1() {
    let reader = reader(store(&[numbered(0..4000)], 1000).await).await;
    // One thread, on which each operation takes 1 ms.
    let loader = Loader::new(1 << 30, Config::default(), Pool::simulated(1, || Duration::from_millis(1)));
    let train = Train { batch_size: 10, epochs: Some(1000), ..Train::default() };
    let warm = Train { epochs: Some(1), ..train.clone() };
    let job = loader.job(warm, reader.clone(), Vec::new()).await.unwrap();
    drain(loader.batches(job, 0, 0)).await.unwrap();

    let rows: [Arc<Mutex<u64>>; 2] = Default::default();
    let mut streams = Vec::new();
    for (tenant, rows) in [3, 1].into_iter().zip(&rows) {
        let loader = loader.of_tenant(Tenant::new(tenant.into(), NonZeroU32::new(tenant).unwrap()));
        for stream in 0..STREAMS {
            let train = Train { seed: u64::from(tenant) * 100 + stream as u64, ..train.clone() };
            let job = loader.job(train, reader.clone(), Vec::new()).await.unwrap();
            let (mut batches, rows) = (loader.batches(job, 0, 0), Arc::clone(rows));
            streams.push(tokio::spawn(async move {
                while let Some(batch) = batches.next().await {
                    *rows.lock() += batch.unwrap().1.rows;
                }
            }));
        }
    }
    let begin = rows.each_ref().map(|rows| *rows.lock());
    tokio::time::sleep(Duration::from_secs(20)).await;
    let [heavy, light] = [0, 1].map(|of| *rows[of].lock() - begin[of]);
    streams.iter().for_each(tokio::task::JoinHandle::abort);
    let ratio = heavy as f64 / light as f64;
    assert!((2.7..3.3).contains(&ratio), "{heavy} and {light} rows: {ratio}");
    assert!(heavy + light > 150_000, "{heavy} and {light} rows: the thread was idle");
}

#[tokio::test]
async fn tenants_that_send_the_same_ticket_have_a_job_each_and_get_the_same_batches() {
    let reader = reader(store(&[numbered(0..4000)], 1000).await).await;
    let loader = Loader::new(1 << 30, Config::default(), Pool::new(2, Scheduling::Normal).unwrap());
    let train = Train { batch_size: 10, epochs: Some(1), ..Train::default() };
    let mut of = Vec::new();
    for tenant in [1, 1, 2] {
        let loader = loader.of_tenant(Tenant::new(tenant, NonZeroU32::MIN));
        let job = loader.job(train.clone(), reader.clone(), Vec::new()).await.unwrap();
        let batches = digests(loader.batches(Arc::clone(&job), 0, 0)).await.unwrap();
        of.push((job, batches));
    }
    assert!(Arc::ptr_eq(&of[0].0, &of[1].0), "a tenant shares its job");
    // If they shared a job, the streams of the second tenant would be scheduled and charged as those of the first one.
    assert!(!Arc::ptr_eq(&of[0].0, &of[2].0), "another tenant has a job of its own");
    assert!(of.iter().all(|(_, batches)| *batches == of[0].1));
}

#[tokio::test(start_paused = true)]
async fn a_tenant_gets_batches_while_another_one_evaluates_a_very_long_expression() {
    let reader = reader(store(&[numbered(0..200_000)], 200_000).await).await;
    let operation = Duration::from_millis(1);
    let loader = Loader::new(1 << 30, Config::default(), Pool::simulated(1, move || operation));
    let of_tenant = |tenant| loader.of_tenant(Tenant::new(tenant, NonZeroU32::MIN));
    let plain = Train { batch_size: 10, columns: vec!["id".into()], epochs: Some(1), ..Train::default() };
    let short = of_tenant(1);
    let job = short.job(plain.clone(), reader.clone(), Vec::new()).await.unwrap();
    let mut batches = short.batches(job, 0, 0);
    // The window of the other tenant is in memory.
    batches.next().await.unwrap().unwrap();
    let sum = format!("{} AS sum", vec!["id"; 600].join(" + "));
    let (long, train) = (of_tenant(2), Train { columns: Vec::new(), select: vec![sum], ..plain });
    let first = tokio::spawn(async move {
        let job = long.job(train, reader, Vec::new()).await.unwrap();
        long.batches(job, 0, 0).next().await.unwrap().unwrap();
    });
    let mut received = 0;
    while !first.is_finished() {
        batches.next().await.unwrap().unwrap();
        received += 1;
    }
    first.await.unwrap();
    // 1,199 nodes and 200,000 rows are 57 turns, with several gathers of the other tenant before each.
    assert!(received > 200, "{received} batches");
}

#[tokio::test(start_paused = true)]
async fn a_tenant_whose_prefetched_windows_fill_the_memory_releases_them_when_another_one_needs_it() {
    let reader = reader(store(&[numbered(0..4000)], 1000).await).await;
    let train = Train { batch_size: 10, epochs: Some(100), ..Train::default() };
    let pool = || Pool::simulated(1, || Duration::from_millis(1));
    let ample = Loader::new(1 << 30, Config::default(), pool());
    let job = ample.job(train.clone(), reader.clone(), Vec::new()).await.unwrap();
    let window = job.summary().window_bytes;
    // No batch is made before it is needed.
    let config = Config { prefetch_bytes: 1, ..Config::default() };
    let loader = Loader::new(3 * window, config, pool());
    let stream = async |tenant: u64| {
        let loader = loader.of_tenant(Tenant::new(tenant, NonZeroU32::MIN));
        let job =
            loader.job(Train { seed: tenant, ..train.clone() }, reader.clone(), Vec::new()).await.unwrap();
        loader.batches(job, 0, 0)
    };
    // Takes a batch in less than `slow_consumer_timeout`. An epoch, which is a window, takes 200 seconds.
    let mut first = stream(1).await;
    let mut take = async || {
        first.next().await.unwrap().unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
    };
    for _ in 0..10 {
        take().await;
    }
    assert!(loader.reserved_bytes() > 2 * window, "two windows are prefetched");
    let mut other = stream(2).await;
    let mut received = std::pin::pin!(other.next());
    let mut taken = 0;
    while futures::poll!(&mut received).is_pending() {
        take().await;
        taken += 1;
        assert!(taken < 10, "the other tenant waits for the end of the epoch");
    }
}

/// The memory has room for two windows and 64 batches. Each stream needs a window and a batch.
#[tokio::test(start_paused = true)]
async fn a_hundred_greedy_streams_delay_neither_each_other_nor_another_tenant_by_their_memory() {
    const ROWS: i64 = 1 << 17;
    let reader = reader(store(&[numbered(0..ROWS)], 1 << 13).await).await;
    let train = Train { batch_size: 1 << 14, epochs: Some(1000), ..Train::default() };
    let pool = || Pool::simulated(1, || Duration::from_millis(1));
    let ample = Loader::new(1 << 30, Config::default(), pool());
    let job = ample.job(train.clone(), reader.clone(), Vec::new()).await.unwrap();
    let loader = Loader::new(2 * job.summary().window_bytes + (1 << 17), Config::default(), pool());
    let stream = async |tenant: u64, seed: u64| {
        let loader = loader.of_tenant(Tenant::new(tenant, NonZeroU32::MIN));
        let job = loader.job(Train { seed, ..train.clone() }, reader.clone(), Vec::new()).await.unwrap();
        loader.batches(job, 0, 0)
    };
    let received = Arc::new(Mutex::new(0));
    let mut streams = Vec::new();
    for seed in 0..100 {
        let (mut batches, received) = (stream(1, seed).await, Arc::clone(&received));
        streams.push(tokio::spawn(async move {
            while let Some(batch) = batches.next().await {
                batch.unwrap();
                *received.lock() += 1;
            }
        }));
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = *received.lock();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let in_a_second = *received.lock() - before;
    assert!(in_a_second > 300, "{in_a_second} batches: the thread was idle");
    let began = tokio::time::Instant::now();
    // Also with a ticket of the other tenant.
    stream(2, 0).await.next().await.unwrap().unwrap();
    let waited = began.elapsed();
    streams.iter().for_each(tokio::task::JoinHandle::abort);
    assert!(waited < Duration::from_millis(500), "the other tenant waited {waited:?}");
}
