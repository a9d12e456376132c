//! Files that are not what was written, and disks that fail.

use std::{fs, sync::atomic::Ordering::Relaxed, time::Duration};

use super::*;

#[tokio::test]
async fn a_flipped_byte_is_a_miss_and_the_file_is_gone() {
    let rig = Rig::new();
    let disk = rig.open(MIB);
    put(&disk, 1, &[1, 2], 1000).await;
    put(&disk, 2, &[1], 1000).await;
    let path = rig.on_disk().remove(0);
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, bytes).unwrap();

    assert!(has(&disk, 1, 1, 1000).await, "nobody looked at the other one yet");
    assert!(!has(&disk, 1, 2, 1000).await);
    assert_eq!(disk.sections(1, &[1, 2]), [false, false]);
    assert!(has(&disk, 2, 1, 1000).await);
    assert_eq!(disk.shared.troubles.count(Trouble::Checksum), 1);
    agree(&rig, &disk);
    assert_eq!(put(&disk, 1, &[1, 2], 1000).await, Outcome::Written);
    assert!(has(&disk, 1, 2, 1000).await);
}

#[tokio::test]
async fn a_read_that_fails_is_a_miss_and_the_file_is_gone() {
    for (fault, trouble) in [
        (faulty::Faults { flip_reads: true, ..Default::default() }, Trouble::Checksum),
        (faulty::Faults { cut_reads: true, ..Default::default() }, Trouble::Length),
        (faulty::Faults { fail_reads: Some(5), ..Default::default() }, Trouble::Read),
    ] {
        let rig = Rig::new();
        let disk = rig.open(MIB);
        put(&disk, 1, &[1], 1000).await;
        *rig.files.faults() = fault;
        assert!(!has(&disk, 1, 1, 1000).await);
        assert_eq!(disk.shared.troubles.count(trouble), 1);
        assert_eq!(disk.resident_bytes(), 0);
        agree(&rig, &disk);
    }
}

#[tokio::test]
async fn too_many_open_files_are_not_the_files_fault() {
    let rig = Rig::new();
    let disk = rig.open(MIB);
    put(&disk, 1, &[1], 1000).await;
    rig.files.faults().fail_reads = Some(24);
    assert!(!has(&disk, 1, 1, 1000).await);
    rig.files.faults().fail_reads = None;
    assert!(has(&disk, 1, 1, 1000).await);
}

#[tokio::test]
async fn a_file_that_somebody_deleted_is_a_plain_miss() {
    let rig = Rig::new();
    let disk = rig.open(MIB);
    put(&disk, 1, &[1], 1000).await;
    fs::remove_file(&rig.on_disk()[0]).unwrap();
    assert!(!has(&disk, 1, 1, 1000).await);
    assert_eq!(disk.sections(1, &[1]), [false]);
    assert_eq!(disk.resident_bytes(), 0);
    assert_eq!(disk.shared.troubles.count(Trouble::Read), 0);
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_is_pass_through() {
    let rig = Rig::new();
    let disk = rig.open(MIB);
    assert_eq!(put(&disk, 1, &[1], 1000).await, Outcome::Written);
    rig.files.faults().room_bytes = Some(500);
    assert_eq!(put(&disk, 2, &[1], 1000).await, Outcome::Failing);
    assert_eq!(disk.shared.troubles.count(Trouble::NoSpace), 1);
    agree(&rig, &disk);
    let writes = rig.files.writes.load(Relaxed);
    assert_eq!(put(&disk, 2, &[1], 1000).await, Outcome::Failing);
    assert_eq!(rig.files.writes.load(Relaxed), writes, "not tried for a while");
    assert!(has(&disk, 1, 1, 1000).await, "what is there is read");

    tokio::time::advance(Duration::from_millis(1001)).await;
    assert_eq!(put(&disk, 2, &[1], 1000).await, Outcome::Failing);
    assert_eq!(rig.files.writes.load(Relaxed), writes + 1);
    tokio::time::advance(Duration::from_millis(1001)).await;
    rig.files.faults().room_bytes = None;
    assert_eq!(put(&disk, 2, &[1], 1000).await, Outcome::Failing, "the pause has doubled");
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(put(&disk, 2, &[1], 1000).await, Outcome::Written);
    agree(&rig, &disk);
}

#[tokio::test(start_paused = true)]
async fn whichever_operation_fails_what_is_read_is_right_and_the_books_are_too() {
    let mut last = 1;
    for nth in 0.. {
        let rig = Rig::new();
        rig.files.faults().fail_nth = Some(nth);
        let disk = rig.open_with(4 * 4096, Arc::new(ByEntryNumber));
        for entry in [9, 8, 7, 6, 5, 4] {
            put(&disk, entry, &[1, 2], 1000).await;
            tokio::time::advance(Duration::from_secs(61)).await;
            for entry in 4..=9 {
                has(&disk, entry, 1, 1000).await;
            }
        }
        disk.remove_where(|entry| entry == 5).await;
        let removals_failed = disk.shared.troubles.count(Trouble::Remove);
        if removals_failed == 0 {
            agree(&rig, &disk);
        }
        drop(disk);
        let disk = rig.open_with(4 * 4096, Arc::new(ByEntryNumber));
        if rig.files.operations.load(Relaxed) > nth && disk.shared.troubles.count(Trouble::List) == 0 {
            agree(&rig, &disk);
        }
        if rig.files.operations.load(Relaxed) <= nth {
            last = nth;
            break;
        }
    }
    assert!(last > 40, "the scenario has only {last} operations");
}
