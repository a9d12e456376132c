//! A cold epoch reads each stored byte about once, whatever is slow and however little memory there is. All times are virtual.

use std::{sync::Arc, time::Duration};

use arrow_array::RecordBatch;
use forebay_loader::{Config, Loader, Pool, Priority};
use forebay_proto::v1::{Mixed, Shuffle, Train};
use forebay_storage::Reader;
use object_store::{
    memory::InMemory,
    throttle::{ThrottleConfig, ThrottledStore},
};

use crate::fixture::{counters::Counters, drain, floats, reader_of, store};

const READ: &str = "forebay_storage_read_bytes_total";
/// Rows of a block. A row has 64 bytes.
const BLOCK_ROWS: usize = 2_000;
/// Delays of one operation of the store, or of a CPU thread, in milliseconds.
const DELAYS: [u64; 4] = [0, 5, 50, 500];
/// Memory in tenths of the largest windows that a stream holds together: from just these to more than all blocks.
const MEMORY: [u64; 4] = [10, 15, 20, 200];
/// Maximum ratio of the bytes read to the bytes planned.
const MOST: f64 = 1.05;

/// Speed of a run, and its limits.
#[derive(Debug, Clone, Copy)]
struct Setting {
    /// Delay of each request to the store, in milliseconds.
    storage: u64,
    /// Time of each operation that decodes, in milliseconds. A block has two.
    decode: u64,
    /// Time of each operation that gathers, in milliseconds.
    gather: u64,
    /// Memory in tenths of the largest windows that the stream holds together.
    memory: u64,
    prefetch_bytes: u64,
}

impl Setting {
    /// All delays of the store and of decoding, with each memory. The other properties alternate.
    fn all() -> impl Iterator<Item = Self> {
        let delays = DELAYS.into_iter().flat_map(|storage| DELAYS.map(|decode| (storage, decode)));
        let settings = delays.flat_map(|delays| MEMORY.map(|memory| (delays, memory)));
        settings.enumerate().map(|(number, ((storage, decode), memory))| Self {
            storage,
            decode,
            gather: if number % 3 == 0 { 50 } else { 0 },
            memory,
            // One finished batch, or all batches.
            prefetch_bytes: if number % 5 < 3 { 1 } else { 64 << 20 },
        })
    }

    /// All settings, or every seventh, among which are all delays and all memories.
    fn some(all: bool) -> impl Iterator<Item = Self> {
        Self::all().step_by(if all { 1 } else { 7 })
    }
}

/// A dataset with its encoded files, which several readers of different delays read.
struct Dataset {
    url: &'static str,
    files: Arc<InMemory>,
    bytes: u64,
}

impl Dataset {
    /// Encodes a dataset of `blocks` blocks, each in a file. Small row groups of one file would form one block.
    async fn new(url: &'static str, blocks: usize) -> Self {
        let files: Vec<RecordBatch> = (0..blocks).map(|_| floats(16, BLOCK_ROWS)).collect();
        let mut dataset = Self { url, files: store(&files, BLOCK_ROWS).await, bytes: 0 };
        let reader = dataset.reader(0).await;
        assert_eq!(reader.snapshot().blocks().len(), blocks);
        dataset.bytes = reader.snapshot().files().iter().map(|file| file.version.size).sum();
        dataset
    }

    async fn reader(&self, delay_ms: u64) -> Reader {
        let delay = Duration::from_millis(delay_ms);
        let config = ThrottleConfig { wait_get_per_call: delay, ..ThrottleConfig::default() };
        let throttled = ThrottledStore::new(Arc::clone(&self.files), config);
        reader_of(self.url, Arc::new(throttled), forebay_storage::Config::default()).await
    }
}

/// Bytes that a cold stream of `train` over `datasets`, its own first, reads.
async fn bytes_read(train: &Train, datasets: &[&Dataset], setting: Setting, counters: &Counters) -> u64 {
    let mut readers = Vec::new();
    for dataset in datasets {
        readers.push(dataset.reader(setting.storage).await);
    }
    let own = readers.remove(0);
    let config = Config {
        // Shorter than the time that a window takes to load.
        slow_consumer_timeout: Duration::from_millis(30),
        // Two blocks at a time.
        decode_bytes: Some(600 << 10),
        prefetch_bytes: setting.prefetch_bytes,
        ..Config::default()
    };
    let took = move |priority| match priority {
        Priority::Background => Duration::from_millis(setting.decode),
        Priority::Interactive => Duration::from_millis(setting.gather),
    };
    let pool = Pool::simulated_by_priority(2, took);
    let job = async |loader: &Loader| loader.job(train.clone(), own.clone(), readers.clone()).await.unwrap();
    let ample = job(&Loader::new(1 << 30, config.clone(), pool.clone())).await;
    let loader = Loader::new(setting.memory * ample.summary().window_bytes / 10, config, pool);
    let job = job(&loader).await;
    let before = counters.get(READ);
    let sent = drain(loader.batches(Arc::clone(&job), 0, 0)).await.unwrap();
    assert_eq!(sent.len() as u64, job.summary().steps);
    counters.get(READ) - before
}

fn request(window_blocks: u64) -> Train {
    let shuffle = Shuffle { window_rows: Some(window_blocks * BLOCK_ROWS as u64), ..Shuffle::default() };
    Train { dataset: "d".into(), batch_size: 800, shuffle: Some(shuffle), ..Train::default() }
}

fn check(read: u64, planned: u64, what: &str, setting: Setting) {
    let share = read as f64 / planned as f64;
    assert!(share <= MOST, "{share:.2} of the planned bytes were read, {what}, {setting:?}");
}

#[tokio::test(start_paused = true)]
async fn a_cold_epoch_reads_each_byte_once_for_any_delay_and_memory() {
    let counters = Counters::from_zero().await;
    forebay_cache::run_blocking_work_in_order();
    let dataset = Dataset::new("memory://own", 12).await;
    for window_blocks in [1, 4] {
        for setting in Setting::some(window_blocks == 4) {
            let read = bytes_read(&request(window_blocks), &[&dataset], setting, &counters).await;
            check(read, dataset.bytes, &format!("windows of {window_blocks} blocks"), setting);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_cold_mixture_reads_each_byte_of_both_datasets_once_for_any_delay_and_memory() {
    let counters = Counters::from_zero().await;
    forebay_cache::run_blocking_work_in_order();
    let own = Dataset::new("memory://own", 12).await;
    // A quarter of each batch comes from the other dataset. An epoch takes each of its rows once.
    let other = Dataset::new("memory://other", 4).await;
    let mixed = Mixed { dataset: "other".into(), fraction: 0.25, ..Mixed::default() };
    let planned = own.bytes + other.bytes;
    for window_blocks in [1, 2] {
        let train = Train { mix: vec![mixed.clone()], ..request(window_blocks) };
        for setting in Setting::some(window_blocks == 2) {
            let read = bytes_read(&train, &[&own, &other], setting, &counters).await;
            check(read, planned, &format!("a mixture with windows of {window_blocks} blocks"), setting);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_cold_mixture_reads_a_dataset_again_only_for_its_next_round() {
    let counters = Counters::from_zero().await;
    forebay_cache::run_blocking_work_in_order();
    let own = Dataset::new("memory://own", 12).await;
    // In an epoch, this dataset has two rounds.
    let other = Dataset::new("memory://other", 2).await;
    let mixed = Mixed { dataset: "other".into(), fraction: 0.25, ..Mixed::default() };
    let train = Train { mix: vec![mixed], ..request(1) };
    for setting in Setting::some(false) {
        let read = bytes_read(&train, &[&own, &other], setting, &counters).await;
        // Ample memory holds the blocks for the second round.
        let rounds = if setting.memory == 200 { 1 } else { 2 };
        check(read, own.bytes + rounds * other.bytes, "a mixture with two rounds", setting);
    }
}

#[tokio::test(start_paused = true)]
async fn a_dataset_that_is_mixed_with_itself_is_read_once_if_memory_holds_it() {
    let counters = Counters::from_zero().await;
    forebay_cache::run_blocking_work_in_order();
    let dataset = Dataset::new("memory://own", 12).await;
    let mixed = Mixed { dataset: "d".into(), fraction: 0.5, ..Mixed::default() };
    let train = Train { mix: vec![mixed], ..request(2) };
    for setting in Setting::some(false) {
        // Both parts have orders of their own, so that little memory does not hold the blocks for both.
        let planned = if setting.memory == 200 { dataset.bytes } else { 2 * dataset.bytes };
        let read = bytes_read(&train, &[&dataset, &dataset], setting, &counters).await;
        check(read, planned, "mixed with itself", setting);
    }
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_waits_for_a_batch_is_not_slow_however_long_that_takes() {
    let counters = Counters::from_zero().await;
    forebay_cache::run_blocking_work_in_order();
    let dataset = Dataset::new("memory://own", 12).await;
    // All work takes longer than the timeout. Prefetched windows are being loaded while batches are made.
    let setting = Setting { storage: 1, decode: 100, gather: 100, memory: 20, prefetch_bytes: 1 };
    let read = bytes_read(&request(4), &[&dataset], setting, &counters).await;
    check(read, dataset.bytes, "slow work", setting);
}
