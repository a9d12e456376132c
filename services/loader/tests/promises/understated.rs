//! Files whose footers understate the size of their data stay within the memory, also if many streams read them.

use std::{sync::Arc, time::Duration};

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use forebay_loader::{Config, Loader, Pool};
use forebay_proto::v1::{Mixed, Shuffle, Train};
use futures::future::join_all;
use parquet::file::properties::{EnabledStatistics, WriterProperties};

use crate::fixture::{job, reader, store_with};

const FILES: usize = 16;
const FILE_ROWS: usize = 500;
const TEXT_BYTES: usize = 2000;
const BLOCK_BYTES: u64 = (FILE_ROWS * TEXT_BYTES) as u64;
const STREAMS: u64 = 8;

/// Blocks with one long text that a dictionary stores once. Their footers have no sizes of decoded values.
async fn texts() -> forebay_storage::Reader {
    let file = |number: usize| {
        let ids = (number * FILE_ROWS) as i64..((number + 1) * FILE_ROWS) as i64;
        let text = "x".repeat(TEXT_BYTES);
        RecordBatch::try_from_iter([
            ("id", Arc::new(Int64Array::from_iter_values(ids)) as ArrayRef),
            ("text", Arc::new(StringArray::from(vec![text.as_str(); FILE_ROWS]))),
        ])
        .unwrap()
    };
    let files: Vec<_> = (0..FILES).map(file).collect();
    let properties = WriterProperties::builder().set_statistics_enabled(EnabledStatistics::None);
    reader(store_with(&files, properties.build()).await).await
}

/// Reads all streams at the same time, and returns the largest number of bytes that were reserved after a batch, and the rows of each
/// stream.
async fn read_all(loader: &Loader, trains: &[Train], reader: &forebay_storage::Reader) -> (u64, Vec<u64>) {
    let streams = trains.iter().map(|train| {
        let mut batches = loader.batches(job(train, reader), 0, 0);
        async move {
            let (mut reserved, mut rows) = (0, 0);
            while let Some(batch) = batches.next().await {
                rows += batch.unwrap().0.rows;
                reserved = reserved.max(loader.reserved_bytes());
            }
            (reserved, rows)
        }
    });
    let (reserved, rows): (Vec<_>, Vec<_>) = join_all(streams).await.into_iter().unzip();
    (reserved.into_iter().max().unwrap(), rows)
}

fn train(seed: u64) -> Train {
    let shuffle = Shuffle { window_rows: Some(4 * FILE_ROWS as u64), ..Shuffle::default() };
    Train { seed, batch_size: 50, epochs: Some(1), shuffle: Some(shuffle), ..Train::default() }
}

#[tokio::test(start_paused = true)]
async fn windows_of_many_streams_that_are_larger_than_estimated_stay_within_the_memory_together() {
    let reader = texts().await;
    let estimated = job(&train(0), &reader).summary().window_bytes;
    assert!(estimated < BLOCK_BYTES / 10, "{estimated} bytes are estimated");
    // Memory for one and a half windows.
    let memory = 6 * BLOCK_BYTES;
    let pool = Pool::simulated(2, || Duration::from_millis(1));
    let loader = Loader::new(memory, Config::default(), pool);
    let trains: Vec<Train> = (0..STREAMS).map(train).collect();
    let (reserved, rows) = read_all(&loader, &trains, &reader).await;
    assert_eq!(rows, [(FILES * FILE_ROWS) as u64; STREAMS as usize]);
    assert!(reserved > 4 * BLOCK_BYTES, "{reserved} bytes");
    assert!(reserved <= memory + memory / 8, "{reserved} bytes are reserved of {memory}");
}

#[tokio::test(start_paused = true)]
async fn a_window_set_that_is_larger_than_estimated_and_than_the_memory_is_loaded_alone() {
    let reader = texts().await;
    // Two windows of four blocks each are together larger than the memory.
    let mixed = |seed| Train {
        mix: vec![Mixed { dataset: "d".into(), fraction: 0.5, ..Mixed::default() }],
        ..train(seed)
    };
    let memory = 7 * BLOCK_BYTES;
    let pool = Pool::simulated(2, || Duration::from_millis(1));
    let loader = Loader::new(memory, Config::default(), pool);
    let (reserved, rows) = read_all(&loader, &[mixed(0), mixed(1)], &reader).await;
    assert!(rows.iter().all(|rows| *rows > 0));
    // One set exceeds the memory, and no other is loaded at the same time.
    assert!(reserved <= 9 * BLOCK_BYTES, "{reserved} bytes are reserved of {memory}");
}
