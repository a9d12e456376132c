use arrow_array::{ArrayRef, Int64Array, RecordBatch};

use super::*;
use crate::test_data;

/// A dataset of one file per block, with these numbers of rows.
async fn reader(dataset: &str, block_rows: impl IntoIterator<Item = i64>) -> Reader {
    let file = |rows| {
        let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
        RecordBatch::try_from_iter([("id", ids)]).unwrap()
    };
    test_data::reader(dataset, block_rows.into_iter().map(file)).await
}

/// Epochs of each partition of the other dataset from which some rank takes rows, in any step of `job`.
fn epochs_read(job: &Job, other: &Job) -> Vec<Vec<u64>> {
    let mut epochs = vec![Vec::new(); other.order.partitions.count() as usize];
    for batch in 0..job.order.run.len() {
        let at = job.order.run.cursor(batch);
        for rank in 0..job.world_size() {
            for partition in other.partitions_of(rank) {
                let read = other.ranges(partition, at, rank).into_iter().map(|(epoch, _)| epoch);
                epochs[partition as usize].extend(read);
            }
        }
    }
    epochs
}

/// Memory of the largest windows that one stream holds at any time, if all of its windows are largest at that time.
fn largest_held(job: &Job, other: &Job) -> u64 {
    let largest = |job: &Job, partition, epochs: &[u64]| {
        let bytes =
            epochs.iter().map(|&epoch| job.footprint.window_bytes(&job.order.epoch(partition, epoch)));
        bytes.max().unwrap_or(0)
    };
    let (own, read) = ([job.train().epoch], epochs_read(job, other));
    let of_partition =
        |partition: u32| largest(job, partition, &own) + largest(other, partition, &read[partition as usize]);
    (0..job.world_size()).map(|rank| job.partitions_of(rank).map(of_partition).sum()).max().unwrap()
}

#[tokio::test]
async fn the_memory_of_a_mixture_is_checked_for_the_epochs_of_all_partitions_and_ranks() {
    let own = reader("own", [400; 24]).await;
    // Its windows have different sizes, and its partitions different numbers of rows.
    let other = reader("other", (0..24).map(|file| 5 + file * 37 % 61)).await;
    let mut repeated = 0;
    for (partitions, world_size, start_step) in
        [(1, 1, 0), (1, 4, 0), (4, 1, 0), (4, 4, 0), (4, 2, 23), (8, 4, 17), (2, 8, 12)]
    {
        for seed in 0..8 {
            let case = format!("{partitions} partitions, {world_size} ranks, from {start_step}, seed {seed}");
            for steps in 1..=40 {
                let train = v1::Train {
                    dataset: "own".into(),
                    batch_size: 128 / world_size,
                    world_size: Some(world_size),
                    seed,
                    start_step,
                    steps,
                    shuffle: Some(v1::Shuffle {
                        window_rows: Some(600),
                        partitions: Some(partitions),
                        ..v1::Shuffle::default()
                    }),
                    mix: vec![v1::Mixed { dataset: "other".into(), fraction: 0.5, ..v1::Mixed::default() }],
                    ..v1::Train::default()
                };
                let others = vec![(other.clone(), None)];
                let job = Job::resolve_mixture(&train, (own.clone(), None), others).unwrap();
                let mixed = &job.mixed[0];
                let read = epochs_read(&job, mixed).concat();
                let (first, last) = (*read.iter().min().unwrap(), *read.iter().max().unwrap());
                let (epoch, epochs) = (mixed.train().epoch, mixed.train().epochs.unwrap());
                assert_eq!((first, last), (epoch, epoch + epochs - 1), "{case}, {steps} steps");
                repeated = repeated.max(last);

                let needed = largest_held(&job, mixed);
                let error = job.check_fits(needed - 1, u64::MAX);
                assert!(matches!(error, Err(Error::TooLarge { .. })), "{case}, {steps} steps: {error:?}");
            }
        }
    }
    assert!(repeated >= 2, "the other dataset is repeated");
}

/// A mixture for two ranks. Each batch has 96 rows of one dataset and 32 of another.
async fn mixture() -> Job {
    let (own, other) = (reader("own", [400; 24]).await, reader("other", [400; 24]).await);
    let train = v1::Train {
        dataset: "own".into(),
        batch_size: 128,
        world_size: Some(2),
        mix: vec![v1::Mixed { dataset: "other".into(), fraction: 0.25, ..v1::Mixed::default() }],
        ..v1::Train::default()
    };
    Job::resolve_mixture(&train, (own, None), vec![(other, None)]).unwrap()
}

#[tokio::test]
async fn the_position_in_another_dataset_of_a_mixture_counts_the_rows_of_all_earlier_steps_and_ranks() {
    let job = mixture().await;
    let steps = 24 * 400 / (2 * 96);
    assert_eq!(job.steps(), steps);
    let at = |epoch, step| Cursor { epoch, step };
    assert_eq!(job.positions(at(0, 0), 0), (0, vec![0]));
    assert_eq!(job.positions(at(0, 0), 1), (96, vec![32]));
    assert_eq!(job.positions(at(0, 3), 1), (3 * 192 + 96, vec![3 * 64 + 32]));
    assert_eq!(job.positions(at(2, 3), 1), (3 * 192 + 96, vec![(2 * steps + 3) * 64 + 32]));
}

#[tokio::test]
async fn the_size_of_a_batch_is_that_of_all_datasets_and_the_last_one_may_be_short() {
    let job = mixture().await;
    assert!(!job.is_packed());
    assert_eq!(job.size(Cursor { epoch: 0, step: 1 }, 1), 128);
    let train = v1::Train { dataset: "own".into(), batch_size: 30, ..v1::Train::default() };
    let job = Job::resolve(&train, reader("own", [50, 50]).await, None).unwrap();
    let sizes = (0..4).map(|step| job.size(Cursor { epoch: 0, step }, 0));
    assert_eq!(sizes.collect::<Vec<_>>(), [30, 30, 30, 10]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_size_of_a_batch_of_packs_is_that_of_full_packs() {
    let train = v1::Train {
        dataset: "own".into(),
        batch_size: 3,
        group_by: vec!["id".into()],
        max_pack_rows: 4,
        ..v1::Train::default()
    };
    let pool = crate::Pool::new(1, crate::Scheduling::Normal).unwrap();
    let loader = crate::Loader::new(1 << 24, crate::Config::default(), pool);
    let job = loader.job(train, reader("own", [50, 50]).await, Vec::new()).await.unwrap();
    assert_eq!(job.size(Cursor { epoch: 0, step: 0 }, 0), 3 * 4);
}
