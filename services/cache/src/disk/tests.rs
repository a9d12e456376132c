//! Shared fixtures of the disk tier's tests.

mod any_order;
mod eviction;
mod faults;
mod permissions;
mod recovery;
mod recovery_faults;
mod sections;
mod vanished;

use std::{collections::BTreeSet, fs, path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use tempfile::TempDir;

use super::{
    Disk, DiskConfig, Error, Outcome, Recovery,
    faulty::{self, Faulty},
    files::Files,
    io_errors::IoErrorKind,
    name::FileKey,
    tier::FOLDER,
};
use crate::{Forecast, NoForecast};

const MIB: u64 = 1 << 20;

/// Forecast in which a greater entry is needed later.
struct ByEntryNumber;

impl Forecast<u128> for ByEntryNumber {
    fn next_use(&self, entry: &u128) -> u64 {
        *entry as u64
    }
}

/// A cache directory with injected faults.
struct Fixture {
    directory: TempDir,
    files: Arc<Faulty>,
}

/// Settings with which no read is late, however slow the machine is.
fn patient() -> DiskConfig {
    DiskConfig { read_timeout: Duration::from_secs(3600), ..DiskConfig::default() }
}

impl Fixture {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap(), files: Arc::default() }
    }

    fn open(&self, capacity_bytes: u64) -> Disk {
        self.open_with(capacity_bytes, Arc::new(NoForecast))
    }

    fn open_with(&self, capacity_bytes: u64, forecast: Arc<dyn Forecast<u128>>) -> Disk {
        let config = DiskConfig { capacity_bytes: Some(capacity_bytes), ..patient() };
        self.try_open(config, forecast).unwrap()
    }

    fn try_open(&self, config: DiskConfig, forecast: Arc<dyn Forecast<u128>>) -> Result<Disk, Error> {
        let (disk, recovery) = self.try_open_unrecovered(config, forecast)?;
        recovery.run();
        Ok(disk)
    }

    fn try_open_unrecovered(
        &self,
        config: DiskConfig,
        forecast: Arc<dyn Forecast<u128>>,
    ) -> Result<(Disk, Recovery), Error> {
        Disk::open_with(Arc::clone(&self.files) as Arc<dyn Files>, self.directory.path(), config, forecast)
    }

    fn folder(&self) -> PathBuf {
        self.directory.path().join(FOLDER)
    }

    /// Paths of all files in subfolders.
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

/// A section whose bytes depend on `entry` and `name`, in two parts.
fn section(entry: u128, name: u128, length: usize) -> (u128, Vec<Bytes>) {
    let seed = (entry as usize).wrapping_mul(31).wrapping_add(name as usize);
    let bytes: Vec<u8> = (0..length).map(|at| (at.wrapping_mul(7).wrapping_add(seed) % 251) as u8).collect();
    let mut bytes = Bytes::from(bytes);
    let rest = bytes.split_off(length / 3);
    (name, vec![bytes, rest])
}

/// Load time of the sections.
const LOAD_TIME: Duration = Duration::from_millis(250);

async fn put(disk: &Disk, entry: u128, names: &[u128], length: usize) -> Outcome {
    disk.put(entry, names.iter().map(|&name| section(entry, name, length)).collect(), LOAD_TIME).await
}

async fn has(disk: &Disk, entry: u128, name: u128, length: usize) -> bool {
    let read = disk.get(entry, &[name]).await.pop().unwrap();
    if let Some(read) = &read {
        assert_eq!(read.as_slice(), section(entry, name, length).1.concat());
    }
    read.is_some()
}

/// Asserts that the index, the policy and the directory list the same files.
fn assert_consistent(fixture: &Fixture, disk: &Disk) {
    let index = disk.shared.index.lock();
    let keys: BTreeSet<FileKey> = index.entries().into_iter().flat_map(|entry| index.files(entry)).collect();
    let paths: BTreeSet<PathBuf> = keys.iter().map(|key| fixture.folder().join(key.path())).collect();
    let on_disk: BTreeSet<PathBuf> = fixture.on_disk().into_iter().collect();
    assert_eq!(paths, on_disk);
    let bytes: u64 =
        on_disk.iter().map(|path| fs::metadata(path).unwrap().len().next_multiple_of(4096)).sum();
    assert_eq!(index.resident_bytes(), bytes);
    assert!(bytes <= disk.capacity_bytes());
    assert_eq!(disk.shared.policy.len(), keys.len());
}
