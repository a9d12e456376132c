//! What a tier finds when it is opened.

use std::fs;

use super::*;

#[tokio::test]
async fn restart_finds_what_was_written() {
    let rig = Rig::new();
    let disk = rig.open(MIB);
    assert_eq!(put(&disk, 7, &[1, 2, 3], 1000).await, Outcome::Written);
    assert_eq!(put(&disk, u128::MAX, &[1], 100_000).await, Outcome::Written);
    assert_eq!(put(&disk, 7, &[4, 3], 1000).await, Outcome::Written, "3 is there already");
    let resident_bytes = disk.resident_bytes();
    drop(disk);

    let disk = rig.open(MIB);
    assert_eq!(disk.resident_bytes(), resident_bytes);
    assert_eq!(disk.sections(7, &[4, 1, 5, 3]), [true, true, false, true]);
    for name in 1..=4 {
        assert!(has(&disk, 7, name, 1000).await);
    }
    assert!(has(&disk, u128::MAX, 1, 100_000).await);
    assert_eq!(put(&disk, 7, &[9], 10).await, Outcome::Written);
    agree(&rig, &disk);
}

#[tokio::test]
async fn a_header_longer_than_the_first_read_is_recovered() {
    let rig = Rig::new();
    let names: Vec<u128> = (0..500).collect();
    let disk = rig.open(MIB);
    assert_eq!(put(&disk, 1, &names, 10).await, Outcome::Written);
    drop(disk);
    let disk = rig.open(MIB);
    assert!(disk.get(1, &names).await.iter().all(Option::is_some));
}

#[tokio::test]
async fn what_is_not_whole_or_not_ours_is_deleted_when_it_is_opened() {
    let rig = Rig::new();
    let disk = rig.open(MIB);
    for entry in 1..=6 {
        put(&disk, entry, &[1, 2], 1000).await;
    }
    drop(disk);
    let paths = rig.on_disk();
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
    fs::write(rig.folder().join("notes.txt"), "mine").unwrap();
    fs::write(rig.folder().join("00/notes.txt"), "mine").unwrap();
    fs::create_dir(rig.folder().join("more")).unwrap();
    fs::copy(&paths[5], paths[5].with_file_name(format!("{:032x}-{:016x}.col", 99, 1))).unwrap();

    let disk = rig.open(MIB);
    let count = |trouble| disk.shared.troubles.count(trouble);
    assert_eq!((count(Trouble::Length), count(Trouble::Version), count(Trouble::Header)), (2, 1, 2));
    assert_eq!((count(Trouble::Temporary), count(Trouble::Foreign)), (1, 3));
    assert!(has(&disk, 6, 1, 1000).await);
    assert_eq!(rig.on_disk(), paths[5..]);
    assert!(!rig.folder().join("notes.txt").exists());
    agree(&rig, &disk);
}

#[tokio::test]
async fn a_smaller_budget_after_a_restart_evicts_what_is_needed_last() {
    let rig = Rig::new();
    let disk = rig.open(MIB);
    for entry in 1..=100 {
        put(&disk, entry, &[1], 1000).await;
    }
    drop(disk);
    let disk = rig.open_with(10 * 4096 + 100, Arc::new(ByEntryNumber));
    agree(&rig, &disk);
    for entry in 1..=100 {
        assert_eq!(disk.sections(entry, &[1]), [entry <= 10]);
    }
}

#[test]
fn a_folder_that_is_not_a_cache_is_refused_and_left_as_it_is() {
    let rig = Rig::new();
    let file = rig.folder().join("00/data.parquet");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, "precious").unwrap();
    let error = rig.try_open(DiskConfig::default(), Arc::new(NoForecast)).err();
    assert!(matches!(error, Some(Error::NotACache { .. })));
    assert!(file.exists());
    assert_eq!(fs::read_dir(rig.folder()).unwrap().count(), 1);
}

#[test]
fn a_folder_that_is_open_already_is_refused_until_it_is_closed() {
    let rig = Rig::new();
    let disk = rig.open(MIB);
    let error = rig.try_open(DiskConfig::default(), Arc::new(NoForecast)).err();
    assert!(matches!(error, Some(Error::InUse { .. })));
    drop(disk);
    rig.open(MIB);
}
