use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    sync::atomic::Ordering::Relaxed,
    time::Duration,
};

use futures::FutureExt;
use proptest::prelude::*;
use tempfile::TempDir;

use super::{faulty::Faulty, *};
use crate::NoForecast;

const MIB: u64 = 1 << 20;

/// The greater the entry, the later it is needed.
struct ByEntryNumber;

impl Forecast<u128> for ByEntryNumber {
    fn next_use(&self, entry: &u128) -> u64 {
        *entry as u64
    }
}

/// A directory and what fails in it.
struct Rig {
    directory: TempDir,
    files: Arc<Faulty>,
}

impl Rig {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap(), files: Arc::default() }
    }

    fn open(&self, capacity_bytes: u64) -> Disk {
        self.open_with(capacity_bytes, Arc::new(NoForecast))
    }

    fn open_with(&self, capacity_bytes: u64, forecast: Arc<dyn Forecast<u128>>) -> Disk {
        let config = DiskConfig { capacity_bytes, ..DiskConfig::default() };
        self.try_open(config, forecast).unwrap()
    }

    fn try_open(&self, config: DiskConfig, forecast: Arc<dyn Forecast<u128>>) -> Result<Disk, Error> {
        Disk::open_with(Arc::clone(&self.files) as Arc<dyn Files>, self.directory.path(), config, forecast)
    }

    fn folder(&self) -> PathBuf {
        self.directory.path().join(FOLDER)
    }

    /// Everything in the folder but the marker.
    fn on_disk(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        for folder in fs::read_dir(self.folder()).unwrap().map(|folder| folder.unwrap().path()) {
            if folder.is_dir() {
                files.extend(fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()));
            }
        }
        files.sort();
        files
    }
}

/// The bytes of a section, a function of its names, in two parts.
fn section(entry: u128, name: u128, length: usize) -> (u128, Vec<Bytes>) {
    let seed = (entry as usize).wrapping_mul(31).wrapping_add(name as usize);
    let bytes: Vec<u8> = (0..length).map(|at| (at.wrapping_mul(7).wrapping_add(seed) % 251) as u8).collect();
    let mut bytes = Bytes::from(bytes);
    let rest = bytes.split_off(length / 3);
    (name, vec![bytes, rest])
}

async fn put(disk: &Disk, entry: u128, names: &[u128], length: usize) -> Outcome {
    disk.put(entry, names.iter().map(|&name| section(entry, name, length)).collect()).await
}

async fn has(disk: &Disk, entry: u128, name: u128, length: usize) -> bool {
    let read = disk.get(entry, &[name]).await.pop().unwrap();
    if let Some(read) = &read {
        assert_eq!(read.as_slice(), section(entry, name, length).1.concat());
    }
    read.is_some()
}

/// The index, the policy and the directory say the same.
fn agree(rig: &Rig, disk: &Disk) {
    let index = disk.shared.index();
    let keys: BTreeSet<FileKey> = index.entries().into_iter().flat_map(|entry| index.files(entry)).collect();
    let paths: BTreeSet<PathBuf> = keys.iter().map(|key| rig.folder().join(key.path())).collect();
    let on_disk: BTreeSet<PathBuf> = rig.on_disk().into_iter().collect();
    assert_eq!(paths, on_disk);
    let bytes: u64 =
        on_disk.iter().map(|path| fs::metadata(path).unwrap().len().next_multiple_of(4096)).sum();
    assert_eq!(index.resident_bytes(), bytes);
    assert!(bytes <= disk.capacity_bytes());
    assert_eq!(disk.shared.policy.len(), keys.len());
}

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
async fn sections_are_aligned_and_come_in_the_order_they_were_asked_for() {
    let rig = Rig::new();
    let disk = rig.open(64 * MIB);
    let lengths = [100, 0, 200_000, 9_000_000, 1, 64, 65];
    let sections = lengths.iter().enumerate().map(|(name, &length)| section(1, name as u128, length));
    assert_eq!(disk.put(1, sections.collect()).await, Outcome::Written);
    let wanted = [5, 3, 0, 99, 6, 1, 2, 4, 3];
    let read = disk.get(1, &wanted).await;
    for (&name, read) in wanted.iter().zip(&read) {
        let Some(&length) = lengths.get(name as usize) else {
            assert!(read.is_none());
            continue;
        };
        let read = read.as_ref().unwrap();
        assert_eq!(read.as_slice(), section(1, name, length).1.concat());
        assert!(length == 0 || read.as_ptr().align_offset(64) == 0);
    }
}

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

#[tokio::test]
async fn what_is_needed_last_goes_first_and_what_is_needed_later_still_is_not_kept() {
    let rig = Rig::new();
    let disk = rig.open_with(3 * 4096, Arc::new(ByEntryNumber));
    for entry in [30, 10, 40] {
        assert_eq!(put(&disk, entry, &[1], 1000).await, Outcome::Written);
    }
    assert_eq!(put(&disk, 20, &[1], 1000).await, Outcome::Written);
    assert_eq!(disk.sections(40, &[1]), [false]);
    assert_eq!(put(&disk, 35, &[1], 1000).await, Outcome::Bypassed);
    assert_eq!(put(&disk, 25, &[1], 5000).await, Outcome::Bypassed, "only one of two is needed later");
    assert_eq!(put(&disk, 5, &[1], 5000).await, Outcome::Written, "in the place of 30 and 20");
    assert_eq!(disk.sections(10, &[1]), [true]);
    assert_eq!(put(&disk, 1, &[1], 20_000).await, Outcome::TooLarge);
    agree(&rig, &disk);
}

#[tokio::test]
async fn without_a_forecast_the_least_recently_read_goes_first() {
    let rig = Rig::new();
    let disk = rig.open(3 * 4096);
    for entry in [1, 2, 3] {
        put(&disk, entry, &[1], 1000).await;
    }
    assert!(has(&disk, 1, 1, 1000).await);
    assert_eq!(put(&disk, 4, &[1], 1000).await, Outcome::Written);
    assert_eq!(disk.sections(2, &[1]), [false]);
    agree(&rig, &disk);
}

#[tokio::test]
async fn sections_of_one_entry_do_not_push_each_other_out() {
    let rig = Rig::new();
    let disk = rig.open(2 * 4096);
    assert_eq!(put(&disk, 1, &[1], 1000).await, Outcome::Written);
    assert_eq!(put(&disk, 1, &[2], 5000).await, Outcome::Bypassed);
    assert!(has(&disk, 1, 1, 1000).await);
}

#[tokio::test]
async fn pinned_entries_are_never_evicted() {
    let rig = Rig::new();
    let disk = rig.open(2 * 4096);
    disk.pin(1);
    disk.pin(1);
    for entry in [1, 2, 3, 4] {
        assert_eq!(put(&disk, entry, &[1], 1000).await, Outcome::Written);
    }
    disk.pin(4);
    disk.unpin(1);
    assert_eq!(put(&disk, 5, &[1], 1000).await, Outcome::Bypassed, "1 is pinned once more");
    disk.unpin(1);
    disk.unpin(1);
    assert_eq!(put(&disk, 5, &[1], 1000).await, Outcome::Written);
    assert_eq!(disk.sections(1, &[1]), [false]);
    agree(&rig, &disk);
}

#[tokio::test]
async fn pinned_entries_take_the_place_of_what_is_needed_sooner() {
    let rig = Rig::new();
    let disk = rig.open_with(2 * 4096, Arc::new(ByEntryNumber));
    for entry in [1, 2] {
        assert_eq!(put(&disk, entry, &[1], 1000).await, Outcome::Written);
    }
    assert_eq!(put(&disk, 9, &[1], 1000).await, Outcome::Bypassed);
    disk.pin(9);
    assert_eq!(disk.pinned_bytes(), 0);
    assert_eq!(put(&disk, 9, &[1], 1000).await, Outcome::Written);
    assert_eq!(disk.pinned_bytes(), 4096);
    assert_eq!((disk.sections(1, &[1]), disk.sections(2, &[1])), (vec![true], vec![false]));
    disk.pin(1);
    disk.pin(8);
    assert_eq!(put(&disk, 8, &[1], 1000).await, Outcome::Bypassed, "all that is there is pinned");
    agree(&rig, &disk);
}

#[tokio::test]
async fn what_is_removed_is_gone_and_its_bytes_are_free() {
    let rig = Rig::new();
    let disk = rig.open(MIB);
    for entry in 1..=6 {
        put(&disk, entry, &[1], 1000).await;
    }
    put(&disk, 2, &[2], 1000).await;
    assert_eq!(disk.remove_where(|entry| entry % 2 == 0).await, 4 * 4096);
    assert_eq!(disk.resident_bytes(), 3 * 4096);
    assert_eq!((disk.sections(2, &[1, 2]), disk.sections(3, &[1])), (vec![false, false], vec![true]));
    agree(&rig, &disk);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_who_put_the_same_section_one_writes() {
    let rig = Rig::new();
    let disk = rig.open(MIB);
    let gate = rig.files.gate.lock().unwrap();
    let first = tokio::spawn({
        let disk = disk.clone();
        async move { put(&disk, 1, &[1, 2], 1000).await }
    });
    while disk.resident_bytes() == 0 {
        std::thread::yield_now();
    }
    assert_eq!(disk.put(1, vec![section(1, 2, 1000)]).now_or_never(), Some(Outcome::Present));
    assert_eq!(disk.sections(1, &[2]), [false], "not there yet");
    drop(gate);
    assert_eq!(first.await.unwrap(), Outcome::Written);
    assert_eq!(rig.files.writes.load(Relaxed), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_exceeds_the_write_queue_is_not_kept_but_one_write_always_is() {
    let rig = Rig::new();
    let config = DiskConfig { capacity_bytes: MIB, max_write_queue_bytes: 4096, ..DiskConfig::default() };
    let disk = rig.try_open(config, Arc::new(NoForecast)).unwrap();
    let gate = rig.files.gate.lock().unwrap();
    let first = tokio::spawn({
        let disk = disk.clone();
        async move { put(&disk, 1, &[1], 100_000).await }
    });
    while disk.resident_bytes() == 0 {
        std::thread::yield_now();
    }
    assert_eq!(disk.put(2, vec![section(2, 1, 10)]).now_or_never(), Some(Outcome::Busy));
    drop(gate);
    assert_eq!(first.await.unwrap(), Outcome::Written);
    assert_eq!(put(&disk, 2, &[1], 10).await, Outcome::Written);
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

#[derive(Debug, Clone)]
enum Action {
    Put { entry: u128, names: Vec<u128>, length: usize },
    Get { entry: u128, names: Vec<u128> },
    Remove { entry: u128 },
    Pin { entry: u128 },
    Unpin { entry: u128 },
    Restart,
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let names = || proptest::collection::vec(0u128..6, 1..5);
    let action = prop_oneof![
        6 => (0u128..12, names(), 0usize..9000)
            .prop_map(|(entry, names, length)| Action::Put { entry, names, length }),
        6 => (0u128..12, names()).prop_map(|(entry, names)| Action::Get { entry, names }),
        1 => (0u128..12).prop_map(|entry| Action::Remove { entry }),
        1 => (0u128..12).prop_map(|entry| Action::Pin { entry }),
        1 => (0u128..12).prop_map(|entry| Action::Unpin { entry }),
        1 => Just(Action::Restart),
    ];
    proptest::collection::vec(action, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn index_directory_and_budget_agree_whatever_is_done(actions in actions(), forecast in any::<bool>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let rig = Rig::new();
            let forecast: Arc<dyn Forecast<u128>> =
                if forecast { Arc::new(ByEntryNumber) } else { Arc::new(NoForecast) };
            let mut disk = rig.open_with(60_000, Arc::clone(&forecast));
            // Lengths by section, of all that were ever written.
            let mut lengths = BTreeMap::<(u128, u128), BTreeSet<usize>>::new();
            for action in actions {
                match action {
                    Action::Put { entry, names, length } => {
                        for name in &names {
                            lengths.entry((entry, *name)).or_default().insert(length);
                        }
                        put(&disk, entry, &names, length).await;
                    }
                    Action::Get { entry, names } => {
                        let there = disk.sections(entry, &names);
                        let read = disk.get(entry, &names).await;
                        for ((name, there), read) in names.into_iter().zip(there).zip(read) {
                            assert_eq!(there, read.is_some());
                            let Some(read) = read else { continue };
                            assert!(lengths[&(entry, name)].contains(&read.len()));
                            assert_eq!(read.as_slice(), section(entry, name, read.len()).1.concat());
                        }
                    }
                    Action::Remove { entry } => {
                        disk.remove_where(|other| other == entry).await;
                        assert!(!disk.sections(entry, &[0, 1, 2, 3, 4, 5]).contains(&true));
                    }
                    Action::Pin { entry } => disk.pin(entry),
                    Action::Unpin { entry } => disk.unpin(entry),
                    Action::Restart => {
                        drop(disk);
                        disk = rig.open_with(60_000, Arc::clone(&forecast));
                    }
                }
                agree(&rig, &disk);
            }
        });
    }
}
