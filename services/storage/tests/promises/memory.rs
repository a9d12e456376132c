//! Snapshots and manifests are charged to a memory budget, and footers are parsed by the executor of the request.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use forebay_cache::Budget;
use forebay_storage::{Compute, Error, Snapshot, load_snapshot};

use crate::common::{Fixture, batch, integers, read_all, rows};

/// A dataset of many files, whose snapshots are charged to `budget`.
fn charged(budget: &Budget) -> Fixture {
    let mut fixture = Fixture::new();
    for file in 0..100 {
        fixture.write(&format!("part-{file:03}.parquet"), &rows([file]));
    }
    fixture.state = fixture.state.charged_to(budget.clone());
    fixture
}

/// Checks that a snapshot was refused for lack of memory, and that the message has both sizes. Returns the size that is needed.
fn refused(result: Result<Arc<Snapshot>, Error>, expected_limit: u64) -> u64 {
    let error = result.unwrap_err();
    let Error::Limit { limit, found, .. } = error else { panic!("{error:?}") };
    assert!(error.is_without_snapshot_memory() && limit == expected_limit && found > limit, "{error}");
    let text = error.to_string();
    assert!(text.contains(&format!("is {found}, the limit is {limit}")), "{text}");
    assert!(text.contains("memory of the snapshot and its manifest in bytes (cache_memory"), "{text}");
    found
}

#[tokio::test]
async fn a_snapshot_above_the_memory_budget_is_refused_by_both_sizes_and_fits_after_a_release() {
    let budget = Budget::new(1 << 30);
    let fixture = charged(&budget);
    let mut others = budget.try_reserve((1 << 30) - 1000, &[]).unwrap();
    others.keep();
    refused(fixture.take().await, 1000);
    assert_eq!(budget.reserved_bytes(), (1 << 30) - 1000, "nothing is held for a snapshot that was refused");
    assert!(!fixture.manifests().exists());
    drop(others);

    let snapshot = fixture.take().await.unwrap();
    let bytes = snapshot.memory_bytes();
    assert!(bytes > 100 * 100, "{bytes} bytes for 100 files");
    assert_eq!(budget.reserved_bytes(), bytes);
    assert_eq!((budget.available_bytes(), budget.tier_bytes()), ((1 << 30) - bytes, (1 << 30) - bytes));
    drop(snapshot);
    assert_eq!(budget.reserved_bytes(), 0);
}

#[tokio::test]
async fn each_snapshot_in_memory_is_charged_until_its_last_use() {
    let budget = Budget::new(1 << 20);
    let fixture = charged(&budget);
    let first = fixture.take().await.unwrap();
    let reader = fixture.reader(&first);
    let one = first.memory_bytes();
    fixture.write("part-100.parquet", &rows([100]));
    let second = fixture.refresh(&first).await.unwrap();
    assert_eq!(budget.reserved_bytes(), one + second.memory_bytes());
    let loaded = load_snapshot("test", first.id(), &fixture.state).await.unwrap();
    assert_eq!(loaded.memory_bytes(), one, "what is loaded is as large as what was taken");
    assert_eq!(budget.reserved_bytes(), 2 * one + second.memory_bytes());
    drop((first, loaded));
    assert_eq!(budget.reserved_bytes(), one + second.memory_bytes(), "a reader keeps its snapshot");
    drop((reader, second));
    assert_eq!(budget.reserved_bytes(), 0);
}

#[tokio::test]
async fn a_manifest_that_does_not_fit_next_to_its_snapshot_is_not_read() {
    let budget = Budget::new(1 << 20);
    let fixture = charged(&budget);
    let id = fixture.take().await.unwrap().id().to_owned();
    let manifest = std::fs::metadata(fixture.manifests().join(format!("{id}.manifest"))).unwrap().len();
    for left in [manifest - 1, manifest + 1] {
        let mut others = budget.try_reserve((1 << 20) - left, &[]).unwrap();
        others.keep();
        let needed = refused(load_snapshot("test", &id, &fixture.state).await.map(Arc::new), left);
        assert_eq!(needed, if left < manifest { manifest } else { 2 * manifest });
        assert_eq!(budget.reserved_bytes(), (1 << 20) - left);
    }
    load_snapshot("test", &id, &fixture.state).await.unwrap();
}

#[tokio::test]
async fn a_refresh_without_changes_makes_no_second_copy_and_still_replaces_a_damaged_manifest() {
    let budget = Budget::new(1 << 20);
    let fixture = charged(&budget);
    let before = fixture.take().await.unwrap();
    let same = fixture.refresh(&before).await.unwrap();
    assert!(Arc::ptr_eq(&before, &same));
    assert_eq!(budget.reserved_bytes(), before.memory_bytes());

    let path = fixture.manifests().join(format!("{}.manifest", before.id()));
    let sound = std::fs::read(&path).unwrap();
    std::fs::write(&path, &sound[..sound.len() - 1]).unwrap();
    let again = fixture.refresh(&before).await.unwrap();
    assert_eq!(again.id(), before.id());
    assert_eq!(std::fs::read(&path).unwrap(), sound);
    std::fs::remove_file(&path).unwrap();
    fixture.refresh(&again).await.unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), sound);
}

/// An executor that counts its operations and runs each on a thread of its own.
fn counted() -> (Compute, Arc<AtomicUsize>) {
    let count = Arc::<AtomicUsize>::default();
    let counter = Arc::clone(&count);
    let compute = Compute::new(move |work| {
        counter.fetch_add(1, Ordering::Relaxed);
        std::thread::spawn(work);
    });
    (compute, count)
}

#[tokio::test]
async fn footers_and_statistics_are_parsed_by_the_executor_of_their_request() {
    let mut fixture = Fixture::new();
    for file in 0..3 {
        fixture.write(&format!("{file}.parquet"), &rows([file]));
    }
    let (of_dataset, taken) = counted();
    fixture.state = fixture.state.computed_by(of_dataset);
    let snapshot = fixture.take().await.unwrap();
    assert_eq!(taken.load(Ordering::Relaxed), 3);

    // A restarted process parses the copies on disk.
    fixture.restart();
    let (of_stream, parsed) = counted();
    let reader = fixture.reader(&snapshot).computed_by(of_stream);
    read_all(&reader).await.unwrap();
    assert_eq!(parsed.load(Ordering::Relaxed), 3);
    reader.statistics(0, &[0]).await.unwrap();
    reader.page_statistics(0, &[0]).await.unwrap();
    assert_eq!((parsed.load(Ordering::Relaxed), taken.load(Ordering::Relaxed)), (5, 3));
}

#[tokio::test]
async fn the_columns_of_a_wide_footer_are_chosen_by_the_executor_of_their_request() {
    let mut fixture = Fixture::new();
    let names: Vec<String> = (0..3000).map(|column| format!("c{column}")).collect();
    fixture.write("a.parquet", &batch(names.iter().map(|name| (name.as_str(), integers([1])))));
    let snapshot = fixture.take().await.unwrap();
    fixture.restart();
    let (compute, parsed) = counted();
    fixture.reader(&snapshot).computed_by(compute).fetch(0, &[7]).await.unwrap();
    assert_eq!(parsed.load(Ordering::Relaxed), 2, "the footer, and its part");
}
