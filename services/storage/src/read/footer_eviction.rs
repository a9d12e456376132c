//! Eviction of the footers on disk that were not used for the longest time.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use forebay_cache::spawn_blocking;
use tokio::sync::Semaphore;

/// Unit in which a file takes up disk space, in bytes.
const DISK_UNIT_BYTES: u64 = 4096;
/// A use is written to the modification time of a footer once in this time.
const USE_INTERVAL: Duration = Duration::from_secs(24 * 3600);
/// Age from which an unfinished file is deleted, because the process that wrote it has ended.
const UNFINISHED_AGE: Duration = Duration::from_secs(3600);

/// Keeps the files below a folder within a number of bytes.
#[derive(Debug)]
pub(super) struct Eviction {
    max_bytes: u64,
    /// Bytes that may be written before the files are counted again.
    left: AtomicU64,
    /// Permit of the one run at a time.
    runs: Arc<Semaphore>,
}

impl Eviction {
    /// Creates the eviction for a maximum of `max_bytes`. The first file that is written starts a run, because earlier processes may
    /// have written more.
    pub(super) fn new(max_bytes: u64) -> Self {
        Self { max_bytes, left: AtomicU64::new(0), runs: Arc::new(Semaphore::new(1)) }
    }

    /// Notes that a file of `bytes` bytes was written below `folder`. After each eighth of the maximum, deletes files in the background.
    /// The files therefore exceed the maximum by at most one eighth, and by what is written during a run.
    pub(super) fn written(&self, folder: &Path, bytes: u64) {
        let bytes = on_disk(bytes);
        let spent =
            self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        if spent.is_ok() {
            return;
        }
        let Ok(run) = Arc::clone(&self.runs).try_acquire_owned() else { return };
        self.left.store(self.max_bytes / 8, Ordering::Relaxed);
        let (folder, max_bytes) = (folder.to_owned(), self.max_bytes);
        // A run on a disk that hangs keeps its thread, and no other run is started.
        drop(spawn_blocking(move || {
            if let Err(error) = evict(&folder, max_bytes, SystemTime::now()) {
                tracing::warn!(%error, folder = %folder.display(), "cannot delete old cached footers");
            }
            drop(run);
        }));
    }
}

/// Notes that the footer in `file` is used. `modified` is its modification time.
pub(super) fn used(file: &fs::File, modified: SystemTime) {
    let now = SystemTime::now();
    if now.duration_since(modified).is_ok_and(|age| age > USE_INTERVAL) {
        // An error only makes the footer look older than it is.
        file.set_modified(now).ok();
    }
}

/// A file of the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Found {
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
}

/// Deletes the least recently used files in the subfolders of `folder`, until the others have at most `max_bytes` bytes.
fn evict(folder: &Path, max_bytes: u64, now: SystemTime) -> io::Result<()> {
    let (files, resident_bytes) = victims(list(folder)?, max_bytes, now);
    for file in &files {
        match fs::remove_file(&file.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    if !files.is_empty() {
        tracing::debug!(
            files = files.len(),
            resident_bytes,
            "deleted the least recently used cached footers"
        );
    }
    Ok(())
}

fn list(folder: &Path) -> io::Result<Vec<Found>> {
    let mut found = Vec::new();
    for subfolder in fs::read_dir(folder)? {
        let subfolder = subfolder?;
        if !subfolder.file_type()?.is_dir() {
            continue;
        }
        for file in fs::read_dir(subfolder.path())? {
            let file = file?;
            // Another thread may delete it at the same time.
            let Ok(metadata) = file.metadata() else { continue };
            if metadata.is_file() {
                found.push(Found {
                    path: file.path(),
                    bytes: on_disk(metadata.len()),
                    used: metadata.modified()?,
                });
            }
        }
    }
    Ok(found)
}

/// Returns the files to delete, and the bytes of the others: unfinished files of ended processes, and then the least recently used files,
/// until the others have at most `max_bytes`.
fn victims(mut files: Vec<Found>, max_bytes: u64, now: SystemTime) -> (Vec<Found>, u64) {
    let is_unfinished = |file: &Found| {
        let age = now.duration_since(file.used).unwrap_or_default();
        file.path.extension().is_some() && age > UNFINISHED_AGE
    };
    let mut resident_bytes: u64 = files.iter().map(|file| file.bytes).sum();
    files.sort_unstable_by(|a, b| {
        (!is_unfinished(a), a.used, &a.path).cmp(&(!is_unfinished(b), b.used, &b.path))
    });
    let mut victims = Vec::new();
    for file in files {
        if resident_bytes <= max_bytes && !is_unfinished(&file) {
            break;
        }
        resident_bytes -= file.bytes;
        victims.push(file);
    }
    (victims, resident_bytes)
}

fn on_disk(bytes: u64) -> u64 {
    bytes.div_ceil(DISK_UNIT_BYTES).saturating_mul(DISK_UNIT_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn found(path: &str, bytes: u64, seconds: u64) -> Found {
        Found { path: path.into(), bytes, used: at(seconds) }
    }

    #[test]
    fn the_least_recently_used_files_are_deleted_and_unfinished_files_of_ended_processes() {
        let (now, hour) = (at(1_000_000), 3600);
        let files = vec![
            found("aa/new", 4, 999_999),
            found("aa/old", 4, 10),
            found("ab/older", 4, 9),
            found("ab/unfinished.1-2.tmp", 1, 1_000_000 - hour - 1),
            found("ab/being-written.1-3.tmp", 1, 1_000_000 - hour),
        ];
        let names = |max_bytes| {
            let (victims, resident_bytes) = victims(files.clone(), max_bytes, now);
            let names = victims.iter().map(|file| file.path.to_string_lossy().into_owned());
            (names.collect::<Vec<_>>().join(" "), resident_bytes)
        };
        assert_eq!(names(13), ("ab/unfinished.1-2.tmp".to_owned(), 13));
        assert_eq!(names(12), ("ab/unfinished.1-2.tmp ab/older".to_owned(), 9));
        assert_eq!(names(8), ("ab/unfinished.1-2.tmp ab/older aa/old".to_owned(), 5));
    }

    #[test]
    fn a_use_counts_once_a_day() {
        let directory = tempfile::tempdir().unwrap();
        let file = fs::File::create(directory.path().join("footer")).unwrap();
        let modified = || file.metadata().unwrap().modified().unwrap();
        let yesterday = SystemTime::now() - USE_INTERVAL - Duration::from_secs(60);
        file.set_modified(yesterday).unwrap();
        used(&file, modified());
        let now = modified();
        assert!(now > yesterday + USE_INTERVAL);
        used(&file, now);
        assert_eq!(modified(), now);
    }
}
