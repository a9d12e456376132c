//! Property of files in the disk cache: any bytes result in misses, or in the sections that the bytes contain.

use std::{
    fs,
    path::PathBuf,
    sync::{Arc, LazyLock, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use forebay_cache::{Disk, DiskConfig, NoForecast, Outcome};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use xxhash_rust::xxh3::xxh3_64;

/// Entry of the file.
pub(crate) const ENTRY: u128 = 7;
/// Bit of the first byte of an input whose checksums are corrected, so that the checks behind these are reached.
pub(crate) const CORRECTED: u8 = 1;
/// Bit of the first byte of an input after which missing sections are written.
pub(crate) const REFILLED: u8 = 2;

const PREAMBLE_BYTES: usize = 64;
const RECORD_BYTES: usize = 40;
const CHECKSUM_AT: usize = 40;
const MAX_RECORDS: usize = 64;

/// A cache directory, which is reused.
struct Cache {
    runtime: Runtime,
    directory: TempDir,
}

static CACHE: LazyLock<Mutex<Cache>> = LazyLock::new(|| {
    let runtime = Builder::new_current_thread().enable_all().build().expect("the system can start a thread");
    let memory = PathBuf::from("/dev/shm");
    let parent = if memory.is_dir() { memory } else { std::env::temp_dir() };
    let directory = TempDir::new_in(parent).expect("the folder for temporary files is writable");
    let cache = Cache { runtime, directory };
    // The first cache marks the folder.
    drop(cache.open());
    fs::create_dir(cache.subfolder()).expect("the folder is writable");
    Mutex::new(cache)
});

impl Cache {
    fn open(&self) -> Disk {
        let config = DiskConfig {
            capacity_bytes: Some(64 << 20),
            // No read is late, however slow the machine is.
            read_timeout: Duration::from_secs(3600),
            ..DiskConfig::default()
        };
        Disk::open(self.directory.path(), config, Arc::new(NoForecast)).expect("the folder is a cache")
    }

    /// Folder of the files of [`ENTRY`].
    fn subfolder(&self) -> PathBuf {
        self.directory.path().join("columns/00")
    }
}

/// Opens a cache with one file, which contains `data` without its first byte, and reads all sections that it may contain.
pub(crate) fn check(data: &[u8]) {
    let Some((mode, bytes)) = data.split_first() else { return };
    let mut bytes = bytes.to_vec();
    if mode & CORRECTED != 0 {
        correct(&mut bytes);
    }
    let cache = CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    let path = cache.subfolder().join(format!("{ENTRY:032x}-{:016x}.col", 3));
    fs::write(&path, &bytes).expect("the folder is writable");
    let disk = cache.open();
    let mut names: Vec<u128> = records(&bytes).map(|record| record.name).collect();
    names.extend([0, 1, u128::MAX]);
    cache.runtime.block_on(async {
        read(&disk, &names, &bytes).await;
        if mode & REFILLED != 0 {
            refill(&disk, names).await;
            disk.remove_where(|_| true).await;
            assert_eq!(disk.resident_bytes(), 0);
            assert!(!path.exists());
        }
    });
    drop(fs::remove_file(path));
}

async fn read(disk: &Disk, names: &[u128], bytes: &[u8]) {
    for (name, section) in names.iter().zip(disk.get(ENTRY, names).await) {
        let Some(section) = section else { continue };
        // The first record with the name counts.
        let record = records(bytes).find(|record| record.name == *name).expect("the name is in the file");
        assert_eq!(Some(section.as_slice()), record.contents(bytes), "section {name}");
        assert_eq!(xxh3_64(&section), record.checksum, "section {name}");
        assert!(section.is_empty() || section.as_ptr().align_offset(64) == 0);
    }
}

/// Writes the sections that are missing, and reads them.
async fn refill(disk: &Disk, mut names: Vec<u128>) {
    names.sort_unstable();
    names.dedup();
    let present = disk.sections(ENTRY, &names);
    let contents = |name: u128| Bytes::from(format!("section {name}"));
    let sections = names.iter().map(|name| (*name, vec![contents(*name)])).collect();
    let outcome = disk.put(ENTRY, sections, Duration::ZERO).await;
    assert_eq!(outcome, if present.contains(&false) { Outcome::Written } else { Outcome::Present });
    for ((name, present), section) in names.iter().zip(present).zip(disk.get(ENTRY, &names).await) {
        if !present {
            assert_eq!(section.as_deref(), Some(&contents(*name)[..]), "section {name}");
        }
    }
}

/// Record of a section, see the format in `services/cache/src/disk/format.rs`.
struct Record {
    name: u128,
    offset: u64,
    length: u64,
    checksum: u64,
}

impl Record {
    fn contents<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let start = usize::try_from(self.offset).ok()?;
        bytes.get(start..start.checked_add(usize::try_from(self.length).ok()?)?)
    }
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut number = [0; N];
    number.copy_from_slice(&bytes[at..at + N]);
    number
}

/// Reads the records that are completely in the file.
fn records(bytes: &[u8]) -> impl Iterator<Item = Record> {
    let announced = if bytes.len() < PREAMBLE_BYTES { 0 } else { u32::from_le_bytes(number(bytes, 12)) };
    let records = bytes.get(PREAMBLE_BYTES..).unwrap_or_default().chunks_exact(RECORD_BYTES);
    records.take((announced as usize).min(MAX_RECORDS)).map(|record| Record {
        name: u128::from_le_bytes(number(record, 0)),
        offset: u64::from_le_bytes(number(record, 16)),
        length: u64::from_le_bytes(number(record, 24)),
        checksum: u64::from_le_bytes(number(record, 32)),
    })
}

/// Writes the checksums of the sections and of the header, and the size of the file.
fn correct(bytes: &mut [u8]) {
    let found: Vec<Record> = records(bytes).collect();
    for (at, record) in found.iter().enumerate() {
        if let Some(checksum) = record.contents(bytes).map(xxh3_64) {
            let end = PREAMBLE_BYTES + (at + 1) * RECORD_BYTES;
            bytes[end - 8..end].copy_from_slice(&checksum.to_le_bytes());
        }
    }
    let header_bytes = PREAMBLE_BYTES + found.len() * RECORD_BYTES;
    if bytes.len() < header_bytes {
        return;
    }
    let file_bytes = bytes.len() as u64;
    bytes[32..40].copy_from_slice(&file_bytes.to_le_bytes());
    let covered = [&bytes[..CHECKSUM_AT], &bytes[CHECKSUM_AT + 8..header_bytes]].concat();
    bytes[CHECKSUM_AT..CHECKSUM_AT + 8].copy_from_slice(&xxh3_64(&covered).to_le_bytes());
}
