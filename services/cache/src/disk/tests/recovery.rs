//! Recovery when a tier is opened.

use std::{fs, sync::atomic::Ordering::Relaxed};

use futures::FutureExt;

use super::*;

#[tokio::test]
async fn sections_survive_a_restart() {
    let fixture = Fixture::new();
    let disk = fixture.open(MIB);
    assert_eq!(put(&disk, 7, &[1, 2, 3], 1000).await, Outcome::Written);
    assert_eq!(put(&disk, u128::MAX, &[1], 100_000).await, Outcome::Written);
    assert_eq!(put(&disk, 7, &[4, 3], 1000).await, Outcome::Written, "3 is present already");
    let resident_bytes = disk.resident_bytes();
    drop(disk);

    let disk = fixture.open(MIB);
    assert_eq!(disk.resident_bytes(), resident_bytes);
    assert_eq!(disk.sections(7, &[4, 1, 5, 3]), [true, true, false, true]);
    for name in 1..=4 {
        assert!(has(&disk, 7, name, 1000).await);
    }
    assert!(has(&disk, u128::MAX, 1, 100_000).await);
    assert_eq!(put(&disk, 7, &[9], 10).await, Outcome::Written);
    assert_consistent(&fixture, &disk);
}

#[tokio::test]
async fn a_header_longer_than_the_first_read_is_recovered() {
    let fixture = Fixture::new();
    let names: Vec<u128> = (0..500).collect();
    let disk = fixture.open(MIB);
    assert_eq!(put(&disk, 1, &names, 10).await, Outcome::Written);
    drop(disk);
    let disk = fixture.open(MIB);
    assert!(disk.get(1, &names).await.iter().all(Option::is_some));
}

#[tokio::test]
async fn damaged_and_foreign_files_are_deleted_when_the_tier_is_opened() {
    let fixture = Fixture::new();
    let disk = fixture.open(MIB);
    for entry in 1..=6 {
        put(&disk, entry, &[1, 2], 1000).await;
    }
    drop(disk);
    let paths = fixture.on_disk();
    let damage = |path: &PathBuf, change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = fs::read(path).unwrap();
        change(&mut bytes);
        fs::write(path, bytes).unwrap();
    };
    damage(&paths[0], &|bytes| bytes.truncate(bytes.len() - 1));
    damage(&paths[1], &Vec::clear);
    damage(&paths[2], &|bytes| bytes[8] += 1);
    damage(&paths[3], &|bytes| bytes[70] ^= 1);
    fs::rename(&paths[4], paths[4].with_extension("col.tmp")).unwrap();
    fs::write(fixture.folder().join("notes.txt"), "foreign").unwrap();
    fs::write(fixture.folder().join("00/notes.txt"), "foreign").unwrap();
    fs::create_dir(fixture.folder().join("more")).unwrap();
    fs::copy(&paths[5], paths[5].with_file_name(format!("{:032x}-{:016x}.col", 99, 1))).unwrap();

    let disk = fixture.open(MIB);
    let count = |kind| disk.shared.io_errors.count(kind);
    assert_eq!(
        (count(IoErrorKind::Length), count(IoErrorKind::Version), count(IoErrorKind::Header)),
        (2, 1, 2)
    );
    assert_eq!((count(IoErrorKind::Temporary), count(IoErrorKind::Foreign)), (1, 3));
    assert!(has(&disk, 6, 1, 1000).await);
    assert_eq!(fixture.on_disk(), paths[5..]);
    assert!(!fixture.folder().join("notes.txt").exists());
    assert_consistent(&fixture, &disk);
}

#[tokio::test]
async fn a_smaller_capacity_after_a_restart_evicts_the_entries_needed_last() {
    let fixture = Fixture::new();
    let disk = fixture.open(MIB);
    for entry in 1..=100 {
        put(&disk, entry, &[1], 1000).await;
    }
    drop(disk);
    let disk = fixture.open_with(10 * 4096 + 100, Arc::new(ByEntryNumber));
    assert_consistent(&fixture, &disk);
    for entry in 1..=100 {
        assert_eq!(disk.sections(entry, &[1]), [entry <= 10]);
    }
}

#[test]
fn a_folder_that_is_not_a_cache_is_rejected_and_unchanged() {
    let fixture = Fixture::new();
    let file = fixture.folder().join("00/data.parquet");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, "precious").unwrap();
    let error = fixture.try_open(DiskConfig::default(), Arc::new(NoForecast)).err();
    assert!(matches!(error, Some(Error::NotACache { .. })));
    assert!(file.exists());
    assert_eq!(fs::read_dir(fixture.folder()).unwrap().count(), 1);
}

#[test]
fn a_folder_can_be_opened_only_once_at_a_time() {
    let fixture = Fixture::new();
    let disk = fixture.open(MIB);
    let error = fixture.try_open(DiskConfig::default(), Arc::new(NoForecast)).err();
    assert!(matches!(error, Some(Error::InUse { .. })));
    drop(disk);
    fixture.open(MIB);
}

#[tokio::test(flavor = "multi_thread")]
#[allow(
    clippy::await_holding_lock,
    reason = "the lock is a disk that hangs; only the threads of the recovery wait for it"
)]
async fn before_the_recovery_reads_are_misses_and_writes_are_rejected_and_no_file_is_lost_or_written_twice() {
    let fixture = Fixture::new();
    let disk = fixture.open(MIB);
    for entry in 1..=20 {
        assert_eq!(put(&disk, entry << 120, &[1], 1000).await, Outcome::Written);
    }
    drop(disk);
    let paths = fixture.on_disk();

    let config = DiskConfig { capacity_bytes: Some(21 * 4096), ..patient() };
    let hanging = fixture.files.read_gate.lock();
    let (disk, recovery) = fixture.try_open_unrecovered(config, Arc::new(NoForecast)).unwrap();
    let recovery = tokio::spawn(recovery.run_in_background());
    disk.pin(1 << 120);
    for entry in [1 << 120, 99] {
        assert!(!has(&disk, entry, 1, 1000).await);
        assert_eq!(put(&disk, entry, &[1], 1000).await, Outcome::Recovering);
    }
    let mut waiting = Box::pin(disk.write_space(4096));
    assert!(waiting.as_mut().now_or_never().is_none(), "it waits for the recovery");
    assert!(!disk.is_recovered());
    assert_eq!(fixture.on_disk(), paths);

    drop(hanging);
    recovery.await.unwrap();
    assert!(disk.is_recovered());
    let space = waiting.await;
    let sections = vec![section(1 << 120, 1, 1000)];
    assert_eq!(disk.put_within(space, 1 << 120, sections, LOAD_TIME).await, Outcome::Present);
    assert_eq!((fixture.on_disk(), disk.pinned_bytes()), (paths, 4096));
    for entry in 1..=20 {
        assert!(has(&disk, entry << 120, 1, 1000).await);
    }
    assert_eq!(put(&disk, 99, &[1], 1000).await, Outcome::Written);
    assert_eq!(put(&disk, 100, &[1], 1000).await, Outcome::Written, "another file is evicted");
    assert_eq!(fixture.on_disk().len(), 21);
    assert_consistent(&fixture, &disk);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_recovery_ends_and_leaves_the_files_to_the_next_process() {
    let fixture = Fixture::new();
    let disk = fixture.open(MIB);
    for entry in 1..=3 {
        put(&disk, entry, &[1], 1000).await;
    }
    drop(disk);
    let config = DiskConfig { capacity_bytes: Some(MIB), ..patient() };
    let (disk, recovery) = fixture.try_open_unrecovered(config.clone(), Arc::new(NoForecast)).unwrap();
    let operations = fixture.files.operations.load(Relaxed);
    {
        let _hanging = fixture.files.read_gate.lock();
        let mut recovery = Box::pin(recovery.run_in_background());
        assert!(recovery.as_mut().now_or_never().is_none());
        while fixture.files.reads.load(Relaxed) == 0 {
            std::thread::yield_now();
        }
    }
    assert!(!disk.is_recovered());
    drop(disk);
    // The thread of the recovery releases the folder when it stops.
    let (disk, recovery) = loop {
        match fixture.try_open_unrecovered(config.clone(), Arc::new(NoForecast)) {
            Err(Error::InUse { .. }) => tokio::task::yield_now().await,
            opened => break opened.unwrap(),
        }
    };
    let operations = fixture.files.operations.load(Relaxed) - operations;
    assert_eq!(operations, 3, "two folders were listed, and the read that was in progress has ended");
    recovery.run();
    for entry in 1..=3 {
        assert!(has(&disk, entry, 1, 1000).await);
    }
}

#[tokio::test]
async fn a_capacity_that_is_not_configured_follows_from_the_disk_once_the_files_are_recovered() {
    let fixture = Fixture::new();
    put(&fixture.open(MIB), 1, &[1], 1000).await;
    let config = DiskConfig { capacity_bytes: None, ..patient() };
    let (disk, recovery) = fixture.try_open_unrecovered(config, Arc::new(NoForecast)).unwrap();
    assert_eq!(disk.capacity_bytes(), 0);
    recovery.run();
    assert!(disk.capacity_bytes() > 4096);
    assert!(has(&disk, 1, 1, 1000).await, "it is not evicted");
    assert_eq!(put(&disk, 2, &[1], 1000).await, Outcome::Written);
    assert_consistent(&fixture, &disk);
}
