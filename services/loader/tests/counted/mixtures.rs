//! Mixtures: fixed fractions of every batch, independent rounds of each dataset, and the guarantees of any other
//! stream.

use std::{collections::HashSet, sync::Arc, time::Duration};

use arrow_array::RecordBatch;
use forebay_loader::{Config, Error, Job};
use forebay_proto::v1::{self, Dedupe, Mixed, Shuffle, Train};
use forebay_storage::Reader;

use crate::fixture::{counters::Counters, drain, ids, job, loader, ranked, reader, store};

/// Ids below this value belong to the job's own dataset, the others to the mixed-in dataset.
const OWN: i64 = 7000;
const MIXED: i64 = 3007;

/// Dataset with the rows of both parts of the mixture, separated by filters. Has many files, one of them with a single
/// row.
async fn dataset() -> Reader {
    let mut ends: Vec<i64> = (0..OWN + MIXED).step_by(523).chain([OWN + MIXED, 3001]).collect();
    ends.sort_unstable();
    let files: Vec<RecordBatch> = ends.windows(2).map(|ends| ranked(ends[0]..ends[1])).collect();
    reader(store(&files, 700).await).await
}

/// Request that takes a quarter of each 96-row batch from the mixed-in dataset. An epoch has 97 steps; the mixed-in
/// dataset repeats independently of epochs.
fn mixture(world_size: u64) -> Train {
    let dedupe = Dedupe {
        key: vec!["query".into()],
        tensor: "q".into(),
        columns: vec!["q_*".into()],
        ..Dedupe::default()
    };
    let filter = format!("id >= {OWN}");
    Train {
        filter: format!("id < {OWN}"),
        columns: ["id", "x", "name"].map(str::to_owned).to_vec(),
        dedupe: vec![dedupe],
        mix: vec![Mixed { dataset: "d".into(), fraction: 0.25, filter, ..Mixed::default() }],
        batch_size: 96 / world_size,
        world_size: Some(world_size),
        shuffle: Some(Shuffle { window_rows: Some(1500), ..Shuffle::default() }),
        ..Train::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_batch_has_its_fractions_and_each_dataset_repeats_independently() {
    let _counters = Counters::from_zero().await;
    let reader = dataset().await;
    let steps =
        ids(&loader(1 << 30, 2, Config::default()), &job(&Train { epochs: Some(2), ..mixture(1) }, &reader))
            .await;
    assert_eq!(steps.len(), 2 * 97);
    let (mut own, mut mixed) = (Vec::new(), Vec::new());
    for step in &steps {
        // Three rows of the job's own dataset, then one of the other.
        for round in step.chunks(4) {
            assert!(round[..3].iter().all(|id| *id < OWN) && round[3] >= OWN, "{round:?}");
            own.extend_from_slice(&round[..3]);
            mixed.push(round[3]);
        }
    }
    // 7,000 rows give 97 steps of 72 rows. Each epoch leaves out the remaining rows.
    for epoch in own.chunks(97 * 72) {
        assert_eq!(epoch.iter().collect::<HashSet<_>>().len(), 97 * 72);
    }
    assert_ne!(own[..72], own[97 * 72..][..72]);
    // Rounds of the mixed-in dataset are independent of epochs: no row repeats before all rows were delivered.
    let rounds: Vec<HashSet<i64>> =
        mixed.chunks(MIXED as usize).map(|round| round.iter().copied().collect()).collect();
    assert_eq!(rounds[0], (OWN..OWN + MIXED).collect());
    assert_eq!(rounds[1].len(), 2 * 97 * 24 - MIXED as usize);
}

#[tokio::test(flavor = "multi_thread")]
async fn same_global_batches_for_any_world_size_lanes_threads_and_memory_cold_and_warm() {
    let _counters = Counters::from_zero().await;
    let reader = dataset().await;
    let ample = loader(1 << 30, 2, Config::default());
    let expected = ids(&ample, &job(&mixture(1), &reader)).await;
    let needed = job(&mixture(1), &reader).summary().window_bytes;
    let narrow = loader(needed + needed / 8, 1, Config::default());
    let nothing_ahead =
        Config { prefetch_bytes: 1, window_prefetch_bytes: 0, decode_rows: 64, ..Config::default() };
    let slow = loader(needed * 2, 3, nothing_ahead);
    for world_size in [1, 2, 3, 4, 6, 8] {
        for lanes in [1, 3] {
            let job = job(&Train { lanes: Some(lanes), ..mixture(world_size) }, &reader);
            for loader in [&ample, &narrow, &slow] {
                assert_eq!(ids(loader, &job).await, expected, "world_size {world_size}, lanes {lanes}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_step_gives_exactly_the_tail_across_the_epochs_of_all_datasets() {
    let _counters = Counters::from_zero().await;
    let reader = dataset().await;
    let loader = loader(1 << 30, 2, Config::default());
    let of = |train: Train| job(&train, &reader);
    let whole = ids(&loader, &of(Train { epochs: Some(3), epoch: 5, ..mixture(1) })).await;
    for start_step in [0, 1, 28, 29, 96, 97] {
        let tail = Train { epochs: Some(3), epoch: 5, start_step, ..mixture(1) };
        assert_eq!(ids(&loader, &of(tail)).await, whole[start_step as usize..]);
    }
    // The mixed-in dataset alone has fewer steps than `start_step`.
    let small = Mixed { filter: format!("id >= {}", OWN + MIXED - 500), ..mixture(1).mix[0].clone() };
    let small = Train { mix: vec![small], ..mixture(1) };
    let all = ids(&loader, &of(small.clone())).await;
    assert_eq!(ids(&loader, &of(Train { start_step: 60, ..small })).await, all[60..]);
    // A request for one epoch returns the same batches as that epoch of a longer request.
    let sixth = ids(&loader, &of(Train { epoch: 6, ..mixture(1) })).await;
    assert_eq!(sixth, whole[97..194]);
}

#[tokio::test(flavor = "multi_thread")]
async fn mixtures_that_share_memory_for_little_more_than_one_window_all_finish() {
    let _counters = Counters::from_zero().await;
    let reader = dataset().await;
    let jobs: Vec<Arc<Job>> = (0..4).map(|seed| job(&Train { seed, ..mixture(2) }, &reader)).collect();
    let needed = jobs.iter().map(|job| job.summary().window_bytes).max().unwrap();
    let config =
        Config { prefetch_bytes: 1, slow_consumer_timeout: Duration::from_millis(20), ..Config::default() };
    let loader = loader(needed + needed / 10, 2, config);
    let streams = jobs.iter().flat_map(|job| [0, 1].map(|rank| (job.clone(), rank)));
    let runs = streams.map(|(job, rank)| tokio::spawn(drain(loader.batches(job, rank, 0))));
    for run in runs.collect::<Vec<_>>() {
        let batches = tokio::time::timeout(Duration::from_secs(60), run).await.unwrap().unwrap().unwrap();
        assert_eq!(batches.len(), 97);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_mixture_is_refused_with_the_name_of_its_field() {
    let _counters = Counters::from_zero().await;
    let reader = dataset().await;
    let refused = |train: Train, others: usize| {
        let train = Train { dataset: "d".into(), filter: String::new(), ..train };
        let others = (0..others).map(|_| (reader.clone(), None)).collect();
        let Error::Invalid { field, reason } =
            Job::resolve_mixture(&train, (reader.clone(), None), others).unwrap_err()
        else {
            panic!("expected Invalid");
        };
        format!("{field}: {reason}")
    };
    let mixed = |share| Mixed { dataset: "other".into(), fraction: share, ..Mixed::default() };
    let of = |mix: Vec<Mixed>| Train { mix, ..mixture(1) };
    let pinned = Mixed { snapshot: reader.snapshot().id().to_owned(), ..mixed(0.25) };
    for (train, words) in [
        (of(vec![mixed(0.3)]), "mix.other.fraction: is 0.3, which is 28.799"),
        (of(vec![mixed(0.0)]), "mix.other.fraction: is 0, which is 0 of 96 rows"),
        (of(vec![mixed(1.0)]), "expected a fraction that makes 1 to 95 whole rows"),
        (of(vec![mixed(f64::NAN)]), "mix.other.fraction: is NaN"),
        (of(vec![mixed(0.25), mixed(0.25)]), "mix.other: occurs twice with the same filter"),
        // One names the current snapshot, the other one reads it.
        (of(vec![mixed(0.25), pinned]), "mix.other: occurs twice with the same filter"),
        (
            of(vec![mixed(0.5), Mixed { filter: "x > 0".into(), ..mixed(0.5) }]),
            "mix: takes 96 of 96 rows, which leaves none for 'd'",
        ),
        (of(vec![mixed(0.25); 65]), "mix: holds 65 datasets, expected at most 64"),
        (
            Train { group_by: vec!["query".into()], ..of(vec![mixed(0.5)]) },
            "mix: cannot be combined with group_by",
        ),
        (
            Train { remainder: v1::Remainder::Short.into(), ..of(vec![mixed(0.5)]) },
            "remainder: a mixture has the same fractions",
        ),
        (
            Train { remainder: v1::Remainder::Pad.into(), dedupe: Vec::new(), ..of(vec![mixed(0.5)]) },
            "remainder: a mixture has the same fractions",
        ),
        (
            Train { batch_size: 1 << 20, ..of(vec![mixed(0.25)]) },
            "mix.other: fraction: the dataset has 10007 rows, a step takes 262144",
        ),
    ] {
        let others = train.mix.len();
        let found = refused(train, others);
        assert!(found.contains(words), "{found}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_of_a_mixture_resolves_to_the_job_of_its_request() {
    let _counters = Counters::from_zero().await;
    let reader = dataset().await;
    // Without an explicit window, the default of each dataset would depend on its own size.
    let asked = Train { shuffle: None, batch_size: 4096, ..mixture(1) };
    let job = job(&asked, &reader);
    let again = crate::fixture::job(job.train(), &reader);
    assert_eq!(again.summary(), job.summary());
    let other = crate::fixture::job(&Train { seed: 1, ..asked }, &reader);
    assert_ne!(other.summary().plan_hash, job.summary().plan_hash);
}

#[tokio::test(flavor = "multi_thread")]
async fn windows_of_all_datasets_stay_loaded_between_batches() {
    let counters = Counters::from_zero().await;
    let reader = dataset().await;
    let job = job(&mixture(1), &reader);
    // No memory is left for caching: frames stay only while a window is held.
    let room = job.summary().window_bytes;
    let loader = loader(room + room / 8, 2, Config { window_prefetch_bytes: 0, ..Config::default() });
    drain(loader.batches(job, 0, 0)).await.unwrap();
    let made = counters.get("forebay_decode_duration_seconds");
    // Each of about 27 blocks is loaded once per round of its dataset. If windows were released for each other, each
    // batch would load a window.
    assert!(made < 100, "{made} frames were made");
}
