//! Pinned columns: they stay on disk until they are dropped.

use std::{
    io::Result,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use forebay_cache::{DiskConfig, FileRange, FileSystem, Files, Listed};
use forebay_loader::{Config, Error, Job, Loader, Pool, Scheduling};
use forebay_proto::v1::Train;
use forebay_storage::Reader;

use super::tiers::{
    AMPLE, DECODED, always, column_files, columns, heavy_blocks, of_epoch, wide_blocks, windowed, written,
};
use crate::fixture::{counters::Counters, digests, job, numbered, open, reader, store};

#[tokio::test(flavor = "multi_thread")]
async fn pin_keeps_columns_on_disk_and_drop_cache_removes_them() {
    let counters = Counters::from_zero().await;
    let (pinned, other) = (wide_blocks(20, 8).await, heavy_blocks(30).await);
    let directory = tempfile::tempdir().unwrap();
    let of_pinned = job(&Train { columns: columns(0..8), ..windowed(1600) }, &pinned);
    let of_other = job(&Train { batch_size: 4096, epochs: Some(3), ..windowed(5 * 16_384) }, &other);
    let memory_bytes = of_pinned.summary().window_bytes.max(of_other.summary().window_bytes * 2);
    let loader = open(directory.path(), memory_bytes, 4 << 20, &Config::default());

    let last = loader.pin(&of_pinned, |_| {}).await.unwrap();
    assert_eq!((last.blocks, last.blocks_done), (20, 20));
    assert_eq!(counters.get(DECODED), 20 * 8);
    assert_eq!(column_files(&loader, directory.path()).await.len(), 20, "they are there when pin returns");
    // Another job fills the disk. The forecast needs its columns sooner than the pinned ones.
    digests(loader.batches(of_other.clone(), 0, 0)).await.unwrap();
    let before = counters.get(DECODED);
    let expected =
        digests(crate::fixture::loader(AMPLE, 2, Config::default()).batches(of_pinned.clone(), 0, 0))
            .await
            .unwrap();
    let by_plain = counters.get(DECODED) - before;
    assert_eq!(digests(loader.batches(of_pinned.clone(), 0, 0)).await.unwrap(), expected);
    assert_eq!(counters.get(DECODED) - before, by_plain, "what was pinned is not decoded again");

    // Waits for pending writes, which would add files after the removal.
    column_files(&loader, directory.path()).await;
    let (_, disk_bytes) = loader.drop_cache(|block| of_pinned_blocks(&pinned, block)).await;
    assert!(disk_bytes >= 20 * 8 * 400 * 8);
    let (memory, disk) = loader.drop_cache(|_| true).await;
    assert!(memory + disk > 0);
    assert_eq!((loader.resident_bytes(), loader.disk_bytes().unwrap().0), (0, 0));
    assert!(column_files(&loader, directory.path()).await.is_empty());
    let before = counters.get(DECODED);
    assert_eq!(digests(loader.batches(of_pinned, 0, 0)).await.unwrap(), expected);
    assert_eq!(counters.get(DECODED) - before, 20 * 8, "the columns are decoded again");
}

fn of_pinned_blocks(reader: &Reader, block: u128) -> bool {
    reader.block_ids().block(block).is_some()
}

/// Each pin claims the columns of a block one by one, so two concurrent pins can hold columns that the other needs.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_pins_of_the_same_columns_all_finish() {
    let _counters = Counters::from_zero().await;
    let reader = wide_blocks(4, 200).await;
    let jobs = [columns(0..200), columns((0..200).rev()), columns((0..200).step_by(2))];
    let jobs = jobs.map(|columns| job(&Train { columns, ..windowed(1600) }, &reader));
    for _ in 0..20 {
        let directory = tempfile::tempdir().unwrap();
        let loader = open(directory.path(), AMPLE, AMPLE, &Config::default());
        let pins = jobs.iter().cloned().cycle().take(6).map(|job| {
            let loader = loader.clone();
            tokio::spawn(async move { loader.pin(&job, |_| {}).await })
        });
        for pin in pins.collect::<Vec<_>>() {
            tokio::time::timeout(Duration::from_secs(60), pin).await.unwrap().unwrap().unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pin_evicts_columns_that_are_needed_sooner() {
    let counters = Counters::from_zero().await;
    let (pinned, other) = (wide_blocks(20, 8).await, heavy_blocks(30).await);
    let directory = tempfile::tempdir().unwrap();
    let of_pinned = job(&Train { columns: columns(0..8), ..windowed(1600) }, &pinned);
    let of_other = job(&Train { batch_size: 4096, epochs: Some(2), ..windowed(5 * 16_384) }, &other);
    let loader = open(directory.path(), of_other.summary().window_bytes * 2, 4 << 20, &Config::default());
    let mut running = loader.batches(of_other, 0, 0);
    for _ in 0..150 {
        running.next().await.unwrap().unwrap();
    }
    written(&loader).await;
    let (used, capacity) = loader.disk_bytes().unwrap();
    assert!(used > capacity * 9 / 10, "the disk is full: {used} of {capacity}");
    loader.pin(&of_pinned, |_| {}).await.unwrap();
    drop(running);
    column_files(&loader, directory.path()).await;
    let before = counters.get(DECODED);
    loader.pin(&of_pinned, |_| {}).await.unwrap();
    assert_eq!(counters.get(DECODED), before, "all of it is on disk");
}

#[tokio::test(flavor = "multi_thread")]
async fn pin_that_does_not_fit_reports_the_bytes_needed_and_leaves_no_pins() {
    let _counters = Counters::from_zero().await;
    let (small, large) = (wide_blocks(20, 8).await, heavy_blocks(30).await);
    let (of_small, of_large) =
        (job(&windowed(1600), &small), job(&Train { batch_size: 4096, ..windowed(5 * 16_384) }, &large));
    let directory = tempfile::tempdir().unwrap();
    let capacity = 8 << 20;
    let loader = open(directory.path(), AMPLE, capacity, &Config::default());
    let refused = |error: Error, least: u64| {
        let Error::TooLarge { needed, limit, advice, .. } = error else { panic!("{error}") };
        assert!(needed >= least && limit == capacity, "{needed} of {limit}");
        assert!(advice.contains("--cache-disk"), "{advice}");
    };
    // The columns exceed the disk tier alone, and then together with the columns already pinned.
    let tiny = open(tempfile::tempdir().unwrap().path(), AMPLE, 1 << 20, &Config::default());
    assert!(matches!(tiny.pin(&of_large, |_| {}).await, Err(Error::TooLarge { needed: 7_864_320.., .. })));
    loader.pin(&of_small, |_| {}).await.unwrap();
    refused(loader.pin(&of_large, |_| {}).await.unwrap_err(), 8 << 20);
    column_files(&loader, directory.path()).await;
    // Columns written by the failed pin do not block later pins.
    loader.unpin(&of_small).unwrap();
    loader.pin(&of_large, |_| {}).await.unwrap();
    let without = crate::fixture::loader(AMPLE, 1, Config::default());
    let error = without.pin(&of_small, |_| {}).await.unwrap_err().to_string();
    assert!(error.contains("--cache-disk"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_view_with_one_column_under_two_names_is_pinned_and_read() {
    let _counters = Counters::from_zero().await;
    let folder = tempfile::TempDir::new().unwrap();
    let reader = reader(store(&[numbered(0..20_000)], 20_000).await).await;
    let select = ["x AS a", "x AS b", "id + 1 AS c", "id + 1 AS d"].map(str::to_owned).to_vec();
    let job = of_epoch(&Train { select, batch_size: 999, ..Train::default() }, 0, &reader);
    let loader = open(folder.path(), AMPLE, AMPLE, &always());
    tokio::time::timeout(Duration::from_secs(60), loader.pin(&job, |_| {})).await.unwrap().unwrap();
    assert_eq!(digests(loader.batches(job, 0, 0)).await.unwrap().len(), 21);
}

/// The local file system. Writes hang while a test holds `gate`.
#[derive(Default)]
struct HangingWrites {
    gate: parking_lot::Mutex<()>,
    /// Number of writes that have begun.
    begun: AtomicU64,
}

impl Files for HangingWrites {
    fn create_folder(&self, path: &Path) -> Result<()> {
        FileSystem.create_folder(path)
    }

    fn write(&self, path: &Path, parts: &[&[u8]]) -> Result<()> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        drop(self.gate.lock());
        FileSystem.write(path, parts)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        FileSystem.rename(from, to)
    }

    fn read(&self, path: &Path, ranges: &mut [FileRange<'_>]) -> Result<()> {
        FileSystem.read(path, ranges)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        FileSystem.remove(path)
    }

    fn list(&self, folder: &Path) -> Result<Vec<Listed>> {
        FileSystem.list(folder)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[allow(clippy::await_holding_lock)] // The lock is what writes wait for.
async fn pins_on_a_disk_that_hangs_stop_no_stream_and_a_repeated_pin_decodes_nothing_again() {
    let counters = Counters::from_zero().await;
    let of_columns = async |blocks, count| {
        let train = Train { columns: columns(0..count), ..windowed(1600) };
        job(&train, &wide_blocks(blocks, count).await)
    };
    let (of_pinned, others) = (of_columns(20, 8).await, [of_columns(10, 2).await, of_columns(10, 3).await]);
    let directory = tempfile::tempdir().unwrap();
    let files = Arc::new(HangingWrites::default());
    // Two blocks use up the memory for decoding.
    let config = Config { decode_bytes: Some(2 * 2 * 8 * 400 * 8), ..Config::default() };
    let disk = DiskConfig { capacity_bytes: Some(AMPLE), ..DiskConfig::default() };
    let pool = Pool::new(2, Scheduling::Normal).unwrap();
    let (loader, recovery) =
        Loader::open_over(Arc::clone(&files) as _, AMPLE, Some((directory.path(), disk)), config, pool)
            .unwrap();
    recovery.unwrap().run_in_background().await;
    let pin = || {
        let (loader, job) = (loader.clone(), Arc::clone(&of_pinned));
        tokio::spawn(async move { loader.pin(&job, |_| {}).await })
    };

    let gate = files.gate.lock();
    let first = pin();
    let by_pins = 20 * 8;
    while files.begun.load(Ordering::SeqCst) == 0 || counters.get(DECODED) < by_pins {
        tokio::task::yield_now().await;
    }
    let read = async |job: &Arc<Job>| {
        let batches = digests(loader.batches(Arc::clone(job), 0, 0));
        tokio::time::timeout(Duration::from_secs(60), batches).await.expect("the stream waits").unwrap();
    };
    read(&others[0]).await;
    first.abort();
    let second = pin();
    read(&others[1]).await;
    drop(gate);
    assert_eq!(second.await.unwrap().unwrap().blocks_done, 20);
    let (by_streams, decoded) = (10 * 2 + 10 * 3, counters.get(DECODED));
    // A block that was decoded when the first pin was cancelled, and not given to the disk yet, is decoded again.
    assert!((by_pins..2 * by_pins).contains(&(decoded - by_streams)), "{decoded} columns are decoded");
}
