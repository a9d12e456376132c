//! Recovery from a disk with errors.

use super::*;

/// Error of a path that does not exist, on Linux and macOS.
const ENOENT: i32 = 2;
/// Error of a disk that cannot be read, on Linux and macOS.
const EIO: i32 = 5;
/// Error of a process with too many open files, on Linux and macOS.
const EMFILE: i32 = 24;

/// Writes a file for each of `entries`.
async fn filled(capacity_bytes: u64, entries: &[u128]) -> Fixture {
    let fixture = Fixture::new();
    let disk = fixture.open(capacity_bytes);
    for &entry in entries {
        assert_eq!(put(&disk, entry, &[1], 1000).await, Outcome::Written);
    }
    fixture
}

#[tokio::test]
async fn a_file_whose_metadata_cannot_be_read_does_not_hide_the_others() {
    for (code, reported) in [(EIO, 1), (ENOENT, 0)] {
        let fixture = filled(MIB, &[1, 2, 3]).await;
        let paths = fixture.on_disk();
        let name = paths[1].file_name().unwrap().to_owned();
        fixture.files.faults().fail_metadata = Some((name, code));
        let disk = fixture.open(MIB);
        for entry in [1, 2, 3] {
            assert_eq!(has(&disk, entry, 1, 1000).await, entry != 2);
        }
        assert_eq!(disk.resident_bytes(), 2 * 4096);
        assert_eq!(disk.shared.io_errors.count(IoErrorKind::List), reported);
        assert_eq!(fixture.on_disk(), paths, "it is not deleted");
        assert_eq!(put(&disk, 4, &[1], 1000).await, Outcome::Written);
    }
}

#[tokio::test]
async fn a_subfolder_whose_metadata_cannot_be_read_is_recovered() {
    let fixture = filled(MIB, &[1 << 120, 2 << 120]).await;
    fixture.files.faults().fail_metadata = Some(("01".into(), EIO));
    let disk = fixture.open(MIB);
    assert!(has(&disk, 1 << 120, 1, 1000).await && has(&disk, 2 << 120, 1, 1000).await);
    assert_consistent(&fixture, &disk);
}

#[tokio::test]
async fn files_whose_headers_cannot_be_read_are_kept_and_count_towards_the_capacity() {
    const CAPACITY_BYTES: u64 = 4 * 4096;
    for code in [EMFILE, EIO] {
        let fixture = filled(CAPACITY_BYTES, &[1, 2, 3, 4]).await;
        let paths = fixture.on_disk();
        fixture.files.faults().fail_reads = Some(code);
        let disk = fixture.open(CAPACITY_BYTES);
        fixture.files.faults().fail_reads = None;
        assert_eq!(disk.shared.io_errors.count(IoErrorKind::Read), 4);
        assert_eq!(fixture.on_disk(), paths);
        assert!(!has(&disk, 1, 1, 1000).await);
        assert_consistent(&fixture, &disk);
        assert_eq!(put(&disk, 5, &[1], 1000).await, Outcome::Written, "another file is evicted");
        assert_consistent(&fixture, &disk);
        drop(disk);

        let disk = fixture.open(CAPACITY_BYTES);
        let mut found = 0;
        for entry in 1..=4 {
            found += usize::from(has(&disk, entry, 1, 1000).await);
        }
        assert_eq!(found, 3, "the others are intact");
        assert_consistent(&fixture, &disk);
    }
}

#[tokio::test]
async fn a_file_that_is_truncated_during_the_recovery_is_deleted() {
    let fixture = filled(MIB, &[1]).await;
    fixture.files.faults().cut_reads = true;
    let disk = fixture.open(MIB);
    assert_eq!(disk.shared.io_errors.count(IoErrorKind::Length), 1);
    assert_eq!(fixture.on_disk().len(), 0);
    assert_consistent(&fixture, &disk);
}

#[tokio::test]
async fn a_file_that_is_deleted_during_the_recovery_is_no_error() {
    let fixture = filled(MIB, &[1]).await;
    fixture.files.faults().fail_reads = Some(ENOENT);
    let disk = fixture.open(MIB);
    assert_eq!(disk.resident_bytes(), 0);
    assert_eq!(disk.shared.io_errors.count(IoErrorKind::Read), 0);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_until_all_folders_are_listed() {
    const CAPACITY_BYTES: u64 = 3 * 4096;
    let fixture = filled(CAPACITY_BYTES, &[1 << 120, 2 << 120, 3 << 120]).await;
    let paths = fixture.on_disk();
    fixture.files.faults().fail_list = Some(("01".into(), EMFILE));
    let config = DiskConfig { capacity_bytes: Some(CAPACITY_BYTES), ..patient() };
    let (disk, recovery) = fixture.try_open_unrecovered(config, Arc::new(NoForecast)).unwrap();
    let recovering = tokio::spawn(recovery.run_in_background());
    disk.recovered().await;
    assert!(!has(&disk, 1 << 120, 1, 1000).await);
    assert!(has(&disk, 2 << 120, 1, 1000).await);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(disk.shared.io_errors.count(IoErrorKind::List) > 1, "it is listed again");
    assert_eq!(put(&disk, 4 << 120, &[1], 1000).await, Outcome::Failing);
    assert_eq!(fixture.on_disk(), paths);

    fixture.files.faults().fail_list = None;
    recovering.await.unwrap();
    assert!(has(&disk, 1 << 120, 1, 1000).await);
    assert_consistent(&fixture, &disk);
    assert_eq!(put(&disk, 4 << 120, &[1], 1000).await, Outcome::Written, "another file is evicted");
    assert_consistent(&fixture, &disk);
}

#[tokio::test]
async fn subfolders_are_recovered_if_the_folder_of_the_cache_cannot_be_listed() {
    let fixture = filled(MIB, &[1, 2 << 120]).await;
    fixture.files.faults().fail_list = Some((FOLDER.into(), EIO));
    let disk = fixture.open(MIB);
    assert_eq!(disk.shared.io_errors.count(IoErrorKind::List), 1);
    assert!(has(&disk, 1, 1, 1000).await && has(&disk, 2 << 120, 1, 1000).await);
    assert_eq!(put(&disk, 3, &[1], 1000).await, Outcome::Written);
    assert_consistent(&fixture, &disk);
}

#[tokio::test(start_paused = true)]
async fn the_default_capacity_is_determined_when_all_folders_are_listed() {
    let fixture = filled(MIB, &[1 << 120, 2 << 120]).await;
    let paths = fixture.on_disk();
    fixture.files.faults().fail_list = Some(("01".into(), EMFILE));
    let config = DiskConfig { capacity_bytes: None, ..patient() };
    let (disk, recovery) = fixture.try_open_unrecovered(config, Arc::new(NoForecast)).unwrap();
    let recovering = tokio::spawn(recovery.run_in_background());
    disk.recovered().await;
    assert_eq!(disk.capacity_bytes(), 0, "the size of some files is unknown");
    assert!(has(&disk, 2 << 120, 1, 1000).await, "no file is evicted");
    fixture.files.faults().fail_list = None;
    recovering.await.unwrap();
    assert!(disk.capacity_bytes() > 0);
    assert_eq!(fixture.on_disk(), paths);
}
