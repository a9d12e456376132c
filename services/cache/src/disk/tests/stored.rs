//! Size of the files of a tier that is not open.

use std::path::Path;

use super::*;

#[tokio::test]
async fn the_stored_size_is_the_resident_size_before_and_after_the_tier_is_opened() {
    let fixture = Fixture::new();
    let stored = || Disk::stored_bytes(fixture.directory.path());
    assert_eq!(stored(), 0, "the folder is missing");
    let disk = fixture.open(MIB);
    assert_eq!(stored(), 0);
    for entry in [1, 2, u128::MAX] {
        assert_eq!(put(&disk, entry, &[1, 2], 3000).await, Outcome::Written);
    }
    assert_eq!(stored(), disk.resident_bytes());
    let resident_bytes = disk.resident_bytes();
    drop(disk);
    assert_eq!(stored(), resident_bytes);
}

#[tokio::test]
async fn only_files_with_names_of_the_cache_are_stored() {
    let fixture = Fixture::new();
    put(&fixture.open(MIB), 1, &[1], 1000).await;
    let write = |path: &str| {
        let path = fixture.folder().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, [0; 5000]).unwrap();
    };
    let (own, interrupted) =
        (FileKey { entry: 2, id: 7 }.path(), FileKey { entry: 3, id: 7 }.temporary_path());
    for path in ["notes.txt", "00/notes.txt", "more/notes.txt", "01/01.col"] {
        write(path);
    }
    write(&Path::new("AB").join(own.file_name().unwrap()).to_string_lossy());
    assert_eq!(Disk::stored_bytes(fixture.directory.path()), 4096);
    write(&interrupted.to_string_lossy());
    assert_eq!(
        Disk::stored_bytes(fixture.directory.path()),
        4096 + 8192,
        "the interrupted write is deleted later"
    );
}
