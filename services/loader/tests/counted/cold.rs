//! A cold epoch reads each stored byte about once, whatever is slow and however little memory there is.

use std::{sync::Arc, time::Duration};

use forebay_loader::{Config, FaultInjection, Loader, Pool};
use forebay_proto::v1::{Mixed, Shuffle, Train};
use forebay_storage::Reader;
use object_store::throttle::{ThrottleConfig, ThrottledStore};

use crate::fixture::{counters::Counters, drain, floats, job, loader, reader, store};

const READ: &str = "forebay_storage_read_bytes_total";
/// Rows of a block, and blocks of the dataset. A row has 64 bytes.
const BLOCK_ROWS: usize = 20_000;
const BLOCKS: usize = 12;

async fn dataset(get_delay: Duration) -> Reader {
    let files: Vec<_> = (0..4).map(|_| floats(16, BLOCK_ROWS * BLOCKS / 4)).collect();
    let config = ThrottleConfig { wait_get_per_call: get_delay, ..ThrottleConfig::default() };
    let throttled = ThrottledStore::new(store(&files, BLOCK_ROWS).await, config);
    reader(Arc::new(throttled)).await
}

/// Bytes that one epoch over `train` reads, divided by the bytes that it needs. `memory` is given in tenths of the largest
/// window; in a mixture, of one window of each dataset.
async fn amplification(train: &Train, memory: u64, delays: (u64, u64), counters: &Counters) -> f64 {
    let [storage, decode] = [delays.0, delays.1].map(Duration::from_millis);
    let reader = dataset(storage).await;
    let job = job(train, &reader);
    let window_bytes = job.summary().window_bytes;
    let config = Config {
        // Shorter than the time that a window takes to load.
        slow_consumer_timeout: Duration::from_millis(30),
        fault_injection: FaultInjection { decode, ..FaultInjection::default() },
        decode_bytes: Some(6 << 20),
        ..Config::default()
    };
    let loader = loader(memory * window_bytes / 10, 2, config);
    let before = counters.get(READ);
    let sent = drain(loader.batches(Arc::clone(&job), 0, 0)).await.unwrap();
    assert_eq!(sent.len() as u64, job.summary().steps);
    let needed: u64 = reader.snapshot().files().iter().map(|file| file.version.size).sum();
    (counters.get(READ) - before) as f64 / needed as f64
}

fn request(window_blocks: u64) -> Train {
    let shuffle = Shuffle { window_rows: Some(window_blocks * BLOCK_ROWS as u64), ..Shuffle::default() };
    Train { dataset: "d".into(), batch_size: 8000, shuffle: Some(shuffle), ..Train::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cold_epoch_reads_each_byte_once_for_any_delay_and_memory() {
    let counters = Counters::from_zero().await;
    for window_blocks in [1, 4] {
        for memory in [10, 15, 20, 200] {
            for delays in [(0, 40), (40, 0), (25, 25)] {
                let read = amplification(&request(window_blocks), memory, delays, &counters).await;
                assert!(
                    read <= 1.05,
                    "{read:.2} of the bytes, windows of {window_blocks} blocks, memory for {memory} tenths, delays {delays:?}"
                );
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_waits_for_a_batch_is_not_slow_however_long_that_takes() {
    let counters = Counters::from_zero().await;
    forebay_cache::run_blocking_work_in_order();
    let reader = dataset(Duration::from_millis(1)).await;
    // All work takes longer than the timeout. Prefetched windows are being loaded while batches are made.
    let pool = Pool::simulated(1, || Duration::from_millis(100));
    let config = Config {
        slow_consumer_timeout: Duration::from_millis(30),
        prefetch_bytes: 1,
        decode_bytes: Some(6 << 20),
        ..Config::default()
    };
    let memory = Loader::new(1 << 30, config.clone(), pool.clone());
    let request = Train { dataset: "d".into(), ..request(4) };
    let window_bytes =
        memory.job(request.clone(), reader.clone(), Vec::new()).await.unwrap().summary().window_bytes;
    let loader = Loader::new(2 * window_bytes, config, pool);
    let job = loader.job(request, reader.clone(), Vec::new()).await.unwrap();
    let before = counters.get(READ);
    drain(loader.batches(job, 0, 0)).await.unwrap();
    let needed: u64 = reader.snapshot().files().iter().map(|file| file.version.size).sum();
    let read = (counters.get(READ) - before) as f64 / needed as f64;
    assert!(read <= 1.05, "{read:.2} of the bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cold_mixture_reads_each_byte_once_per_epoch_of_a_dataset() {
    let counters = Counters::from_zero().await;
    let mixed = Mixed { dataset: "d".into(), fraction: 0.5, ..Mixed::default() };
    // Both datasets are the same files, which are read once for both if memory holds them.
    let train = Train { mix: vec![mixed], ..request(2) };
    for (memory, most) in [(10, 2.1), (15, 2.1), (20, 2.1), (200, 1.05)] {
        for delays in [(0, 40), (40, 0)] {
            let read = amplification(&train, memory, delays, &counters).await;
            assert!(read <= most, "{read:.2} of the bytes, memory for {memory} tenths, delays {delays:?}");
        }
    }
}
