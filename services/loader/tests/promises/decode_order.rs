//! Blocks are fetched and decoded in the order in which streams need them. All times are virtual.

use std::{
    collections::BTreeSet,
    fmt,
    pin::Pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use forebay_loader::{Config, Job, Loader, Pool};
use forebay_proto::v1::{Shuffle, Train};
use forebay_storage::Reader;
use futures::stream::BoxStream;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, memory::InMemory, path::Path,
};

use crate::fixture::{drain, numbered, reader_of, store};

/// Rows of a block, which is a file, and blocks of a window.
const BLOCK_ROWS: i64 = 100;
const WINDOW_BLOCKS: usize = 3;
const BLOCKS: i64 = 24;

type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// Names of the datasets and files that were read, in order.
type Log = Arc<Mutex<Vec<(&'static str, usize)>>>;

/// A store that takes 5 ms for each request, and records the files that are read.
#[derive(Debug)]
struct Recorded {
    dataset: &'static str,
    inner: Arc<InMemory>,
    log: Log,
}

impl fmt::Display for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Recorded")
    }
}

impl ObjectStore for Recorded {
    fn get_opts<'a, 'b, 'c>(&'a self, location: &'b Path, options: GetOptions) -> Answer<'c, GetResult>
    where
        'a: 'c,
        'b: 'c,
    {
        let number = |name: &str| name.strip_prefix("part-")?.strip_suffix(".parquet")?.parse().ok();
        if let Some(file) = location.filename().and_then(number) {
            let mut log = self.log.lock().unwrap();
            if log.last() != Some(&(self.dataset, file)) {
                log.push((self.dataset, file));
            }
        }
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(5)).await;
            self.inner.get_opts(location, options).await
        })
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    crate::forward::forward_writes!();

    fn list_with_delimiter<'a, 'b, 'c>(&'a self, prefix: Option<&'b Path>) -> Answer<'c, ListResult>
    where
        'a: 'c,
        'b: 'c,
    {
        self.inner.list_with_delimiter(prefix)
    }
}

/// Reader of a dataset with a block in each file. The log is empty.
async fn dataset(name: &'static str, url: &str, log: &Log) -> Reader {
    let files: Vec<_> =
        (0..BLOCKS).map(|file| numbered(file * BLOCK_ROWS..(file + 1) * BLOCK_ROWS)).collect();
    let inner = store(&files, BLOCK_ROWS as usize).await;
    let recorded = Recorded { dataset: name, inner, log: Arc::clone(log) };
    let reader = reader_of(url, Arc::new(recorded), forebay_storage::Config::default()).await;
    log.lock().unwrap().clear();
    reader
}

/// A loader that decodes one block at a time and has memory for all windows.
fn loader(concurrent_blocks: usize) -> Loader {
    let config = Config {
        decode_bytes: Some(1),
        concurrent_blocks,
        window_prefetch_bytes: 1 << 30,
        ..Config::default()
    };
    Loader::new(1 << 30, config, Pool::simulated(2, || Duration::from_millis(10)))
}

/// A job with windows of [`WINDOW_BLOCKS`] blocks, each of which is a batch.
async fn job(loader: &Loader, name: &str, reader: &Reader) -> Arc<Job> {
    let rows = WINDOW_BLOCKS as u64 * BLOCK_ROWS as u64;
    let shuffle = Shuffle { window_rows: Some(rows), ..Shuffle::default() };
    let train =
        Train { dataset: name.into(), batch_size: rows, shuffle: Some(shuffle), seed: 3, ..Train::default() };
    loader.job(train, reader.clone(), Vec::new()).await.unwrap()
}

/// Files of each window of the job, in order.
async fn windows(loader: &Loader, job: &Arc<Job>) -> Vec<BTreeSet<usize>> {
    let mut windows = Vec::new();
    for step in 0..job.steps() {
        let rows = loader.locate(job, 0, step, 0).await.unwrap();
        windows.push(rows.iter().map(|row| row.file as usize).collect());
    }
    windows
}

#[tokio::test(start_paused = true)]
async fn blocks_are_decoded_in_the_order_of_windows_however_many_are_prefetched() {
    forebay_cache::run_blocking_work_in_order();
    for concurrent_blocks in [1, 2, 64] {
        let log = Log::default();
        let reader = dataset("a", "memory://a", &log).await;
        let loader = loader(concurrent_blocks);
        let job = job(&loader, "a", &reader).await;
        let expected = windows(&loader, &job).await;
        assert!(expected.iter().all(|files| files.len() == WINDOW_BLOCKS), "{expected:?}");
        let starts = expected.iter().map(BTreeSet::first);
        assert!(!starts.is_sorted(), "the windows are in file order, which would hide another order");
        drain(loader.batches(job, 0, 0)).await.unwrap();
        let log: Vec<usize> = log.lock().unwrap().iter().map(|(_, file)| *file).collect();
        let found: Vec<BTreeSet<usize>> =
            log.chunks(WINDOW_BLOCKS).map(|files| files.iter().copied().collect()).collect();
        assert_eq!(found, expected, "{concurrent_blocks} blocks of a window at a time: {log:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_window_of_a_stream_does_not_wait_behind_what_another_stream_prefetches() {
    forebay_cache::run_blocking_work_in_order();
    for concurrent_blocks in [1, 2, 64] {
        let log = Log::default();
        let (a, b) = (dataset("a", "memory://a", &log).await, dataset("b", "memory://b", &log).await);
        let loader = loader(concurrent_blocks);
        let (of_a, of_b) = (job(&loader, "a", &a).await, job(&loader, "b", &b).await);
        let first_of_b = windows(&loader, &of_b).await.remove(0);
        let mut prefetching = loader.batches(of_a, 0, 0);
        prefetching.next().await.unwrap().unwrap();
        // The windows after the first have memory, and wait for their turn to be decoded.
        let before = log.lock().unwrap().len();
        assert!(before < 2 * WINDOW_BLOCKS, "{before} blocks were read");
        let mut needing = loader.batches(of_b, 0, 0);
        needing.next().await.unwrap().unwrap();
        let log = log.lock().unwrap();
        let read: BTreeSet<usize> =
            log[before..].iter().filter(|(name, _)| *name == "b").map(|(_, file)| *file).collect();
        assert!(read.is_superset(&first_of_b));
        let last = log.iter().rposition(|(name, file)| *name == "b" && first_of_b.contains(file)).unwrap();
        let prefetched = log[before..last].iter().filter(|(name, _)| *name == "a").count();
        // One is being decoded when the stream begins. Then both decode in turn.
        assert!(
            prefetched <= WINDOW_BLOCKS + 1,
            "{prefetched} blocks were decoded before the window, {concurrent_blocks} at a time: {log:?}"
        );
    }
}
