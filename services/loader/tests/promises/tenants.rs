//! Tenants share the CPU by weight.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use forebay_loader::{Config, Loader, Pool, Tenant};
use forebay_proto::v1::Train;
use parking_lot::Mutex;

use crate::fixture::{drain, numbered, reader, store};

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
