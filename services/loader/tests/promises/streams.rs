//! Guarantees of a stream: the same request returns the same bytes, independent of memory, threads and storage.

use std::{collections::HashSet, sync::Arc, time::Duration};

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use forebay_loader::{Config, Error, Job};
use forebay_proto::v1::{self, Shuffle, Train};
use forebay_storage::Reader;
use object_store::throttle::{ThrottleConfig, ThrottledStore};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use crate::fixture::{drain, ids, ids_of, job, loader, numbered, of, ranked, reader, store, views};

const ROWS: i64 = 10_007;

/// Many files, because small row groups of one file are joined. One file has a single row.
async fn dataset() -> Reader {
    let mut ends: Vec<i64> = (0..ROWS).step_by(523).chain([ROWS, 3001]).collect();
    ends.sort_unstable();
    let files: Vec<RecordBatch> = ends.windows(2).map(|ends| ranked(ends[0]..ends[1])).collect();
    reader(store(&files, 700).await).await
}

fn train(world_size: u64) -> Train {
    let shuffle = Shuffle { window_rows: Some(2500), ..Shuffle::default() };
    Train {
        batch_size: 96 / world_size,
        world_size: Some(world_size),
        remainder: v1::Remainder::Short.into(),
        shuffle: Some(shuffle),
        ..Train::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn same_order_for_any_world_size_lanes_threads_and_memory_cold_and_warm() {
    let reader = dataset().await;
    for (name, view, is_kept) in views() {
        println!("{name}");
        same_order(&reader, &view, is_kept).await;
    }
}

async fn same_order(reader: &Reader, view: &Train, is_kept: fn(i64) -> bool) {
    let train = |world_size| of(view, train(world_size));
    let ample = loader(1 << 30, 2, Config::default());
    let expected = ids(&ample, &job(&train(1), reader)).await;
    let all: HashSet<i64> = expected.iter().flatten().copied().collect();
    assert_eq!(all, (0..ROWS).filter(|id| is_kept(*id)).collect());
    assert_eq!(all.len(), expected.iter().flatten().count());

    let needed = job(&train(1), reader).summary().window_bytes;
    let narrow = loader(needed + needed / 2, 1, Config::default());
    let nothing_ahead = Config {
        prefetch_bytes: 1,
        window_prefetch_bytes: 0,
        concurrent_blocks: 1,
        decode_rows: 64,
        ..Config::default()
    };
    let slow = loader(needed * 2, 3, nothing_ahead);
    for (world_size, lanes) in [(1, 1), (1, 5), (2, 2), (3, 1), (4, 5), (6, 2), (8, 1), (8, 5)] {
        let job = job(&Train { lanes: Some(lanes), ..train(world_size) }, reader);
        for loader in [&ample, &narrow, &slow] {
            assert_eq!(ids(loader, &job).await, expected, "world_size {world_size}, lanes {lanes}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_step_gives_exactly_the_tail_across_epochs() {
    let reader = dataset().await;
    for (name, view, _) in views() {
        println!("{name}");
        tail(&reader, &view).await;
    }
}

async fn tail(reader: &Reader, view: &Train) {
    let train = |world_size| of(view, train(world_size));
    let loader = loader(1 << 30, 2, Config::default());
    let whole = ids(&loader, &job(&Train { epochs: Some(3), epoch: 5, ..train(1) }, reader)).await;
    let steps = whole.len() / 3;
    for start_step in [0, 1, steps / 2, steps - 1, steps] {
        let tail = Train { epochs: Some(3), epoch: 5, start_step: start_step as u64, ..train(1) };
        assert_eq!(ids(&loader, &job(&tail, reader)).await, whole[start_step..]);
    }
    // Starts before the end of the first epoch and ends after it.
    let start = steps - steps.min(10);
    let some = Train { epochs: Some(3), epoch: 5, start_step: start as u64, steps: 20, ..train(1) };
    assert_eq!(ids(&loader, &job(&some, reader)).await, whole[start..whole.len().min(start + 20)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn packs_keep_their_limit_and_every_epoch_has_the_same_number() {
    let reader = dataset().await;
    let loader = loader(1 << 30, 2, Config::default());
    let group_by = vec!["query".to_owned()];
    let grouped = Train { group_by, shuffle: train(1).shuffle, epochs: Some(3), ..Train::default() };
    let groups = ids(&loader, &job(&Train { batch_size: 1, ..grouped.clone() }, &reader)).await;
    for (max_pack_rows, batch_size) in [(39, 1), (100, 1), (100, 7), (5000, 1), (1 << 20, 1)] {
        let packed = Train { max_pack_rows, batch_size, ..grouped.clone() };
        let packed = job(&packed, &reader);
        let batches = drain(loader.batches(packed.clone(), 0, 0)).await.unwrap();
        // A group belongs to the pack whose share of the rows contains its first row. A group of 13 rows can exceed the
        // share by 12 rows.
        let packs = (ROWS as u64).div_ceil(max_pack_rows - 12);
        assert_eq!(packed.summary().packs, Some(packs));
        assert_eq!(batches.len() as u64, 3 * packs.div_ceil(batch_size));
        for (metadata, batch) in &batches {
            assert!((1..=max_pack_rows * batch_size).contains(&batch.rows), "{} rows", batch.rows);
            assert_eq!(metadata.position, metadata.step * batch_size);
        }
        let rows = batches.iter().flat_map(|(metadata, batch)| ids_of(metadata, batch, &packed));
        assert!(rows.eq(groups.iter().flatten().copied()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn endless_epochs_of_packs_start_immediately() {
    let reader = dataset().await;
    let group_by = vec!["query".to_owned()];
    let endless = Train { group_by, max_pack_rows: 100, epochs: Some(u64::MAX), ..train(1) };
    let loader = loader(1 << 30, 2, Config::default());
    let mut batches = loader.batches(job(&endless, &reader), 0, 0);
    let some = async {
        for _ in 0..20 {
            batches.next().await.unwrap().unwrap();
        }
    };
    timeout(Duration::from_secs(60), some).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_larger_than_several_windows_and_windows_of_one_block_are_correct() {
    let reader = dataset().await;
    let order = |window_rows, batch_size| {
        let shuffle = Shuffle { window_rows: Some(window_rows), ..Shuffle::default() };
        job(&Train { batch_size, shuffle: Some(shuffle), ..Train::default() }, &reader)
    };
    for window_rows in [1, 700, 2000] {
        let small = order(window_rows, 10);
        let large = order(window_rows, 5000);
        let loader = loader(large.summary().window_bytes, 2, Config::default());
        let flat = |steps: Vec<Vec<i64>>| steps.into_iter().flatten().collect::<Vec<_>>();
        assert_eq!(flat(ids(&loader, &small).await), flat(ids(&loader, &large).await));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_consumer_does_not_stop_other_consumers() {
    let reader = dataset().await;
    let job = job(&train(1), &reader);
    // Memory for one window only, and a consumer that stops after its first batch.
    let config =
        Config { prefetch_bytes: 1, slow_consumer_timeout: Duration::from_millis(50), ..Config::default() };
    let other = crate::fixture::job(&Train { seed: 1, ..train(1) }, &reader);
    let room = job.summary().window_bytes.max(other.summary().window_bytes);
    let loader = loader(room, 2, config);
    let mut stalled = loader.batches(job.clone(), 0, 0);
    let first = stalled.next().await.unwrap().unwrap();
    let finished = tokio::time::timeout(Duration::from_secs(60), ids(&loader, &other)).await.unwrap();
    assert_eq!(finished.iter().flatten().count(), ROWS as usize);
    // The stalled stream resumes at its position.
    let mut rest = vec![first];
    rest.extend(drain(stalled).await.unwrap());
    let whole = drain(loader.batches(job, 0, 0)).await.unwrap();
    assert_eq!(rest, whole);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_with_cold_blocks_is_served_next_to_busy_streams() {
    let reader = dataset().await;
    let loader = loader(1 << 30, 1, Config::default());
    let endless = Train { epochs: Some(1 << 40), ..train(1) };
    let warm = job(&endless, &reader);
    let busy = (0..8).map(|_| {
        let mut batches = loader.batches(warm.clone(), 0, 0);
        AbortOnDropHandle::new(tokio::spawn(async move { while batches.next().await.unwrap().is_ok() {} }))
    });
    let busy: Vec<_> = busy.collect();
    // Another view of the rows is decoded again.
    let cold = job(&Train { columns: vec!["id".into()], ..train(1) }, &reader);
    let all = timeout(Duration::from_secs(120), drain(loader.batches(cold, 0, 0))).await;
    assert_eq!(all.expect("it gets its turns").unwrap().len() as i64, (ROWS + 95) / 96);
    assert!(busy.iter().all(|stream| !stream.is_finished()));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_jobs_share_memory_for_one_window_and_all_finish() {
    let reader = dataset().await;
    let jobs: Vec<Arc<Job>> = (0..6).map(|seed| job(&Train { seed, ..train(2) }, &reader)).collect();
    let loader =
        loader(jobs.iter().map(|job| job.summary().window_bytes).max().unwrap(), 2, Config::default());
    let streams = jobs.iter().flat_map(|job| [0, 1].map(|rank| (job.clone(), rank)));
    let runs = streams.map(|(job, rank)| tokio::spawn(drain(loader.batches(job, rank, 0))));
    for run in runs.collect::<Vec<_>>() {
        let batches = tokio::time::timeout(Duration::from_secs(60), run).await.unwrap().unwrap().unwrap();
        assert_eq!(batches.len(), (ROWS as usize).div_ceil(96));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ranks_whose_windows_are_unequal_never_wait_for_each_other() {
    let mut ends: Vec<i64> = vec![0];
    for rows in [400, 3000, 300, 500, 2500, 600, 200, 1500, 700, 307] {
        ends.push(ends[ends.len() - 1] + rows);
    }
    let files: Vec<RecordBatch> = ends.windows(2).map(|ends| numbered(ends[0]..ends[1])).collect();
    let reader = reader(store(&files, 1 << 20).await).await;
    for seed in 0..40 {
        let shuffle = Shuffle { window_rows: Some(500), ..Shuffle::default() };
        let job = job(&Train { seed, epochs: Some(4), shuffle: Some(shuffle), ..train(3) }, &reader);
        let config = Config {
            prefetch_bytes: 1,
            slow_consumer_timeout: Duration::from_millis(20),
            ..Config::default()
        };
        let largest = (0..4).map(|epoch| {
            crate::fixture::job(&Train { epoch, epochs: Some(1), ..job.train().clone() }, &reader)
        });
        let largest = largest.map(|job| job.summary().window_bytes).max().unwrap();
        let loader = loader(largest + largest / 3, 2, config);
        let ranks: Vec<_> =
            (0..3).map(|rank| tokio::spawn(drain(loader.batches(job.clone(), rank, 0)))).collect();
        for rank in ranks {
            tokio::time::timeout(Duration::from_secs(30), rank).await.expect("no deadlock").unwrap().unwrap();
        }
    }
}

#[tokio::test]
async fn a_window_that_never_fits_is_refused_with_the_bytes_needed_and_the_largest_that_fits() {
    let reader = dataset().await;
    let whole = job(
        &Train { shuffle: Some(Shuffle { window_rows: Some(1 << 20), ..Shuffle::default() }), ..train(1) },
        &reader,
    );
    let needed = whole.summary().window_bytes;
    let small = loader(needed / 3, 1, Config::default());
    let Error::TooLarge { needed: said, limit, advice, .. } = small.admit(&whole).unwrap_err() else {
        panic!("expected TooLarge");
    };
    assert_eq!((said, limit), (needed, needed / 3));
    let fits: u64 =
        advice.split_whitespace().find_map(|word| word.trim_end_matches(';').parse().ok()).unwrap();
    let shuffle = Shuffle { window_rows: Some(fits), ..Shuffle::default() };
    let fitting = job(&Train { shuffle: Some(shuffle), ..train(1) }, &reader);
    small.admit(&fitting).unwrap();
    assert_eq!(ids(&small, &fitting).await.iter().flatten().count(), ROWS as usize);
    let nothing = loader(10, 1, Config::default());
    assert!(nothing.admit(&whole).unwrap_err().to_string().contains("no window fits"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_window_of_a_late_epoch_that_is_larger_than_all_checked_ones_does_not_end_the_job() {
    // 24 files of different sizes. The largest windows have the largest files by chance.
    let mut ends = vec![0];
    for file in 0..24 {
        ends.push(ends[file] + 300 + (file as i64 * file as i64) * 2);
    }
    let files: Vec<RecordBatch> = ends.windows(2).map(|ends| ranked(ends[0]..ends[1])).collect();
    let reader = reader(store(&files, 1 << 20).await).await;
    let of_epoch = |epoch| job(&Train { epoch, ..train(1) }, &reader);
    let first = job(&Train { epochs: Some(1 << 40), ..train(1) }, &reader);
    let sizes: Vec<u64> = (0..8000).map(|epoch| of_epoch(epoch).summary().window_bytes).collect();
    let checked = *sizes[..1024].iter().max().unwrap();
    let late = (1024..8000).find(|epoch| sizes[*epoch] > checked).expect("one of 7,000 epochs");
    let loader = loader(checked, 2, Config::default());
    loader.admit(&first).unwrap();
    let rows = ids(&loader, &of_epoch(late as u64)).await.into_iter().flatten().count();
    assert_eq!(rows as i64, ends[24]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_window_as_large_as_the_memory_is_served_in_every_epoch() {
    // The frame of 15.6 MB takes 16.8 MB of huge pages.
    let rows = 1_950_000;
    let ids = Arc::new(Int64Array::from_iter_values(0..rows)) as ArrayRef;
    let reader = reader(store(&[RecordBatch::try_from_iter([("id", ids)]).unwrap()], 1 << 21).await).await;
    let job = job(&Train { batch_size: 1 << 16, epochs: Some(3), ..Train::default() }, &reader);
    let loader = loader(job.summary().window_bytes, 2, Config::default());
    let batches = drain(loader.batches(job.clone(), 0, 0)).await.unwrap();
    assert_eq!(batches.iter().map(|(metadata, _)| metadata.rows).sum::<u64>(), 3 * rows as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_store_changes_no_batch() {
    let inner = store(&[numbered(0..3000)], 500).await;
    let fast = reader(inner.clone()).await;
    let throttle =
        ThrottleConfig { wait_get_per_call: Duration::from_millis(20), ..ThrottleConfig::default() };
    let slow = reader(Arc::new(ThrottledStore::new(inner, throttle))).await;
    let loader = loader(1 << 30, 2, Config::default());
    let expected = ids(&loader, &job(&train(1), &fast)).await;
    // The stores have different snapshots of the same rows in the same order.
    let of_slow = ids(&crate::fixture::loader(1 << 30, 2, Config::default()), &job(&train(1), &slow)).await;
    assert_eq!(of_slow, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tensor_in_file_order_shares_frames_unless_they_contain_rows_of_other_batches() {
    let files: Vec<RecordBatch> = (0..4).map(|file| numbered(file * 50_000..(file + 1) * 50_000)).collect();
    let files = reader(store(&files, 1 << 20).await).await;
    let small = reader(store(&[numbered(0..2)], 1 << 20).await).await;
    // Addresses of the pieces of the second batch of each epoch.
    let places = async |reader: &Reader, train: Train| -> [Vec<*const u8>; 2] {
        let train = Train {
            tensors: vec![v1::Tensor {
                name: "x".into(),
                columns: vec!["x".into()],
                ..v1::Tensor::default()
            }],
            epochs: Some(2),
            ..train
        };
        let loader = loader(1 << 30, 2, Config::default());
        let batches = drain(loader.batches(job(&train, reader), 0, 0)).await.unwrap();
        [0, 1].map(|epoch| {
            let mut of_epoch = batches.iter().filter(|(metadata, _)| metadata.epoch == epoch);
            let (_, second) = of_epoch.nth(1).unwrap();
            second.body.clone().into_pieces().iter().map(|piece| piece.as_ptr()).collect()
        })
    };
    let in_order = Train {
        shuffle: Some(Shuffle { none: Some(v1::shuffle::None {}), ..Shuffle::default() }),
        batch_size: 40_000,
        ..Train::default()
    };
    let [first, second] = places(&files, in_order.clone()).await;
    assert_eq!(
        (first.len(), &first),
        (2, &second),
        "rows of two files, the frames' own bytes in both epochs"
    );
    for train in
        [Train { world_size: Some(2), ..in_order.clone() }, Train { lanes: Some(2), ..in_order.clone() }]
    {
        let [first, second] = places(&files, train).await;
        assert_eq!((first.len(), second.len()), (1, 1));
        assert_ne!(first, second, "a copy each");
    }
    // One row is always consecutive, shuffled or not. The second piece is the padding.
    let [first, _] = places(&small, Train { batch_size: 1, ..in_order }).await;
    assert_eq!(first.len(), 2);
    let [first, _] = places(&small, Train { batch_size: 1, ..Train::default() }).await;
    assert_eq!(first.len(), 1, "a copy, for its frame holds rows of any batch");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_differ_in_rank_and_lane_share_one_job_and_its_turns() {
    let reader = dataset().await;
    let loader = loader(1 << 30, 2, Config::default());
    let of = async |train: Train| loader.job(train, reader.clone(), Vec::new()).await.unwrap();
    let request = Train { dataset: "d".into(), lanes: Some(2), ..train(4) };
    let ranks = (0..4).flat_map(|rank| [0, 1].map(|lane| (Some(rank), Some(lane))));
    let jobs = ranks.map(|(rank, lane)| of(Train { rank, lane, ..request.clone() }));
    let jobs = futures::future::join_all(jobs).await;
    assert!(jobs.iter().all(|job| Arc::ptr_eq(job, &jobs[0])));
    assert_eq!((jobs[0].train().rank, jobs[0].train().lane), (None, None));
    assert!(!Arc::ptr_eq(&of(Train { seed: 1, ..request.clone() }).await, &jobs[0]));
    // A rank that does not exist is refused, though the job is known.
    let absent = loader.job(Train { rank: Some(4), ..request.clone() }, reader.clone(), Vec::new()).await;
    assert!(absent.unwrap_err().to_string().starts_with("rank: is 4"));
    let known = Arc::downgrade(&jobs[0]);
    drop(jobs);
    assert!(known.upgrade().is_none(), "it is not held any more");
    assert_eq!(of(request).await.batches(0), 53);
}
