//! Eviction, rejection and pinning.

use super::*;

#[tokio::test]
async fn the_entry_needed_last_is_evicted_and_one_needed_even_later_is_rejected() {
    let fixture = Fixture::new();
    let disk = fixture.open_with(3 * 4096, Arc::new(ByEntryNumber));
    for entry in [30, 10, 40] {
        assert_eq!(put(&disk, entry, &[1], 1000).await, Outcome::Written);
    }
    assert_eq!(put(&disk, 20, &[1], 1000).await, Outcome::Written);
    assert_eq!(disk.sections(40, &[1]), [false]);
    assert_eq!(put(&disk, 35, &[1], 1000).await, Outcome::NeededLater);
    assert_eq!(put(&disk, 25, &[1], 5000).await, Outcome::NeededLater, "only one of two is needed later");
    assert_eq!(put(&disk, 5, &[1], 5000).await, Outcome::Written, "replaces 30 and 20");
    assert_eq!(disk.sections(10, &[1]), [true]);
    assert_eq!(put(&disk, 1, &[1], 20_000).await, Outcome::TooLarge);
    assert_consistent(&fixture, &disk);
}

#[tokio::test]
async fn without_a_forecast_the_least_recently_used_entry_is_evicted() {
    let fixture = Fixture::new();
    let disk = fixture.open(3 * 4096);
    for entry in [1, 2, 3] {
        put(&disk, entry, &[1], 1000).await;
    }
    assert!(has(&disk, 1, 1, 1000).await);
    assert_eq!(put(&disk, 4, &[1], 1000).await, Outcome::Written);
    assert_eq!(disk.sections(2, &[1]), [false]);
    assert_consistent(&fixture, &disk);
}

#[tokio::test]
async fn sections_of_one_entry_do_not_evict_each_other() {
    let fixture = Fixture::new();
    let disk = fixture.open(2 * 4096);
    assert_eq!(put(&disk, 1, &[1], 1000).await, Outcome::Written);
    assert_eq!(put(&disk, 1, &[2], 5000).await, Outcome::NeededLater);
    assert!(has(&disk, 1, 1, 1000).await);
}

#[tokio::test]
async fn pinned_entries_are_never_evicted() {
    let fixture = Fixture::new();
    let disk = fixture.open(2 * 4096);
    disk.pin(1);
    disk.pin(1);
    for entry in [1, 2, 3, 4] {
        assert_eq!(put(&disk, entry, &[1], 1000).await, Outcome::Written);
    }
    disk.pin(4);
    disk.unpin(1);
    assert_eq!(put(&disk, 5, &[1], 1000).await, Outcome::NeededLater, "1 is still pinned once");
    disk.unpin(1);
    disk.unpin(1);
    assert_eq!(put(&disk, 5, &[1], 1000).await, Outcome::Written);
    assert_eq!(disk.sections(1, &[1]), [false]);
    assert_consistent(&fixture, &disk);
}

#[tokio::test]
async fn a_pinned_entry_evicts_entries_that_are_needed_sooner() {
    let fixture = Fixture::new();
    let disk = fixture.open_with(2 * 4096, Arc::new(ByEntryNumber));
    for entry in [1, 2] {
        assert_eq!(put(&disk, entry, &[1], 1000).await, Outcome::Written);
    }
    assert_eq!(put(&disk, 9, &[1], 1000).await, Outcome::NeededLater);
    disk.pin(9);
    assert_eq!(disk.pinned_bytes(), 0);
    assert_eq!(put(&disk, 9, &[1], 1000).await, Outcome::Written);
    assert_eq!(disk.pinned_bytes(), 4096);
    assert_eq!((disk.sections(1, &[1]), disk.sections(2, &[1])), (vec![true], vec![false]));
    disk.pin(1);
    disk.pin(8);
    assert_eq!(put(&disk, 8, &[1], 1000).await, Outcome::NeededLater, "all entries are pinned");
    assert_consistent(&fixture, &disk);
}

#[tokio::test]
async fn removed_entries_free_their_bytes() {
    let fixture = Fixture::new();
    let disk = fixture.open(MIB);
    for entry in 1..=6 {
        put(&disk, entry, &[1], 1000).await;
    }
    put(&disk, 2, &[2], 1000).await;
    assert_eq!(disk.remove_where(|entry| entry % 2 == 0).await, 4 * 4096);
    assert_eq!(disk.resident_bytes(), 3 * 4096);
    assert_eq!((disk.sections(2, &[1, 2]), disk.sections(3, &[1])), (vec![false, false], vec![true]));
    assert_consistent(&fixture, &disk);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_memory_of_the_index_has_a_limit_also_after_a_recovery() {
    let fixture = Fixture::new();
    let names: Vec<u128> = (1..=100).collect();
    // Five files with 100 sections each.
    let limited = |files: u64| DiskConfig {
        capacity_bytes: Some(100 * MIB),
        max_index_bytes: files * (1024 + 100 * 128),
        ..patient()
    };
    let disk = fixture.try_open(limited(5), Arc::new(NoForecast)).unwrap();
    for entry in 1..=20 {
        assert_eq!(put(&disk, entry << 120, &names, 10).await, Outcome::Written, "others are evicted");
        assert!(disk.shared.index.lock().resident().fits(disk.shared.capacity()));
    }
    assert_eq!(fixture.on_disk().len(), 5);
    let too_many: Vec<u128> = (1..=600).collect();
    assert_eq!(put(&disk, 21 << 120, &too_many, 10).await, Outcome::TooLarge);
    drop(disk);
    let disk = fixture.try_open(limited(3), Arc::new(NoForecast)).unwrap();
    assert_eq!(fixture.on_disk().len(), 3);
    assert!(disk.shared.index.lock().resident().fits(disk.shared.capacity()));
    assert_consistent(&fixture, &disk);
}
