//! Permissions of the folder and its files.

use std::{fs::Permissions, os::unix::fs::PermissionsExt, path::Path};

use rustix::fs::Mode;

use super::*;

/// Sets the usual umask, with which other users can read new files, and returns a fixture.
fn fixture() -> Fixture {
    rustix::process::umask(Mode::from_raw_mode(0o022));
    Fixture::new()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[tokio::test]
async fn other_users_cannot_access_the_folder_and_its_files() {
    let fixture = fixture();
    let disk = fixture.open(MIB);
    assert_eq!(put(&disk, 1, &[1], 1000).await, Outcome::Written);
    let file = fixture.on_disk().remove(0);
    assert_eq!(mode(&fixture.folder()), 0o700);
    assert_eq!(mode(file.parent().unwrap()), 0o700);
    assert_eq!(mode(&file), 0o600);
    assert_eq!(mode(&fixture.folder().join("CACHEDIR.TAG")), 0o600);
}

#[tokio::test]
async fn other_users_lose_access_to_a_folder_of_an_earlier_version() {
    let fixture = fixture();
    let disk = fixture.open(MIB);
    assert_eq!(put(&disk, 1, &[1], 1000).await, Outcome::Written);
    drop(disk);
    fs::set_permissions(fixture.folder(), Permissions::from_mode(0o755)).unwrap();
    let disk = fixture.open(MIB);
    assert_eq!(mode(&fixture.folder()), 0o700);
    assert!(has(&disk, 1, 1, 1000).await);
}

#[test]
fn a_folder_that_is_not_a_cache_keeps_its_permissions() {
    let fixture = fixture();
    fs::create_dir_all(fixture.folder()).unwrap();
    fs::set_permissions(fixture.folder(), Permissions::from_mode(0o755)).unwrap();
    fs::write(fixture.folder().join("data.parquet"), "precious").unwrap();
    assert!(fixture.try_open(DiskConfig::default(), Arc::new(NoForecast)).is_err());
    assert_eq!(mode(&fixture.folder()), 0o755);
}
