use std::{cell::Cell, collections::BTreeSet, sync::Arc, thread};

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use forebay_proto::v1::{Shuffle, Train};
use forebay_storage::Reader;
use parking_lot::Mutex;

use super::LongWork;
use crate::{Config, Loader, Pool, Scheduling, test_data};

/// Work that was done on the threads of a pool.
static ON_A_POOL: Mutex<BTreeSet<LongWork>> = Mutex::new(BTreeSet::new());

thread_local! {
    static IS_IO_THREAD: Cell<bool> = const { Cell::new(false) };
}

pub(super) fn record(work: LongWork) {
    assert!(!IS_IO_THREAD.get(), "{work:?} on an I/O thread");
    if thread::current().name().is_some_and(|name| name.starts_with("forebay-cpu")) {
        ON_A_POOL.lock().insert(work);
    }
}

/// A dataset of 12 files with the columns `id` and `key`.
async fn reader() -> Reader {
    let file = |file: i64| {
        let ids = Int64Array::from_iter_values(file * 100..(file + 1) * 100);
        let keys = Int64Array::from_iter_values(ids.values().iter().map(|id| id / 7));
        let columns = [("id", Arc::new(ids) as ArrayRef), ("key", Arc::new(keys))];
        RecordBatch::try_from_iter(columns).unwrap()
    };
    test_data::reader("d", (0..12).map(file)).await
}

#[tokio::test]
async fn work_over_a_whole_dataset_a_block_or_an_epoch_never_runs_on_an_io_thread() {
    let reader = reader().await;
    let windows = Shuffle { window_rows: Some(300), ..Shuffle::default() };
    let plain = Train {
        dataset: "d".into(),
        batch_size: 40,
        epochs: Some(2),
        shuffle: Some(windows),
        ..Train::default()
    };
    let grouped = Train { group_by: vec!["key".into()], batch_size: 8, ..plain.clone() };
    let requests = [
        plain.clone(),
        // Statistics decide this filter for most blocks, and not for one.
        Train { filter: "id < 450".into(), ..plain.clone() },
        Train { select: vec!["id * 2 AS twice".into()], filter: "id % 3 <> 0".into(), ..plain.clone() },
        Train { shuffle: Some(Shuffle { partitions: Some(2), ..windows }), ..plain.clone() },
        grouped.clone(),
        Train { max_pack_rows: 21, ..grouped },
    ];
    // The thread of this test is the only I/O thread of its runtime.
    IS_IO_THREAD.set(true);
    let loader = Loader::new(1 << 30, Config::default(), Pool::new(2, Scheduling::Normal).unwrap());
    for train in requests {
        let job = loader.job(train, reader.clone(), Vec::new()).await.unwrap();
        let mut batches = loader.batches(Arc::clone(&job), 0, 0);
        while let Some(batch) = batches.next().await {
            batch.unwrap();
        }
        assert!(!loader.locate(&job, 1, 2, 0).await.unwrap().is_empty());
        loader.warm(&job, |_| {}).await.unwrap();
    }
    let wanted = Train { filter: "id % 2 = 0".into(), ..plain };
    loader.reserve_for_lookups(1 << 24).unwrap();
    loader.lookup_rows(&wanted, reader, 1 << 20).await.unwrap();
    IS_IO_THREAD.set(false);
    let all = [
        LongWork::Rows,
        LongWork::FrameSizes,
        LongWork::WindowSums,
        LongWork::Order,
        LongWork::WindowStarts,
        LongWork::Groups,
        LongWork::Metadata,
        LongWork::Expressions,
        LongWork::Frame,
    ];
    let missing: Vec<_> = all.into_iter().filter(|work| !ON_A_POOL.lock().contains(work)).collect();
    assert!(missing.is_empty(), "the requests need no {missing:?}");
}
