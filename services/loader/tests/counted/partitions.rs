//! Blocks that the ranks of an order with partitions decode: those of their own partitions, each once.

use std::{collections::HashSet, sync::Arc};

use arrow_array::RecordBatch;
use forebay_loader::{Config, Job};
use forebay_proto::v1::{self, Shuffle, Train};
use forebay_storage::Reader;

use crate::fixture::{counters::Counters, drain, ids_of, job, loader, ranked, reader, store};

const ROWS: i64 = 10_007;
const DECODED: &str = "forebay_decode_rows_total";
const FRAMES: &str = "forebay_decode_duration_seconds";

async fn dataset() -> Reader {
    let ends: Vec<i64> = (0..ROWS).step_by(97).chain([ROWS]).collect();
    let files: Vec<RecordBatch> = ends.windows(2).map(|ends| ranked(ends[0]..ends[1])).collect();
    reader(store(&files, 1000).await).await
}

fn train(world_size: u64) -> Train {
    Train {
        batch_size: 96 / world_size,
        world_size: Some(world_size),
        remainder: v1::Remainder::Short.into(),
        epochs: Some(2),
        shuffle: Some(Shuffle { window_rows: Some(3000), partitions: Some(8), ..Shuffle::default() }),
        ..Train::default()
    }
}

/// Rows of the distinct blocks in which the ids of `ids` lie.
fn rows_of_blocks(reader: &Reader, ids: &[i64]) -> u64 {
    let mut end = 0;
    let ends: Vec<i64> = reader
        .snapshot()
        .blocks()
        .iter()
        .map(|block| {
            end += i64::from(block.rows);
            end
        })
        .collect();
    let blocks: HashSet<usize> = ids.iter().map(|id| ends.partition_point(|end| end <= id)).collect();
    blocks.into_iter().map(|block| u64::from(reader.snapshot().blocks()[block].rows)).sum()
}

async fn received(loader: &forebay_loader::Loader, job: &Arc<Job>, rank: u32) -> Vec<i64> {
    let batches = drain(loader.batches(Arc::clone(job), rank, 0)).await.unwrap();
    batches.iter().flat_map(|(metadata, batch)| ids_of(metadata, batch, job)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_one_rank_decodes_the_blocks_of_its_partitions_once_for_all_epochs() {
    let counters = Counters::from_zero().await;
    let reader = dataset().await;
    for world_size in [1, 2, 3, 4, 8] {
        let job = job(&train(world_size), &reader);
        let mut all = 0;
        for rank in 0..world_size as u32 {
            let before = counters.get(DECODED);
            let ids = received(&loader(1 << 30, 2, Config::default()), &job, rank).await;
            let decoded = counters.get(DECODED) - before;
            assert_eq!(decoded, job.decoded_rows([rank]), "rank {rank} of {world_size}");
            assert_eq!(decoded, rows_of_blocks(&reader, &ids), "rank {rank} of {world_size}");
            all += decoded;
        }
        // At most one block for each partition is cut. Ranks of a world size that does not divide the partitions share two.
        let shared = if world_size == 3 { 2 * (ROWS as u64 / 8 + 97) } else { 0 };
        assert!(all <= ROWS as u64 + 8 * 97 + shared, "{all} rows for {world_size} ranks");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn windows_of_the_other_partitions_stay_loaded_when_one_partition_advances() {
    let counters = Counters::from_zero().await;
    let reader = dataset().await;
    for world_size in [1, 2, 3] {
        let job = job(&Train { epochs: Some(1), ..train(world_size) }, &reader);
        // No memory is left for caching: frames stay only while a window is held.
        let room = job.summary().window_bytes;
        let loader = loader(room + room / 8, 2, Config { window_prefetch_bytes: 0, ..Config::default() });
        for rank in 0..world_size as u32 {
            let before = counters.get(FRAMES);
            received(&loader, &job, rank).await;
            let made = counters.get(FRAMES) - before;
            let needed = job.decoded_rows([rank]).div_ceil(97);
            // A block that is cut belongs to windows at different times. If windows were released for each other, each
            // of about 100 batches would load some.
            assert!(made <= needed + 16, "{made} frames, about {needed} blocks, rank {rank} of {world_size}");
        }
    }
}
