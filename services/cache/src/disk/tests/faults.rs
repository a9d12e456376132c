//! Damaged files and failing disks.

use std::{fs, sync::atomic::Ordering::Relaxed, time::Duration};

use super::*;

#[tokio::test]
async fn a_flipped_byte_is_a_miss_and_the_file_is_deleted() {
    let fixture = Fixture::new();
    let disk = fixture.open(MIB);
    put(&disk, 1, &[1, 2], 1000).await;
    put(&disk, 2, &[1], 1000).await;
    let path = fixture.on_disk().remove(0);
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, bytes).unwrap();

    assert!(has(&disk, 1, 1, 1000).await, "the damaged section was not read yet");
    assert!(!has(&disk, 1, 2, 1000).await);
    assert_eq!(disk.sections(1, &[1, 2]), [false, false]);
    assert!(has(&disk, 2, 1, 1000).await);
    assert_eq!(disk.shared.io_errors.count(IoErrorKind::Checksum), 1);
    assert_consistent(&fixture, &disk);
    assert_eq!(put(&disk, 1, &[1, 2], 1000).await, Outcome::Written);
    assert!(has(&disk, 1, 2, 1000).await);
}

#[tokio::test]
async fn a_failed_read_is_a_miss_and_the_file_is_deleted() {
    for (fault, kind) in [
        (faulty::Faults { flip_reads: true, ..Default::default() }, IoErrorKind::Checksum),
        (faulty::Faults { cut_reads: true, ..Default::default() }, IoErrorKind::Length),
        (faulty::Faults { fail_reads: Some(5), ..Default::default() }, IoErrorKind::Read),
    ] {
        let fixture = Fixture::new();
        let disk = fixture.open(MIB);
        put(&disk, 1, &[1], 1000).await;
        *fixture.files.faults() = fault;
        assert!(!has(&disk, 1, 1, 1000).await);
        assert_eq!(disk.shared.io_errors.count(kind), 1);
        assert_eq!(disk.resident_bytes(), 0);
        assert_consistent(&fixture, &disk);
    }
}

#[tokio::test]
async fn too_many_open_files_do_not_delete_a_file() {
    let fixture = Fixture::new();
    let disk = fixture.open(MIB);
    put(&disk, 1, &[1], 1000).await;
    fixture.files.faults().fail_reads = Some(24);
    assert!(!has(&disk, 1, 1, 1000).await);
    fixture.files.faults().fail_reads = None;
    assert!(has(&disk, 1, 1, 1000).await);
}

#[tokio::test]
async fn an_externally_deleted_file_is_a_miss_without_an_error() {
    let fixture = Fixture::new();
    let disk = fixture.open(MIB);
    put(&disk, 1, &[1], 1000).await;
    fs::remove_file(&fixture.on_disk()[0]).unwrap();
    assert!(!has(&disk, 1, 1, 1000).await);
    assert_eq!(disk.sections(1, &[1]), [false]);
    assert_eq!(disk.resident_bytes(), 0);
    assert_eq!(disk.shared.io_errors.count(IoErrorKind::Read), 0);
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_rejects_writes_and_serves_reads() {
    let fixture = Fixture::new();
    let disk = fixture.open(MIB);
    assert_eq!(put(&disk, 1, &[1], 1000).await, Outcome::Written);
    fixture.files.faults().room_bytes = Some(500);
    assert_eq!(put(&disk, 2, &[1], 1000).await, Outcome::Failing);
    assert_eq!(disk.shared.io_errors.count(IoErrorKind::NoSpace), 1);
    assert_consistent(&fixture, &disk);
    let writes = fixture.files.writes.load(Relaxed);
    assert_eq!(put(&disk, 2, &[1], 1000).await, Outcome::Failing);
    assert_eq!(fixture.files.writes.load(Relaxed), writes, "not retried during the pause");
    assert!(has(&disk, 1, 1, 1000).await, "existing sections are readable");

    tokio::time::advance(Duration::from_millis(1001)).await;
    assert_eq!(put(&disk, 2, &[1], 1000).await, Outcome::Failing);
    assert_eq!(fixture.files.writes.load(Relaxed), writes + 1);
    tokio::time::advance(Duration::from_millis(1001)).await;
    fixture.files.faults().room_bytes = None;
    assert_eq!(put(&disk, 2, &[1], 1000).await, Outcome::Failing, "the pause has doubled");
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(put(&disk, 2, &[1], 1000).await, Outcome::Written);
    assert_consistent(&fixture, &disk);
}

#[tokio::test(start_paused = true)]
async fn reads_and_accounting_are_correct_whichever_operation_fails() {
    let mut last = 1;
    for nth in 0.. {
        let fixture = Fixture::new();
        fixture.files.faults().fail_nth = Some(nth);
        let disk = fixture.open_with(4 * 4096, Arc::new(ByEntryNumber));
        for entry in [9, 8, 7, 6, 5, 4] {
            put(&disk, entry, &[1, 2], 1000).await;
            tokio::time::advance(Duration::from_secs(61)).await;
            for entry in 4..=9 {
                has(&disk, entry, 1, 1000).await;
            }
        }
        disk.remove_where(|entry| entry == 5).await;
        let removals_failed = disk.shared.io_errors.count(IoErrorKind::Remove);
        if removals_failed == 0 {
            assert_consistent(&fixture, &disk);
        }
        drop(disk);
        let disk = fixture.open_with(4 * 4096, Arc::new(ByEntryNumber));
        if fixture.files.operations.load(Relaxed) > nth && disk.shared.io_errors.count(IoErrorKind::List) == 0
        {
            assert_consistent(&fixture, &disk);
        }
        if fixture.files.operations.load(Relaxed) <= nth {
            last = nth;
            break;
        }
    }
    assert!(last > 40, "the scenario has only {last} operations");
}

#[tokio::test(start_paused = true)]
#[allow(
    clippy::await_holding_lock,
    reason = "the lock is a disk that hangs; only the thread of the read waits for it"
)]
async fn a_disk_that_hangs_is_a_miss_and_is_not_asked_again_at_once() {
    let fixture = Fixture::new();
    let config = DiskConfig {
        capacity_bytes: Some(MIB),
        read_timeout: Duration::from_millis(20),
        concurrent_reads: 2,
        ..DiskConfig::default()
    };
    let disk = fixture.try_open(config, Arc::new(NoForecast)).unwrap();
    put(&disk, 1, &[1], 1000).await;
    {
        let hanging = fixture.files.read_gate.lock();
        let (found, ()) =
            tokio::join!(has(&disk, 1, 1, 1000), tokio::time::advance(Duration::from_millis(21)));
        assert!(!found, "a late read is a miss");
        for _ in 0..4 {
            assert!(!has(&disk, 1, 1, 1000).await, "the disk is not asked");
        }
        assert_eq!(disk.shared.io_errors.count(IoErrorKind::Read), 1, "the disk was asked once");
        assert_eq!(put(&disk, 2, &[1], 1000).await, Outcome::Written, "writes have threads of their own");
        drop(hanging);
    }
    // The pause ends, and the file is still there.
    *disk.shared.late_reads.lock() = Default::default();
    assert!(has(&disk, 1, 1, 1000).await);
    assert!(has(&disk, 2, 1, 1000).await);
}
