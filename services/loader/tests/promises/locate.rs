//! Storage locations of the rows of a batch, compared with the files as read by the standard Parquet reader.

use std::sync::Arc;

use arrow_array::{cast::AsArray, types::Int64Type};
use bytes::Bytes;
use forebay_loader::{Config, Job, Loader, StoredRow};
use forebay_proto::v1::{Mixed, Shuffle, Train, shuffle};
use forebay_storage::Reader;
use object_store::{ObjectStoreExt, memory::InMemory, path::Path};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use proptest::{collection, prelude::*, sample};

use crate::fixture::{decode, drain, job, loader, of, ranked, reader, store, views};

/// Ids of a dataset by file, row group and row.
async fn stored_ids(store: &InMemory, reader: &Reader) -> Vec<Vec<Vec<i64>>> {
    let mut files = Vec::new();
    for file in reader.snapshot().files() {
        let bytes =
            store.get(&Path::from(format!("data/{}", file.path))).await.unwrap().bytes().await.unwrap();
        files.push((0..file.row_groups.len()).map(|group| row_group(&bytes, group)).collect());
    }
    files
}

fn row_group(file: &Bytes, group: usize) -> Vec<i64> {
    let rows = ParquetRecordBatchReaderBuilder::try_new(file.clone()).unwrap();
    let rows = rows.with_row_groups(vec![group]).build().unwrap().map(Result::unwrap);
    rows.flat_map(|batch| batch["id"].as_primitive::<Int64Type>().values().to_vec()).collect()
}

/// Compares every batch of two epochs and all ranks with the files.
async fn check(loader: &Loader, job: &Arc<Job>, ids: &[Vec<Vec<i64>>]) {
    let lanes = job.train().lanes() as u32;
    for rank in 0..job.train().world_size() as u32 {
        for lane in 0..lanes {
            for (metadata, batch) in drain(loader.batches(Arc::clone(job), rank, lane)).await.unwrap() {
                let rows = decode(&batch, job);
                let sent = &rows.column(0).as_primitive::<Int64Type>().values()[..metadata.rows as usize];
                let located = loader.locate(job, metadata.epoch, metadata.step, rank).await.unwrap();
                let id = |row: &StoredRow| ids[row.file as usize][row.row_group as usize][row.row as usize];
                let found: Vec<i64> = located.iter().map(id).collect();
                assert_eq!(found, sent, "{metadata:?} of {:?}", job.train());
                // In the mixture, every fourth row is from the other dataset.
                let mixed = |at: usize| u32::from(!job.train().mix.is_empty() && at % 4 == 3);
                assert!(located.iter().enumerate().all(|(at, row)| row.dataset == mixed(at)));
            }
        }
    }
    assert_eq!(loader.locate(job, 0, job.steps(), 0).await.unwrap(), []);
}

fn shuffles() -> impl Strategy<Value = Shuffle> {
    prop_oneof![
        (1..3000u64, any::<bool>()).prop_map(|(rows, keep_block_order)| Shuffle {
            window_rows: Some(rows),
            keep_block_order,
            ..Shuffle::default()
        }),
        Just(Shuffle { global: Some(shuffle::Global {}), ..Shuffle::default() }),
        Just(Shuffle { none: Some(shuffle::None {}), ..Shuffle::default() }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_row_of_a_batch_is_located_in_its_file(
        view in sample::select((0..views().len()).collect::<Vec<_>>()),
        sizes in collection::vec(1..3000i64, 1..6),
        row_group_rows in 50..4000usize,
        (batch_size, world_size, lanes) in (1..400u64, 1..4u64, 1..3u64),
        (seed, start_step) in (any::<u64>(), 0..2u64),
        (shuffle, partitions) in (shuffles(), 1..4u64),
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let mut end = 0;
            let files: Vec<_> = sizes.iter().map(|rows| { end += rows; ranked(end - rows..end) }).collect();
            let store = store(&files, row_group_rows).await;
            let reader = reader(store.clone()).await;
            let order = Train {
                batch_size,
                seed,
                shuffle: Some(shuffle),
                world_size: Some(world_size),
                lanes: Some(lanes),
                epochs: Some(2),
                ..Train::default()
            };
            let (name, wanted, is_kept) = &views()[view];
            // Each kept block has rows of a group that begins in it, because groups are shorter than blocks.
            let starts: Vec<i64> = reader.snapshot().blocks().iter().scan(0, |end, block| { *end += i64::from(block.rows); Some(*end - i64::from(block.rows)) }).collect();
            let has_rows = |(block, start): (usize, &i64)| (*start..*start + i64::from(reader.snapshot().blocks()[block].rows)).any(is_kept);
            let blocks = starts.iter().enumerate().filter(|at| has_rows(*at)).count() as u64;
            let is_possible = wanted.max_pack_rows == 0 && shuffle.none.is_none() && wanted.group_by.is_empty() && blocks >= 2 * partitions;
            let order = match is_possible {
                false => order,
                true => Train {
                    batch_size: batch_size * partitions,
                    shuffle: Some(Shuffle { partitions: Some(partitions), ..shuffle }),
                    ..order
                },
            };
            let whole = job(&of(wanted, order.clone()), &reader);
            let steps = whole.steps();
            let job = if steps == 0 { whole } else { job(&of(wanted, Train { start_step: start_step.min(steps), ..order }), &reader) };
            println!("{name}: {steps} steps");
            check(&loader(1 << 28, 2, Config::default()), &job, &stored_ids(&store, &reader).await).await;
        });
    }
}

/// A dataset of 5,230 rows in 10 blocks, each with two row groups.
async fn ten_blocks() -> (Arc<InMemory>, Reader) {
    let files: Vec<_> = (0..10).map(|file| ranked(file * 523..(file + 1) * 523)).collect();
    let store = store(&files, 300).await;
    let reader = reader(store.clone()).await;
    (store, reader)
}

#[tokio::test(flavor = "multi_thread")]
async fn located_rows_of_a_mixture_have_their_dataset_and_repeat_with_it() {
    let (store, reader) = ten_blocks().await;
    let ids = stored_ids(&store, &reader).await;
    for partitions in [1, 2] {
        let shuffle = Shuffle { window_rows: Some(700), partitions: Some(partitions), ..Shuffle::default() };
        let train = Train {
            filter: "id < 3000".into(),
            mix: vec![Mixed {
                dataset: "d".into(),
                fraction: 0.25,
                filter: "id >= 3000".into(),
                ..Mixed::default()
            }],
            batch_size: 32,
            world_size: Some(3),
            epochs: Some(2),
            shuffle: Some(shuffle),
            ..Train::default()
        };
        check(&loader(1 << 28, 2, Config::default()), &job(&train, &reader), &ids).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_groups_in_partitions_are_located_in_their_files() {
    let (store, reader) = ten_blocks().await;
    let ids = stored_ids(&store, &reader).await;
    // Packs cannot be combined with partitions.
    let grouped =
        views().into_iter().filter(|(_, view, _)| !view.group_by.is_empty() && view.max_pack_rows == 0);
    for (name, view, _) in grouped {
        let shuffle = Shuffle { window_rows: Some(900), partitions: Some(2), ..Shuffle::default() };
        let order = Train {
            batch_size: 12,
            world_size: Some(2),
            lanes: Some(2),
            epochs: Some(2),
            shuffle: Some(shuffle),
            ..Train::default()
        };
        println!("{name}");
        check(&loader(1 << 28, 2, Config::default()), &job(&of(&view, order), &reader), &ids).await;
    }
}
