//! The promises of the two tiers: the same bytes from wherever, decoded no more often than needed.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

mod fixture;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use arrow_array::{
    ArrayRef, BooleanArray, Decimal128Array, Float32Array, Int64Array, ListArray, RecordBatch, StringArray,
    StructArray, TimestampMicrosecondArray, types::Int32Type,
};
use arrow_schema::{DataType, Field};
use fixture::{drain, job, loader, reader, store};
use forebay_cache::DiskConfig;
use forebay_loader::{Config, DiskWrites, Job, Loader, Pool};
use forebay_proto::v1::{Shuffle, Train};
use forebay_storage::Reader;
use metrics::{Counter, CounterFn, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use tempfile::TempDir;
use tokio::sync::Mutex;

/// Counts decoded columns. The count is the process's, so these tests go one by one.
#[derive(Default)]
struct Decoded(AtomicU64);

static ONE_BY_ONE: Mutex<()> = Mutex::const_new(());

impl CounterFn for Decoded {
    fn increment(&self, value: u64) {
        self.0.fetch_add(value, Ordering::Relaxed);
    }

    fn absolute(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

struct Only(Arc<Decoded>);

impl Recorder for Only {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        match key.name() {
            "forebay_decode_columns_total" => Counter::from_arc(Arc::clone(&self.0)),
            _ => Counter::noop(),
        }
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

fn decoded() -> u64 {
    static DECODED: OnceLock<Arc<Decoded>> = OnceLock::new();
    let decoded = DECODED.get_or_init(|| {
        let decoded = Arc::new(Decoded::default());
        metrics::set_global_recorder(Only(Arc::clone(&decoded))).unwrap();
        decoded
    });
    decoded.0.load(Ordering::Relaxed)
}

/// Columns of all kinds, nulls in most of them.
fn everything(rows: std::ops::Range<i64>) -> RecordBatch {
    let some = |row: &i64| row % 5 != 0;
    let maybe = |row: i64| some(&row).then_some(row);
    let items = |row: i64| some(&row).then(|| (0..row % 4).map(|item| (item != 1).then_some(item as i32)));
    let numbers = Arc::new(Int64Array::from_iter(rows.clone().map(maybe))) as ArrayRef;
    let lists = ListArray::from_iter_primitive::<Int32Type, _, _>(rows.clone().map(items));
    let parts = vec![(Arc::new(Field::new("n", DataType::Int64, true)), Arc::clone(&numbers))];
    RecordBatch::try_from_iter([
        ("id", Arc::new(Int64Array::from_iter_values(rows.clone())) as ArrayRef),
        ("x", Arc::new(Float32Array::from_iter_values(rows.clone().map(|row| row as f32)))),
        (
            "flag",
            Arc::new(BooleanArray::from_iter(rows.clone().map(|row| maybe(row).map(|row| row % 2 == 0)))),
        ),
        ("price", Arc::new(Decimal128Array::from_iter(rows.clone().map(|row| maybe(row).map(i128::from))))),
        ("at", Arc::new(TimestampMicrosecondArray::from_iter(rows.clone().map(maybe)))),
        (
            "name",
            Arc::new(StringArray::from_iter(rows.map(|row| maybe(row).map(|row| format!("row {row}"))))),
        ),
        ("list", Arc::new(lists)),
        ("nested", Arc::new(StructArray::from(parts))),
    ])
    .unwrap()
}

const COLUMNS: u64 = 8;
const BLOCKS: i64 = 208;
const BLOCK_ROWS: i64 = 50;
/// Memory for one window and little more: two blocks, mostly what arrays take besides their values.
const WINDOW_BYTES: u64 = 40_000;

async fn dataset() -> Reader {
    let files: Vec<RecordBatch> =
        (0..BLOCKS).map(|file| everything(file * BLOCK_ROWS..(file + 1) * BLOCK_ROWS)).collect();
    reader(store(&files, 1 << 20).await).await
}

fn epoch(epoch: u64) -> Train {
    let shuffle = Shuffle { window_rows: Some(100), ..Shuffle::default() };
    Train { batch_size: 64, seed: 3, epoch, shuffle: Some(shuffle), ..Train::default() }
}

async fn hashes(loader: &Loader, job: &Arc<Job>) -> Vec<u64> {
    let batches = drain(loader.batches(job.clone(), 0, 0)).await.unwrap();
    batches.iter().map(|(metadata, _)| metadata.hash.unwrap()).collect()
}

fn tiers(memory_bytes: u64, folder: &TempDir, disk_bytes: u64, disk_writes: DiskWrites) -> Loader {
    let disk = DiskConfig { capacity_bytes: disk_bytes, ..DiskConfig::default() };
    let config = Config { disk_writes, ..Config::default() };
    Loader::open(memory_bytes, Some((folder.path(), disk)), config, Pool::new(2).unwrap()).unwrap()
}

fn column_files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let is_column = |path: &PathBuf| path.file_name().is_some_and(|name| name != "CACHEDIR.TAG");
    let nested = entries.flat_map(|path| if path.is_dir() { column_files(&path) } else { vec![path] });
    nested.filter(is_column).collect()
}

#[tokio::test]
async fn batches_are_the_same_cold_warm_half_evicted_and_from_a_corrupted_disk() {
    let _one = ONE_BY_ONE.lock().await;
    let reader = dataset().await;
    let jobs: Vec<Arc<Job>> = (0..3).map(|number| job(&epoch(number), &reader)).collect();
    let plenty = loader(1 << 30, 2, Config::default());
    let mut expected = Vec::new();
    for job in &jobs {
        expected.push(hashes(&plenty, job).await);
    }
    let memory = 3 * WINDOW_BYTES;
    let whole = {
        let folder = TempDir::new().unwrap();
        let loader = tiers(memory, &folder, 1 << 30, DiskWrites::Always);
        hashes(&loader, &jobs[0]).await;
        settled(&loader).await
    };
    for disk in [1 << 30, whole / 2, 10_000] {
        let folder = TempDir::new().unwrap();
        let columns = folder.path().join("columns");
        for damage in 0..6 {
            // Each time a new process finds what the one before has left.
            let loader = tiers(memory, &folder, disk, DiskWrites::Needed);
            for (job, expected) in jobs.iter().zip(&expected) {
                assert_eq!(&hashes(&loader, job).await, expected, "disk of {disk}, damage {damage}");
                for (number, path) in column_files(&columns).into_iter().enumerate() {
                    let mut bytes = fs::read(&path).unwrap_or_default();
                    if bytes.is_empty() || number % 3 == 0 {
                        continue;
                    }
                    let at = number * 7919 % bytes.len();
                    match damage {
                        0 => continue,
                        1 => bytes[at] ^= 0x10,
                        2 => bytes.truncate(at),
                        3 => bytes = b"PAR1 foreign".to_vec(),
                        4 => bytes.clear(),
                        _ => {
                            fs::remove_file(&path).unwrap();
                            continue;
                        }
                    }
                    fs::write(&path, bytes).unwrap();
                }
            }
            settled(&loader).await;
        }
    }
}

/// Bytes on disk once nothing is being written.
async fn settled(loader: &Loader) -> u64 {
    let mut before = u64::MAX;
    loop {
        let (now, _) = loader.disk_bytes().unwrap();
        if now == before {
            return now;
        }
        before = now;
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn half_the_columns_on_disk_serve_nearly_half_of_the_bytes_in_every_later_epoch() {
    let _one = ONE_BY_ONE.lock().await;
    let reader = dataset().await;
    let jobs: Vec<Arc<Job>> = (0..6).map(|number| job(&epoch(number), &reader)).collect();
    let memory = WINDOW_BYTES;
    let folder = TempDir::new().unwrap();
    let loader = tiers(memory, &folder, 1 << 30, DiskWrites::Always);
    hashes(&loader, &jobs[0]).await;
    let whole = settled(&loader).await;
    drop(loader);

    let folder = TempDir::new().unwrap();
    let loader = tiers(memory, &folder, whole / 2, DiskWrites::Needed);
    let all = COLUMNS * BLOCKS as u64;
    for (number, job) in jobs.iter().enumerate() {
        let before = decoded();
        hashes(&loader, job).await;
        settled(&loader).await;
        let again = decoded() - before;
        if number == 0 {
            assert!(again >= all, "nothing was there before");
        } else {
            let hit = 100 * (all - again) / all;
            assert!(hit >= 48, "{hit} % in epoch {number}");
        }
    }
}

#[tokio::test]
async fn columns_are_decoded_once_for_ten_views_that_differ_in_three_of_forty() {
    let _one = ONE_BY_ONE.lock().await;
    let files: Vec<RecordBatch> = (0..20i64)
        .map(|file| {
            let values = move |column: i64| (0..100).map(move |row| (file * 100 + row) * 40 + column);
            let column = |column: i64| {
                (format!("c{column:02}"), Arc::new(Int64Array::from_iter_values(values(column))) as ArrayRef)
            };
            RecordBatch::try_from_iter((0..40).map(column)).unwrap()
        })
        .collect();
    let reader = reader(store(&files, 1 << 20).await).await;
    let folder = TempDir::new().unwrap();
    let loader = tiers(1 << 20, &folder, 1 << 30, DiskWrites::Always);
    let before = decoded();
    let streams = (0..10u64).map(|number| {
        let left_out = |column: &u64| (0..3).all(|more| *column != (number + more * 10));
        let columns: Vec<String> = (0..40).filter(left_out).map(|column| format!("c{column:02}")).collect();
        assert_eq!(columns.len(), 37);
        let train = Train { columns, seed: number, ..epoch(0) };
        let (loader, job) = (loader.clone(), job(&train, &reader));
        async move {
            let rows: u64 = drain(loader.batches(job, 0, 0))
                .await
                .unwrap()
                .iter()
                .map(|(metadata, _)| metadata.rows)
                .sum();
            assert_eq!(rows, 2000);
        }
    });
    futures::future::join_all(streams).await;
    assert_eq!(decoded() - before, 40 * 20, "each column of each block once");
}

#[tokio::test]
async fn what_is_pinned_is_on_disk_and_stays_there_until_the_cache_is_dropped() {
    let _one = ONE_BY_ONE.lock().await;
    let reader = dataset().await;
    let folder = TempDir::new().unwrap();
    let job = job(&epoch(0), &reader);
    let loader = tiers(1 << 20, &folder, 1 << 30, DiskWrites::Needed);
    let pinned = loader.pin(&job, |_| ()).await.unwrap();
    assert_eq!((pinned.blocks, pinned.blocks_done), (BLOCKS as u64, BLOCKS as u64));
    let on_disk = settled(&loader).await;
    let before = decoded();
    hashes(&loader, &job).await;
    assert_eq!(decoded(), before, "everything came from disk");
    let (_, disk) = loader.drop_cache(|_| true).await;
    assert_eq!((disk, loader.disk_bytes().unwrap().0), (on_disk, 0));
    hashes(&loader, &job).await;
    assert!(decoded() > before, "it was decoded again");

    let small = tiers(1 << 20, &TempDir::new().unwrap(), 1000, DiskWrites::Needed);
    let error = small.pin(&job, |_| ()).await.unwrap_err().to_string();
    assert!(error.contains("1000") && error.contains("--cache-disk"), "{error}");
    let error = loader_without_disk().pin(&job, |_| ()).await.unwrap_err().to_string();
    assert!(error.contains("--cache-disk"), "{error}");
}

fn loader_without_disk() -> Loader {
    loader(1 << 20, 1, Config::default())
}
