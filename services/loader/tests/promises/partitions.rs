//! Guarantees of an order with partitions: those of any other order, and a rank reads few blocks.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use arrow_array::RecordBatch;
use forebay_loader::{Config, Error, Job};
use forebay_proto::v1::{self, Mixed, Shuffle, Train, shuffle};
use forebay_storage::Reader;

use crate::fixture::{drain, ids, ids_of, job, loader, of, ranked, reader, store, views};

const ROWS: i64 = 10_007;
const PARTITIONS: u64 = 8;
const AMPLE: u64 = 1 << 30;

/// 104 files of up to 97 rows. Each is a block.
async fn dataset() -> Reader {
    let ends: Vec<i64> = (0..ROWS).step_by(97).chain([ROWS]).collect();
    let files: Vec<RecordBatch> = ends.windows(2).map(|ends| ranked(ends[0]..ends[1])).collect();
    reader(store(&files, 1000).await).await
}

/// A global batch of 96 rows or groups from 8 partitions.
fn train(world_size: u64) -> Train {
    let partitions = Some(PARTITIONS);
    Train {
        batch_size: 96 / world_size,
        world_size: Some(world_size),
        remainder: v1::Remainder::Short.into(),
        shuffle: Some(Shuffle { window_rows: Some(3000), partitions, ..Shuffle::default() }),
        ..Train::default()
    }
}

/// Views without packs, which cannot be combined with partitions.
fn without_packs() -> impl Iterator<Item = (&'static str, Train, fn(i64) -> bool)> {
    views().into_iter().filter(|(_, view, _)| view.max_pack_rows == 0)
}

#[tokio::test(flavor = "multi_thread")]
async fn same_global_batches_for_any_world_size_lanes_threads_and_memory() {
    let reader = dataset().await;
    for (name, view, is_kept) in without_packs() {
        println!("{name}");
        let train = |world_size| of(&view, train(world_size));
        let ample = loader(AMPLE, 2, Config::default());
        let expected = ids(&ample, &job(&train(1), &reader)).await;
        let all: HashSet<i64> = expected.iter().flatten().copied().collect();
        assert_eq!(all, (0..ROWS).filter(|id| is_kept(*id)).collect());
        assert_eq!(all.len(), expected.iter().flatten().count());

        let needed = job(&train(1), &reader).summary().window_bytes;
        let nothing_ahead =
            Config { prefetch_bytes: 1, window_prefetch_bytes: 0, decode_rows: 64, ..Config::default() };
        let narrow = loader(needed + needed / 8, 1, nothing_ahead);
        for (world_size, lanes) in [(1, 3), (2, 1), (3, 3), (4, 1), (6, 3), (8, 1)] {
            let job = job(&Train { lanes: Some(lanes), ..train(world_size) }, &reader);
            for loader in [&ample, &narrow] {
                assert_eq!(ids(loader, &job).await, expected, "world_size {world_size}, lanes {lanes}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_step_gives_exactly_the_tail() {
    let reader = dataset().await;
    let loader = loader(AMPLE, 2, Config::default());
    for remainder in [v1::Remainder::Short, v1::Remainder::Drop, v1::Remainder::Pad] {
        let request = |start_step| Train {
            start_step,
            epochs: Some(2),
            epoch: 3,
            lanes: Some(2),
            remainder: remainder.into(),
            ..train(3)
        };
        let whole = ids(&loader, &job(&request(0), &reader)).await;
        let steps = job(&request(0), &reader).steps();
        assert_eq!(whole.len() as u64, 2 * steps);
        assert_ne!(whole[0], whole[steps as usize], "epochs differ");
        // The first and the last steps, and some in between.
        for start_step in (0..=steps).filter(|step| step % 7 < 2 || step + 2 > steps) {
            let tail = ids(&loader, &job(&request(start_step), &reader)).await;
            assert_eq!(tail, whole[start_step as usize..], "step {start_step}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn positions_of_batches_are_those_of_their_global_batches() {
    let reader = dataset().await;
    let loader = loader(AMPLE, 2, Config::default());
    let job = job(&train(3), &reader);
    for step_size in [96_u64] {
        for rank in 0..3 {
            let mut next = None;
            for (metadata, _) in drain(loader.batches(Arc::clone(&job), rank, 0)).await.unwrap() {
                let start = metadata.step * step_size;
                let items = (ROWS as u64 - start).min(step_size);
                assert_eq!(metadata.position, start + u64::from(rank) * items / 3);
                assert_eq!(metadata.rows, (u64::from(rank) + 1) * items / 3 - u64::from(rank) * items / 3);
                next = Some(metadata.step + 1);
            }
            assert_eq!(next, Some(job.steps()));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_receives_rows_of_the_same_blocks_in_every_epoch_and_ranks_share_few() {
    let reader = dataset().await;
    let loader = loader(AMPLE, 2, Config::default());
    let job = job(&Train { epochs: Some(2), ..train(8) }, &reader);
    // First row of each block.
    let blocks = reader.snapshot().blocks().iter();
    let starts: Vec<i64> = blocks
        .scan(0, |end, block| {
            *end += i64::from(block.rows);
            Some(*end - i64::from(block.rows))
        })
        .collect();
    let block_of = |id: &i64| starts.partition_point(|start| start <= id) - 1;
    let mut readers = vec![0; starts.len()];
    for rank in 0..8 {
        let mut of_epoch: BTreeMap<u64, HashSet<usize>> = BTreeMap::new();
        for (metadata, batch) in drain(loader.batches(Arc::clone(&job), rank, 0)).await.unwrap() {
            let ids = ids_of(&metadata, &batch, &job);
            of_epoch.entry(metadata.epoch).or_default().extend(ids.iter().map(block_of));
        }
        assert_eq!(of_epoch[&0], of_epoch[&1], "rank {rank}");
        of_epoch[&0].iter().for_each(|block| readers[*block] += 1);
        let rows: u64 =
            of_epoch[&0].iter().map(|block| u64::from(reader.snapshot().blocks()[*block].rows)).sum();
        assert_eq!(job.decoded_rows([rank]), rows);
    }
    assert!(readers.iter().all(|readers| *readers > 0));
    assert!(readers.iter().filter(|readers| **readers > 1).count() <= 8, "{readers:?}");
    assert_eq!(job.decoded_rows(0..8), ROWS as u64);
}

/// Takes a quarter of each global batch of 96 rows from the rows from 7,000 on.
fn mixture(world_size: u64) -> Train {
    Train {
        filter: "id < 7000".into(),
        columns: ["id", "x", "name"].map(str::to_owned).to_vec(),
        mix: vec![Mixed {
            dataset: "d".into(),
            fraction: 0.25,
            filter: "id >= 7000".into(),
            ..Mixed::default()
        }],
        remainder: v1::Remainder::Auto.into(),
        shuffle: Some(Shuffle { window_rows: Some(1500), partitions: Some(6), ..Shuffle::default() }),
        ..train(world_size)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn partitions_of_a_mixture_repeat_on_their_own_and_do_not_depend_on_the_world_size() {
    let reader = dataset().await;
    let ample = loader(AMPLE, 2, Config::default());
    let of = |train: Train| job(&Train { epochs: Some(3), ..train }, &reader);
    let expected = ids(&ample, &of(mixture(1))).await;
    assert_eq!(expected.len(), 3 * 97);
    let (mut own, mut mixed) = (BTreeMap::new(), BTreeMap::new());
    for (step, batch) in expected.iter().enumerate() {
        for round in batch.chunks(4) {
            assert!(round[..3].iter().all(|id| *id < 7000) && round[3] >= 7000, "{round:?}");
            round[..3].iter().for_each(|id| *own.entry((step / 97, *id)).or_insert(0) += 1);
            *mixed.entry(round[3]).or_insert(0_u64) += 1;
        }
    }
    assert!(own.values().all(|times| *times == 1), "a row of the own dataset came twice in an epoch");
    // 4 rows of each partition in a step, and 3,007 / 6 rows in a partition.
    let rounds = 3 * 97 * 4;
    assert_eq!(mixed.len(), 3007);
    assert!(mixed.values().all(|times| (rounds / 502..=rounds / 501 + 1).contains(times)), "{mixed:?}");

    let needed = of(mixture(1)).summary().window_bytes;
    let narrow = loader(needed + needed / 8, 1, Config::default());
    for world_size in [1, 2, 3, 4, 6, 8] {
        for lanes in [1, 2] {
            let job = of(Train { lanes: Some(lanes), ..mixture(world_size) });
            for loader in [&ample, &narrow] {
                assert_eq!(ids(loader, &job).await, expected, "world_size {world_size}, lanes {lanes}");
            }
        }
    }
    for start_step in [1, 96, 97] {
        let tail = of(Train { start_step, ..mixture(4) });
        assert_eq!(ids(&ample, &tail).await, expected[start_step as usize..]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_partition_is_the_request_without_partitions() {
    let reader = dataset().await;
    let of = |partitions| {
        let shuffle = Shuffle { partitions, ..train(1).shuffle.unwrap() };
        job(&Train { shuffle: Some(shuffle), ..train(1) }, &reader)
    };
    let (absent, one, two) = (of(None), of(Some(1)), of(Some(2)));
    assert_eq!(one.ticket(0, 0), absent.ticket(0, 0));
    assert_eq!(one.summary(), absent.summary());
    let summary = absent.summary();
    assert_eq!(
        (summary.partitions, summary.rank_blocks, summary.same_blocks_every_epoch),
        (None, None, false)
    );
    assert_ne!(two.summary().plan_hash, absent.summary().plan_hash);
    let resolved = job(two.train(), &reader);
    assert_eq!(resolved.summary(), two.summary(), "a ticket resolves to the job of its request");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_summary_names_the_blocks_that_a_batch_of_a_rank_mixes() {
    let reader = dataset().await;
    let summary = |world_size| job(&train(world_size), &reader).summary();
    let (alone, eight) = (summary(1), summary(8));
    assert_eq!((alone.partitions, eight.partitions), (Some(8), Some(8)));
    assert!(alone.same_blocks_every_epoch && eight.same_blocks_every_epoch);
    // 13 blocks in a partition. A window of 375 rows or more has four blocks.
    let (of_all, of_one) = (alone.rank_blocks.unwrap(), eight.rank_blocks.unwrap());
    assert!((4.0..6.0).contains(&of_one), "{of_one}");
    assert!((of_all - 8.0 * of_one).abs() < 1e-9, "{of_all}");
    assert!(eight.window_bytes * 4 < alone.window_bytes, "{} of {}", eight.window_bytes, alone.window_bytes);
    assert!(alone.blocks_per_window >= 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn partitions_that_are_not_possible_are_refused_by_name() {
    let reader = dataset().await;
    let blocks = reader.snapshot().blocks().len();
    let of = |shuffle: Shuffle| Train {
        dataset: "d".into(),
        shuffle: Some(shuffle),
        batch_size: 96,
        ..Train::default()
    };
    let partitions = |partitions| Shuffle { partitions: Some(partitions), ..Shuffle::default() };
    let none = Shuffle { none: Some(shuffle::None {}), ..partitions(2) };
    let mix = vec![Mixed { dataset: "other".into(), fraction: 0.25, ..Mixed::default() }];
    let many = Train { batch_size: 64, ..of(partitions(64)) };
    for (train, words) in [
        (of(partitions(0)), "shuffle.partitions: is 0, expected 1 to 4096".to_owned()),
        (of(partitions(4097)), "shuffle.partitions: is 4097, expected 1 to 4096".to_owned()),
        (
            of(partitions(7)),
            "shuffle.partitions: is 7, which does not divide the 96 rows that a global batch takes from 'd'".to_owned(),
        ),
        (
            many,
            format!(
                "shuffle.partitions: is 64, and 'd' has {blocks} blocks with rows; expected at most {}, so that each \
                 partition has at least 2 blocks",
                blocks / 2
            ),
        ),
        (of(none), "shuffle.partitions: cannot be combined with shuffle.none".to_owned()),
        (
            Train { group_by: vec!["query".into()], max_pack_rows: 80, ..of(partitions(2)) },
            "shuffle.partitions: cannot be combined with max_pack_rows".to_owned(),
        ),
        (
            Train { mix, ..of(partitions(9)) },
            "mix.other: shuffle.partitions: is 9, which does not divide the 24 rows that a global batch takes from 'other'"
                .to_owned(),
        ),
    ] {
        let loader = loader(AMPLE, 2, Config::default());
        let others = vec![reader.clone(); train.mix.len()];
        let Error::Invalid { field, reason } = loader.job(train, reader.clone(), others).await.unwrap_err() else {
            panic!("expected Invalid");
        };
        assert_eq!(format!("{field}: {reason}"), words);
    }
    // With a filter, the blocks with kept rows count.
    let filtered = Train { filter: "id < 600".into(), ..of(partitions(8)) };
    let error =
        loader(AMPLE, 2, Config::default()).job(filtered, reader.clone(), Vec::new()).await.unwrap_err();
    assert!(error.to_string().contains("blocks with rows; expected at most"), "{error}");
    // The number of a single partition is valid with any shuffle.
    let none = Shuffle { partitions: Some(1), ..none_shuffle() };
    assert!(Job::resolve(&of(none), reader.clone(), None).is_ok());
}

fn none_shuffle() -> Shuffle {
    Shuffle { none: Some(shuffle::None {}), ..Shuffle::default() }
}
