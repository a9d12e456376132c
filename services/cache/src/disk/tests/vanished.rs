//! Folders that another program removes while the tier uses them.

use std::{fs, os::unix::fs::PermissionsExt};

use super::*;

fn marker(fixture: &Fixture) -> PathBuf {
    fixture.folder().join(crate::disk::folder::MARKER)
}

#[tokio::test]
async fn a_removed_folder_is_marked_and_locked_again_before_files_are_written() {
    let fixture = Fixture::new();
    let disk = fixture.open(MIB);
    for entry in 1..=3 {
        assert_eq!(put(&disk, entry, &[1], 1000).await, Outcome::Written);
    }
    fs::remove_dir_all(fixture.directory.path()).unwrap();
    assert_eq!(put(&disk, 4, &[1], 1000).await, Outcome::Written);
    assert_eq!(fs::metadata(fixture.folder()).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(disk.shared.io_errors.count(IoErrorKind::Folder), 1);
    for entry in 1..=3 {
        assert_eq!(disk.sections(entry, &[1]), [false], "its file was removed");
        assert_eq!(put(&disk, entry, &[1], 1000).await, Outcome::Written);
    }
    assert_consistent(&fixture, &disk);
    let error = fixture.try_open(DiskConfig::default(), Arc::new(NoForecast)).err();
    assert!(matches!(error, Some(Error::InUse { .. })), "the folder has one owner");

    drop(disk);
    let disk = fixture.open(MIB);
    for entry in 1..=4 {
        assert!(has(&disk, entry, 1, 1000).await);
    }
}

#[tokio::test]
async fn a_removed_marker_is_written_again_in_a_folder_with_files() {
    let fixture = Fixture::new();
    let disk = fixture.open(MIB);
    assert_eq!(put(&disk, 1, &[1], 1000).await, Outcome::Written);
    fs::remove_file(marker(&fixture)).unwrap();
    assert_eq!(put(&disk, 2, &[1], 1000).await, Outcome::Written);
    assert!(marker(&fixture).exists());
    drop(disk);
    let disk = fixture.open(MIB);
    assert!(has(&disk, 1, 1, 1000).await && has(&disk, 2, 1, 1000).await);
}

#[tokio::test]
async fn a_folder_whose_marker_is_missing_is_opened_if_only_a_cache_wrote_its_files() {
    let fixture = Fixture::new();
    let disk = fixture.open(MIB);
    assert_eq!(put(&disk, 1, &[1], 1000).await, Outcome::Written);
    drop(disk);
    fs::remove_file(marker(&fixture)).unwrap();
    assert!(has(&fixture.open(MIB), 1, 1, 1000).await);
    for foreign in ["notes.txt", "00/notes.txt", "more/notes.txt"] {
        fs::remove_file(marker(&fixture)).unwrap();
        let path = fixture.folder().join(foreign);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "foreign").unwrap();
        let error = fixture.try_open(DiskConfig::default(), Arc::new(NoForecast)).err();
        assert!(matches!(error, Some(Error::NotACache { .. })), "{foreign}");
        fs::remove_file(path).unwrap();
        fs::remove_dir(fixture.folder().join("more")).ok();
        fixture.open(MIB);
    }
}

#[tokio::test]
async fn a_folder_that_another_process_has_taken_is_neither_written_nor_emptied() {
    let fixture = Fixture::new();
    let first = fixture.open(3 * 4096);
    for entry in 1..=3 {
        assert_eq!(put(&first, entry, &[1], 1000).await, Outcome::Written);
    }
    fs::remove_dir_all(fixture.folder()).unwrap();
    let second = fixture.open(MIB);
    for entry in 1..=3 {
        assert_eq!(put(&second, entry, &[1], 1000).await, Outcome::Written);
    }
    let files = fixture.on_disk();
    assert_eq!(first.remove_where(|entry| entry == 1).await, 4096);
    assert_eq!(put(&first, 4, &[1], 1000).await, Outcome::Failing);
    assert_eq!(first.resident_bytes(), 0, "its files were removed");
    assert!(first.shared.io_errors.count(IoErrorKind::Folder) > 0);
    assert_eq!(fixture.on_disk(), files);
    assert_consistent(&fixture, &second);
    for entry in 1..=3 {
        assert!(has(&second, entry, 1, 1000).await);
    }
}
