//! Lookups of a dataset whose writer overwrites, truncates and deletes files at any time.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use arrow_array::{Array, cast::AsArray, types::Int64Type};
use forebay_inference::{Config, LookupMemory, OnlineDataset, Requirements};
use forebay_loader::Loader;
use forebay_proto::v1::Train;

use crate::fixture::{Fixture, encoded, ids, pool, rows, spec, users};

const FILES: usize = 4;
const FILE_ROWS: i64 = 500;
const REFRESHES: usize = 200;

fn ids_of(file: usize) -> Range<i64> {
    file as i64 * FILE_ROWS..(file as i64 + 1) * FILE_ROWS
}

/// Changes one file: usually it is written completely.
async fn change(fixture: &Fixture, random: &mut fastrand::Rng, version: i64) {
    let file = random.usize(..FILES);
    let content = encoded(&users(ids_of(file), version));
    match random.u8(..8) {
        0 => fixture.delete(file).await,
        1 => fixture.put(file, content[..random.usize(..content.len())].to_vec()).await,
        _ => fixture.put(file, content).await,
    }
}

/// Looks up keys of all files until `stop` is set. Each file has rows of one version, also if a snapshot misses files.
async fn look_up_until(online: OnlineDataset, stop: Arc<AtomicBool>, lookups: Arc<AtomicU64>) {
    let mut lookup = online.lookup(&Train::default(), vec![]);
    while !stop.load(Ordering::Relaxed) {
        let asked: Vec<i64> = (0..FILES).flat_map(|file| ids_of(file).step_by(50)).collect();
        let rows = rows(&lookup.look_up(&ids(asked.clone())).await.unwrap());
        let (version, id) =
            (rows["version"].as_primitive::<Int64Type>(), rows["user_id"].as_primitive::<Int64Type>());
        assert_eq!(version, rows["again"].as_primitive::<Int64Type>());
        for file in 0..FILES {
            let of_file = (0..asked.len()).filter(|row| ids_of(file).contains(&asked[*row]));
            let mut versions: Vec<_> =
                of_file.clone().map(|row| version.is_valid(row).then(|| version.value(row))).collect();
            versions.dedup();
            assert_eq!(versions.len(), 1, "file {file}: {versions:?}");
            assert!(of_file.clone().all(|row| id.is_null(row) || id.value(row) == asked[row]));
        }
        lookups.fetch_add(1, Ordering::Relaxed);
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_lookup_fails_while_a_faulty_writer_changes_files_during_two_hundred_refreshes() {
    let (fixture, folder) = (Arc::new(Fixture::new()), tempfile::tempdir().unwrap());
    for file in 0..FILES {
        fixture.write(file, &users(ids_of(file), 0)).await;
    }
    let loader = Loader::new(1 << 29, forebay_loader::Config::default(), pool());
    loader.reserve_for_lookups(1 << 28).unwrap();
    let (pools, folder) = ((pool(), pool()), folder.path().to_owned());
    let online = OnlineDataset::new(
        "d",
        spec(&["user_id"], None),
        Config::default(),
        LookupMemory::new(loader),
        pools,
        folder,
        Requirements::default(),
    );
    online.load_snapshot(fixture.reader().await).await.unwrap();
    let (stop, lookups) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let callers: Vec<_> = (0..2)
        .map(|_| tokio::spawn(look_up_until(online.clone(), Arc::clone(&stop), Arc::clone(&lookups))))
        .collect();
    let changes = Arc::new(AtomicU64::new(0));
    let writer = tokio::spawn({
        let (fixture, stop, changes) = (Arc::clone(&fixture), Arc::clone(&stop), Arc::clone(&changes));
        async move {
            let mut random = fastrand::Rng::with_seed(7);
            for version in 1.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                change(&fixture, &mut random, version).await;
                changes.fetch_add(1, Ordering::Relaxed);
                // At any point of a refresh.
                for _ in 0..random.u32(..100) {
                    tokio::task::yield_now().await;
                }
            }
        }
    });
    let (mut taken_over, mut refused) = (0, 0);
    while taken_over + refused < REFRESHES || taken_over < 5 || refused < 5 {
        let before = changes.load(Ordering::Relaxed);
        while changes.load(Ordering::Relaxed) == before {
            tokio::task::yield_now().await;
        }
        let refreshed = match fixture.try_reader().await {
            Ok(reader) => online.load_snapshot(reader).await.is_ok(),
            Err(_) => false,
        };
        *if refreshed { &mut taken_over } else { &mut refused } += 1;
    }
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.unwrap();
    }
    writer.await.unwrap();
    println!(
        "{taken_over} snapshots taken over, {refused} refused, {} lookups",
        lookups.load(Ordering::Relaxed)
    );
    assert!(lookups.load(Ordering::Relaxed) > 100);
    // A writer that is correct again is followed.
    for file in 0..FILES {
        fixture.write(file, &users(ids_of(file), -1)).await;
    }
    online.load_snapshot(fixture.reader().await).await.unwrap();
    let rows = rows(&online.lookup(&Train::default(), vec![]).look_up(&ids([3])).await.unwrap());
    assert_eq!(rows["version"].as_primitive::<Int64Type>().value(0), -1);
}
