//! Guarantees of the cache tiers: they change how often a column is decoded, and nothing else.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use forebay_loader::{Config, DiskWrites, Job, Loader, Pool, Scheduling};
use forebay_proto::v1::{Shuffle, Train};
use forebay_storage::Reader;
use object_store::throttle::{ThrottleConfig, ThrottledStore};

use crate::fixture::{
    counters::Counters, digests, drain, everything::everything, job, numbered, of, open, ranked, reader,
    store, views,
};

pub(super) const DECODED: &str = "forebay_decode_columns_total";
const COMPUTED: &str = "forebay_compute_rows_total";
pub(super) const AMPLE: u64 = 1 << 30;

/// Settings with which all columns are written to disk. No consumer counts as slow, so no window is released and read again.
pub(super) fn always() -> Config {
    let slow_consumer_timeout = Duration::from_secs(600);
    Config { disk_writes: DiskWrites::Always, slow_consumer_timeout, ..Config::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn computed_columns_are_stored_on_disk_and_not_recomputed() {
    let counters = Counters::from_zero().await;
    let folder = tempfile::TempDir::new().unwrap();
    let reader = reader(store(&[numbered(0..20_000), numbered(20_000..40_000)], 20_000).await).await;
    let select = vec!["log1p(x) AS y".to_owned(), "upper(name) AS name".to_owned(), "id".to_owned()];
    let train = Train { select, filter: "id % 2 = 0".into(), batch_size: 999, ..Train::default() };
    let first = of_epoch(&train, 0, &reader);
    let counted = counters.get(COMPUTED);
    let cold = digests(open(folder.path(), AMPLE, AMPLE, &always()).batches(first, 0, 0)).await.unwrap();
    // Two computed columns and the filter.
    assert_eq!((counted, counters.get(COMPUTED)), (40_000, 40_000 + 3 * 40_000));
    // The directory is in use until the first loader has written all columns.
    let again = open(folder.path(), AMPLE, AMPLE, &always());
    assert_eq!(list(&folder.path().join("columns")).len(), 2);
    assert_eq!(digests(again.batches(of_epoch(&train, 0, &reader), 0, 0)).await.unwrap(), cold);
    // Rows are not counted again.
    assert_eq!(counters.get(COMPUTED), 40_000 + 3 * 40_000);
    let decoded = counters.get(DECODED);
    // Another view reuses the columns that both views have in common.
    let other = Train { select: vec!["log1p(x) AS z".into()], filter: String::new(), ..train };
    drain(again.batches(of_epoch(&other, 0, &reader), 0, 0)).await.unwrap();
    assert_eq!((counters.get(COMPUTED), counters.get(DECODED)), (40_000 + 3 * 40_000, decoded));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_column_that_fails_on_dropped_rows_is_not_tried_again_on_the_whole_block() {
    let counters = Counters::from_zero().await;
    let folder = tempfile::TempDir::new().unwrap();
    let reader = reader(store(&[numbered(0..20_000), numbered(20_000..40_000)], 20_000).await).await;
    let of = |columns: &[&str]| {
        let select = columns.iter().map(ToString::to_string).collect();
        Train { select, filter: "id % 5 > 0".into(), batch_size: 999, ..Train::default() }
    };
    let loader = open(folder.path(), AMPLE, AMPLE, &always());
    // Division by zero in every fifth row, which the filter drops. The third view has another expression that fails.
    let views = [
        (of(&["100 / (id % 5) AS y"]), None),
        (of(&["100 / (id % 5) AS y", "id"]), Some(40_000 + 32_000)),
        (of(&["100 / (id % 5) AS y", "200 / (id % 5) AS z"]), Some(40_000 + 2 * 32_000)),
    ];
    for (train, expected) in views {
        let job = of_epoch(&train, 0, &reader);
        let before = counters.get(COMPUTED);
        drain(loader.batches(job, 0, 0)).await.unwrap();
        let computed = counters.get(COMPUTED) - before;
        // The filter for all rows, and the columns for the kept ones.
        match expected {
            Some(expected) => assert_eq!(computed, expected),
            None => assert!(computed > 40_000 + 32_000, "it was tried on all rows at first: {computed}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_count_is_continued_by_the_next_request() {
    let counters = Counters::from_zero().await;
    let files: Vec<RecordBatch> = (0..4).map(|file| numbered(file * 20_000..(file + 1) * 20_000)).collect();
    let reader = reader(store(&files, 20_000).await).await;
    let request =
        Train { dataset: "d".into(), filter: "id % 2 = 0".into(), batch_size: 1, ..Train::default() };
    let config = Config { concurrent_blocks: 1, ..Config::default() };
    let loader = Loader::new(AMPLE, config, Pool::new(1, Scheduling::Normal).unwrap());
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let sender = std::sync::Mutex::new(Some(sender));
    let first = loader.count(&request, &reader, |done| {
        if done.blocks_done == 2 {
            sender.lock().unwrap().take().unwrap().send(()).unwrap();
        }
    });
    tokio::select! {
        biased;
        _ = receiver => {}
        _ = first => panic!("it was to be left in the middle"),
    }
    let kept = loader.count(&request, &reader, |_| {}).await.unwrap();
    assert_eq!(kept.unwrap().rows()[..], [10_000; 4]);
    // One block may have been in progress. Starting over would evaluate six blocks.
    assert!(counters.get(COMPUTED) <= 5 * 20_000);
}

/// Job of a single epoch, as requested by a trainer that sends one request per epoch.
pub(super) fn of_epoch(train: &Train, epoch: u64, reader: &Reader) -> Arc<Job> {
    job(&Train { epoch, ..train.clone() }, reader)
}

/// Returns the column files after the last stream has ended and all columns are written.
pub(super) async fn column_files(loader: &Loader, directory: &Path) -> Vec<PathBuf> {
    until(|| loader.reserved_bytes() == 0).await;
    written(loader).await;
    list(&directory.join("columns"))
}

/// Waits until no column is being decoded or written.
pub(super) async fn written(loader: &Loader) {
    until(|| loader.columns_in_flight() == 0).await;
}

/// Waits until `done` returns true, at most a minute.
async fn until(done: impl Fn() -> bool) {
    let waiting = async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting).await.unwrap();
}

fn list(folder: &Path) -> Vec<PathBuf> {
    let folders = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let folders = folders.filter(|path| path.is_dir());
    let mut files: Vec<PathBuf> =
        folders.flat_map(|folder| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path())).collect();
    files.sort();
    files
}

/// Damage to a column file between two epochs.
type Damage = fn(&Path);

const DAMAGES: [(&str, Damage); 6] = [
    ("untouched", |_| {}),
    ("a flipped byte", |path| {
        let mut bytes = fs::read(path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0x10;
        fs::write(path, bytes).unwrap();
    }),
    ("another file's header", |path| {
        let mut bytes = fs::read(path).unwrap();
        bytes[..64].fill(0xff);
        fs::write(path, bytes).unwrap();
    }),
    ("truncated", |path| {
        let bytes = fs::read(path).unwrap();
        fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
    }),
    ("foreign", |path| fs::write(path, b"PAR1 and what else people put into folders").unwrap()),
    ("deleted", |path| fs::remove_file(path).unwrap()),
];

/// Dataset with `rows_a_file` rows per file, so that it has many blocks.
async fn dataset(rows: i64, rows_a_file: i64) -> Reader {
    let starts = (0..rows).step_by(rows_a_file as usize);
    let files: Vec<RecordBatch> =
        starts.map(|start| numbered(start..(start + rows_a_file).min(rows))).collect();
    reader(store(&files, 1 << 20).await).await
}

pub(super) fn windowed(window_rows: u64) -> Train {
    let shuffle = Shuffle { window_rows: Some(window_rows), ..Shuffle::default() };
    Train { batch_size: 100, shuffle: Some(shuffle), ..Train::default() }
}

/// Maximum number of bytes of a window in the first eight epochs.
fn window_bytes(train: &Train, reader: &Reader) -> u64 {
    (0..8).map(|epoch| of_epoch(train, epoch, reader).summary().window_bytes).max().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_are_the_same_cold_warm_half_evicted_and_from_a_corrupted_disk() {
    let _counters = Counters::from_zero().await;
    let (reader, train) = (dataset(20_011, 523).await, windowed(2500));
    let (window, all) = needs(&train, &reader).await;
    let budgets = [(window, AMPLE), (window, all / 2), (3 * window, all / 2), (AMPLE, AMPLE)];
    same_batches(&reader, &train, &budgets, &[DiskWrites::Needed, DiskWrites::Always]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_of_every_view_are_the_same_from_a_half_evicted_and_a_corrupted_disk() {
    let _counters = Counters::from_zero().await;
    let files: Vec<RecordBatch> = (0..30).map(|file| ranked(file * 611..(file + 1) * 611)).collect();
    let reader = reader(store(&files, 1 << 20).await).await;
    for (name, view, _) in views() {
        println!("{name}");
        let train = of(&view, windowed(1000));
        let (window, _) = needs(&train, &reader).await;
        let directory = tempfile::tempdir().unwrap();
        let whole = open(directory.path(), window, AMPLE, &always());
        drain(whole.batches(of_epoch(&train, 0, &reader), 0, 0)).await.unwrap();
        column_files(&whole, directory.path()).await;
        let half = whole.disk_bytes().unwrap().0 / 2;
        same_batches(&reader, &train, &[(window, half)], &[DiskWrites::Always]).await;
    }
}

/// Returns the number of bytes of the largest window and of all frames.
async fn needs(train: &Train, reader: &Reader) -> (u64, u64) {
    let plain = crate::fixture::loader(AMPLE, 2, Config::default());
    drain(plain.batches(of_epoch(train, 0, reader), 0, 0)).await.unwrap();
    (window_bytes(train, reader), plain.resident_bytes())
}

/// Checks that three epochs equal those with ample memory, for each pair of memory and disk budgets, each write policy
/// and each damage.
async fn same_batches(reader: &Reader, train: &Train, budgets: &[(u64, u64)], writes: &[DiskWrites]) {
    let plain = crate::fixture::loader(AMPLE, 2, Config::default());
    let mut expected = Vec::new();
    for epoch in 0..3 {
        expected.push(digests(plain.batches(of_epoch(train, epoch, reader), 0, 0)).await.unwrap());
    }
    for (damage, spoil) in DAMAGES {
        for ((memory_bytes, disk_bytes), disk_writes) in
            budgets.iter().copied().flat_map(|b| writes.iter().map(move |w| (b, *w)))
        {
            let case = format!("{damage}, {memory_bytes} of memory, {disk_bytes} of disk, {disk_writes:?}");
            let directory = tempfile::tempdir().unwrap();
            let config = Config { disk_writes, ..always() };
            for run in ["fresh", "restarted"] {
                let loader = open(directory.path(), memory_bytes, disk_bytes, &config);
                for (epoch, expected) in expected.iter().enumerate() {
                    let batches = loader.batches(of_epoch(train, epoch as u64, reader), 0, 0);
                    assert_eq!(&digests(batches).await.unwrap(), expected, "{run}: epoch {epoch}, {case}");
                    let files = column_files(&loader, directory.path()).await;
                    // A later epoch of few rows may be served from memory alone.
                    if disk_writes == DiskWrites::Always && memory_bytes < AMPLE && epoch == 0 {
                        assert!(run == "restarted" || !files.is_empty(), "nothing was written: {case}");
                    }
                    assert!(loader.disk_bytes().unwrap().0 <= disk_bytes, "{case}");
                    files.iter().for_each(|path| spoil(path));
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_type_is_restored_from_disk_with_the_same_bytes() {
    let counters = Counters::from_zero().await;
    let files: Vec<RecordBatch> = (0..12)
        .map(|file| everything(300 + 17 * file, move |row| file % 3 > 0 && (row + file) % (file + 1) == 1))
        .collect();
    let reader = reader(store(&files, 1 << 20).await).await;
    let train = windowed(1000);
    let plain = crate::fixture::loader(AMPLE, 2, Config::default());
    let directory = tempfile::tempdir().unwrap();
    let memory_bytes = window_bytes(&train, &reader);
    let config = Config { decode_rows: 128, ..always() };
    let loader = open(directory.path(), memory_bytes, AMPLE, &config);
    let mut expected = Vec::new();
    for epoch in 0..3 {
        let job = of_epoch(&train, epoch, &reader);
        expected.push(digests(plain.batches(job.clone(), 0, 0)).await.unwrap());
        let before = counters.get(DECODED);
        assert_eq!(
            digests(loader.batches(job, 0, 0)).await.unwrap(),
            expected[epoch as usize],
            "epoch {epoch}"
        );
        let decoded = if epoch == 0 { 12 * 17 } else { 0 };
        assert_eq!(counters.get(DECODED) - before, decoded, "epoch {epoch} is read from disk");
        column_files(&loader, directory.path()).await;
    }
    drop(loader);
    let restarted = open(directory.path(), memory_bytes, AMPLE, &config);
    let before = counters.get(DECODED);
    for (epoch, expected) in expected.iter().enumerate() {
        let job = of_epoch(&train, epoch as u64, &reader);
        assert_eq!(&digests(restarted.batches(job, 0, 0)).await.unwrap(), expected);
    }
    assert_eq!(counters.get(DECODED), before, "a restarted server finds everything");
}

/// Reader of `blocks` blocks with two float columns, 256 KiB per decoded block.
pub(super) async fn heavy_blocks(blocks: u32) -> Reader {
    const ROWS: u32 = 16_384;
    let block = |number: u32| {
        let column = |seed: u32| {
            let values = (0..ROWS).map(move |row| {
                f64::from((number * ROWS + row).wrapping_mul(2_654_435_761).wrapping_add(seed))
            });
            Arc::new(Float64Array::from_iter_values(values)) as ArrayRef
        };
        RecordBatch::try_from_iter([("x", column(1)), ("y", column(7))]).unwrap()
    };
    let files: Vec<RecordBatch> = (0..blocks).map(block).collect();
    reader(store(&files, 1 << 20).await).await
}

#[tokio::test(flavor = "multi_thread")]
async fn half_the_columns_on_disk_serve_nearly_half_of_the_bytes_in_every_later_epoch() {
    const BLOCKS: u32 = 240;
    let counters = Counters::from_zero().await;
    let reader = heavy_blocks(BLOCKS).await;
    let train = Train { batch_size: 4096, ..windowed(6 * 16_384) };
    let window = window_bytes(&train, &reader);
    let decoded_bytes = u64::from(BLOCKS) * 16_384 * 16;
    for epochs_a_stream in [1, 8] {
        let directory = tempfile::tempdir().unwrap();
        let slow_consumer_timeout = Duration::from_secs(600);
        let config = Config { window_prefetch_bytes: 0, slow_consumer_timeout, ..Config::default() };
        let loader = open(directory.path(), 2 * window, decoded_bytes / 2, &config);
        let mut decoded = vec![counters.get(DECODED)];
        for first in (0..8).step_by(epochs_a_stream) {
            let epochs = Some(epochs_a_stream as u64);
            let job = job(&Train { epoch: first, epochs, ..train.clone() }, &reader);
            let mut batches = loader.batches(job.clone(), 0, 0);
            let mut epoch = first;
            while let Some(batch) = batches.next().await {
                if batch.unwrap().0.epoch > epoch {
                    epoch += 1;
                    decoded.push(counters.get(DECODED));
                }
            }
            decoded.push(counters.get(DECODED));
        }
        let decoded: Vec<u64> = decoded.windows(2).map(|counts| counts[1] - counts[0]).collect();
        let served: Vec<f64> =
            decoded.iter().map(|decoded| 1.0 - *decoded as f64 / f64::from(2 * BLOCKS)).collect();
        println!("epochs a stream {epochs_a_stream}: served without decoding {served:.3?}");
        assert_eq!(served.len(), 8);
        let mean = served[1..].iter().sum::<f64>() / 7.0;
        assert!(mean >= 0.48, "epochs a stream {epochs_a_stream}: {served:.3?}");
        // The first window of an epoch, two columns of 6 blocks, can be decoded before the last batch of the epoch before it.
        let early = if epochs_a_stream == 1 { 0.0 } else { 12.0 / f64::from(2 * BLOCKS) };
        let least = served[1..].iter().copied().fold(1.0, f64::min);
        assert!(least >= 0.48 - early, "epochs a stream {epochs_a_stream}: {served:.3?}");
        // Half from disk, and from memory at most the two windows of 6 blocks that it holds.
        let most = served.iter().copied().fold(0.0, f64::max);
        assert!(most <= 0.5 + 12.0 / f64::from(BLOCKS), "epochs a stream {epochs_a_stream}: {served:.3?}");
    }
}

/// Reader of `blocks` blocks with `columns` columns named `c00`, `c01` and so on.
pub(super) async fn wide_blocks(blocks: i64, columns: usize) -> forebay_storage::Reader {
    reader(store(&wide(blocks, columns), 1 << 20).await).await
}

fn wide(blocks: i64, columns: usize) -> Vec<RecordBatch> {
    let block = |block: i64| {
        let column = |column: usize| {
            let values = (0..400).map(|row| (block * 400 + row) * 1000 + column as i64);
            (format!("c{column:02}"), Arc::new(Int64Array::from_iter_values(values)) as ArrayRef)
        };
        RecordBatch::try_from_iter((0..columns).map(column)).unwrap()
    };
    (0..blocks).map(block).collect()
}

pub(super) fn columns(numbers: impl IntoIterator<Item = usize>) -> Vec<String> {
    numbers.into_iter().map(|number| format!("c{number:02}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn columns_are_decoded_once_for_ten_views_that_differ_in_three_of_forty() {
    const BLOCKS: i64 = 30;
    let counters = Counters::from_zero().await;
    let reader = wide_blocks(BLOCKS, 64).await;
    // Consecutive views share one of their three own columns.
    let own = |view: usize| 37 + 2 * view..40 + 2 * view;
    let distinct = 37 + 21;
    for (case, seeds) in [("in step", 1), ("in orders of their own", 10)] {
        let jobs: Vec<Arc<Job>> = (0..10)
            .map(|view| {
                let columns = columns((0..37).chain(own(view)));
                job(&Train { columns, seed: view as u64 % seeds, ..windowed(1600) }, &reader)
            })
            .collect();
        let plain = crate::fixture::loader(AMPLE, 2, Config::default());
        let directory = tempfile::tempdir().unwrap();
        let loader = open(directory.path(), 30 << 20, AMPLE, &always());
        let before = counters.get(DECODED);
        let streams = jobs.iter().map(|job| tokio::spawn(digests(loader.batches(job.clone(), 0, 0))));
        let mut found = Vec::new();
        for stream in streams.collect::<Vec<_>>() {
            found.push(stream.await.unwrap().unwrap());
        }
        assert_eq!(counters.get(DECODED) - before, distinct * BLOCKS as u64, "{case}");
        for (job, found) in jobs.iter().zip(found) {
            assert!(digests(plain.batches(job.clone(), 0, 0)).await.unwrap() == found, "{case}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_fails_leaves_its_columns_to_the_next_request() {
    let counters = Counters::from_zero().await;
    let store = store(&wide(20, 6), 1 << 20).await;
    let fast = reader(store.clone()).await;
    let wait = Duration::from_millis(40);
    let throttle = ThrottleConfig { wait_get_per_call: wait, ..ThrottleConfig::default() };
    let slow = reader(Arc::new(ThrottledStore::new(store, throttle))).await;
    let train = |of: [usize; 3]| Train { columns: columns(of), ..windowed(1600) };
    let plain = crate::fixture::loader(AMPLE, 2, Config::default());
    let expected = digests(plain.batches(job(&train([0, 1, 3]), &fast), 0, 0)).await.unwrap();
    for life in [5, 15, 30, 45, 60, 100] {
        let directory = tempfile::tempdir().unwrap();
        // What is being decoded when the leader dies is decoded again, so few blocks are decoded at a time.
        let config = Config { concurrent_blocks: 1, window_prefetch_bytes: 0, ..always() };
        let loader = open(directory.path(), AMPLE, AMPLE, &config);
        let before = counters.get(DECODED);
        let mut leader = loader.batches(job(&train([0, 1, 2]), &slow), 0, 0);
        drop(tokio::time::timeout(Duration::from_millis(life), leader.next()).await);
        let follower = tokio::spawn(digests(loader.batches(job(&train([0, 1, 3]), &slow), 0, 0)));
        tokio::time::sleep(Duration::from_millis(10)).await;
        drop(leader);
        assert_eq!(follower.await.unwrap().unwrap().len(), expected.len(), "the leader died after {life} ms");
        let decoded = counters.get(DECODED) - before;
        // The leader may have decoded column 2 of all blocks. When it ends, it may be decoding a block in each of two windows. The
        // columns of these blocks may be counted twice, because they are decoded again.
        assert!(
            (60..=86).contains(&decoded),
            "{decoded} columns were decoded, the leader died after {life} ms"
        );
        // Both loaders read from the slow store here, because its snapshot has its own identity.
        let again = digests(loader.batches(job(&train([0, 1, 3]), &slow), 0, 0)).await.unwrap();
        assert_eq!(again, digests(plain.batches(job(&train([0, 1, 3]), &slow), 0, 0)).await.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn columns_in_chunks_of_different_lengths_are_combined() {
    let _counters = Counters::from_zero().await;
    let rows = 3000;
    let long = "x".repeat(5000);
    let texts = (0..rows).map(|row| if row % 100 == 7 { &long[..] } else { "short" });
    let block = RecordBatch::try_from_iter([
        ("n", Arc::new(Int64Array::from_iter_values(0..rows)) as ArrayRef),
        ("text", Arc::new(StringArray::from_iter_values(texts))),
    ])
    .unwrap();
    // Under this limit, chunks with long values hold fewer rows.
    let config = forebay_storage::Config { max_block_bytes: 1 << 20, ..forebay_storage::Config::default() };
    let reader = crate::fixture::reader_with(store(&[block], 1 << 20).await, config).await;
    let train =
        |of: &[&str]| Train { columns: of.iter().map(|name| (*name).into()).collect(), ..windowed(100) };
    let plain = crate::fixture::loader(AMPLE, 2, Config::default());
    let expected = digests(plain.batches(job(&train(&["n", "text"]), &reader), 0, 0)).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let loader = open(directory.path(), AMPLE, AMPLE, &always());
    digests(loader.batches(job(&train(&["n"]), &reader), 0, 0)).await.unwrap();
    column_files(&loader, directory.path()).await;
    let both = digests(loader.batches(job(&train(&["n", "text"]), &reader), 0, 0)).await.unwrap();
    assert_eq!(both, expected);
}
