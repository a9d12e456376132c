//! Eviction of the footers on disk that were not used for the longest time.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use forebay_cache::spawn_blocking;
use parking_lot::Mutex;

/// Unit in which a file takes up disk space, in bytes.
const DISK_UNIT_BYTES: u64 = 4096;
/// Minimum interval between two uses of a footer that are written to its modification time.
const USE_INTERVAL: Duration = Duration::from_secs(24 * 3600);
/// Age from which an unfinished file is deleted, because the process that wrote it has ended.
const UNFINISHED_AGE: Duration = Duration::from_secs(3600);

/// Keeps the files below a folder within a number of bytes.
#[derive(Debug)]
pub(super) struct Eviction {
    max_bytes: u64,
    writes: Arc<Mutex<Writes>>,
}

#[derive(Debug)]
struct Writes {
    /// Bytes written since the files were last counted.
    uncounted_bytes: u64,
    /// True while a run counts and deletes files. There is at most one at a time.
    is_running: bool,
}

impl Eviction {
    /// Creates the eviction for a maximum of `max_bytes`. The first file that is written starts a run, because earlier processes may
    /// have written more.
    pub(super) fn new(max_bytes: u64) -> Self {
        let writes = Writes { uncounted_bytes: u64::MAX, is_running: false };
        Self { max_bytes, writes: Arc::new(Mutex::new(writes)) }
    }

    /// Notes that a file of `bytes` bytes was written below `folder`. Starts a run in the background when more than an eighth of the
    /// maximum was written since the last run began. The files therefore exceed the maximum by at most one eighth plus the bytes that are
    /// written during a run. If these are more than an eighth, another run follows at once.
    pub(super) fn written(&self, folder: &Path, bytes: u64) {
        let (max_bytes, max_uncounted) = (self.max_bytes, self.max_bytes / 8);
        {
            let mut writes = self.writes.lock();
            writes.uncounted_bytes = writes.uncounted_bytes.saturating_add(on_disk(bytes));
            if writes.is_running || writes.uncounted_bytes <= max_uncounted {
                return;
            }
            writes.is_running = true;
        }
        let (folder, writes) = (folder.to_owned(), Arc::clone(&self.writes));
        // A run on a disk that hangs keeps its thread, and no other run is started.
        drop(spawn_blocking(move || {
            while writes.lock().begin_run(max_uncounted) {
                if let Err(error) = evict(&folder, max_bytes, SystemTime::now()) {
                    tracing::warn!(%error, folder = %folder.display(), "cannot delete old cached footers");
                }
            }
        }));
    }
}

impl Writes {
    /// Begins a run if more than `max_uncounted` bytes were written since the last one began. Otherwise records that no run is in
    /// progress, and returns false.
    fn begin_run(&mut self, max_uncounted: u64) -> bool {
        self.is_running = self.uncounted_bytes > max_uncounted;
        if self.is_running {
            self.uncounted_bytes = 0;
        }
        self.is_running
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

/// Files and folders that could not be read or deleted.
#[derive(Default)]
struct Failures {
    count: usize,
    first: Option<(PathBuf, io::Error)>,
}

impl Failures {
    fn note(&mut self, path: PathBuf, error: io::Error) {
        self.count += 1;
        self.first.get_or_insert((path, error));
    }
}

/// Deletes the least recently used files in the subfolders of `folder`, until the others have at most `max_bytes` bytes. Continues after
/// files and subfolders that cannot be read or deleted, and logs them.
///
/// # Errors
/// The error of `folder` itself.
fn evict(folder: &Path, max_bytes: u64, now: SystemTime) -> io::Result<()> {
    let mut failures = Failures::default();
    let mut subfolders = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => subfolders.push(entry.path()),
            Ok(_) => {}
            Err(error) => failures.note(entry.path(), error),
        }
    }
    let files = list(subfolders, &mut failures);
    let (deleted, resident_bytes) = delete(files, max_bytes, now, &mut failures);
    if let Some((path, error)) = failures.first {
        tracing::warn!(
            failures = failures.count,
            %error,
            path = %path.display(),
            "cannot read or delete some old cached footers"
        );
    }
    if deleted > 0 {
        tracing::debug!(files = deleted, resident_bytes, "deleted the least recently used cached footers");
    }
    Ok(())
}

/// Files in `folders`.
fn list(folders: Vec<PathBuf>, failures: &mut Failures) -> Vec<Found> {
    let mut found = Vec::new();
    for folder in folders {
        if let Err(error) = list_folder(&folder, &mut found) {
            failures.note(folder, error);
        }
    }
    found
}

/// Appends the files in `folder` to `found`.
fn list_folder(folder: &Path, found: &mut Vec<Found>) -> io::Result<()> {
    for file in fs::read_dir(folder)? {
        let file = file?;
        // Another thread may delete it at the same time.
        let Ok(metadata) = file.metadata() else { continue };
        if metadata.is_file() {
            let used = metadata.modified()?;
            found.push(Found { path: file.path(), bytes: on_disk(metadata.len()), used });
        }
    }
    Ok(())
}

/// Deletes unfinished files of ended processes, and then the least recently used files, until the others have at most `max_bytes`.
/// Returns the number of deleted files, and the bytes of the others.
fn delete(files: Vec<Found>, max_bytes: u64, now: SystemTime, failures: &mut Failures) -> (usize, u64) {
    let mut resident_bytes: u64 = files.iter().map(|file| file.bytes).sum();
    let mut deleted = 0;
    for (file, is_unfinished) in in_order(files, now) {
        if resident_bytes <= max_bytes && !is_unfinished {
            break;
        }
        match fs::remove_file(&file.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => failures.note(file.path, error),
            Ok(()) | Err(_) => {
                resident_bytes -= file.bytes;
                deleted += 1;
            }
        }
    }
    (deleted, resident_bytes)
}

/// Files in the order of deletion: unfinished files of ended processes, which are marked, and then the others from the least recently
/// used one on.
fn in_order(files: Vec<Found>, now: SystemTime) -> Vec<(Found, bool)> {
    let is_unfinished = |file: &Found| {
        let age = now.duration_since(file.used).unwrap_or_default();
        file.path.extension().is_some() && age > UNFINISHED_AGE
    };
    let marked = |file: Found| {
        let is_unfinished = is_unfinished(&file);
        (file, is_unfinished)
    };
    let mut files: Vec<_> = files.into_iter().map(marked).collect();
    files.sort_unstable_by(|(a, a_unfinished), (b, b_unfinished)| {
        (!a_unfinished, a.used, &a.path).cmp(&(!b_unfinished, b.used, &b.path))
    });
    files
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

    /// Creates files in a new folder, and returns it with them. A name that ends with a slash is a folder, which cannot be deleted as a
    /// file.
    fn files(names: &[(&str, u64, u64)]) -> (tempfile::TempDir, Vec<Found>) {
        let directory = tempfile::tempdir().unwrap();
        let create = |(name, bytes, seconds): &(&str, u64, u64)| {
            let path = directory.path().join(name);
            match name.ends_with('/') {
                true => fs::create_dir(&path).unwrap(),
                false => fs::write(&path, "").unwrap(),
            }
            Found { path, bytes: *bytes, used: at(*seconds) }
        };
        let found = names.iter().map(create).collect();
        (directory, found)
    }

    /// Names in the folder, in alphabetical order.
    fn names(directory: &Path) -> String {
        let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        let mut names: Vec<_> = fs::read_dir(directory).unwrap().map(name).collect();
        names.sort();
        names.join(" ")
    }

    #[test]
    fn the_least_recently_used_files_are_deleted_and_unfinished_files_of_ended_processes() {
        let (now, hour) = (at(1_000_000), 3600);
        let (directory, files) = files(&[
            ("new", 4, 999_999),
            ("old", 4, 10),
            ("older", 4, 9),
            ("unfinished.1-2.tmp", 1, 1_000_000 - hour - 1),
            ("written.1-3.tmp", 1, 1_000_000 - hour),
        ]);
        let mut failures = Failures::default();
        let mut delete = |max_bytes| {
            let left = files.iter().filter(|file| file.path.exists()).cloned().collect();
            delete(left, max_bytes, now, &mut failures)
        };
        assert_eq!(delete(13), (1, 13));
        assert_eq!(names(directory.path()), "new old older written.1-3.tmp");
        assert_eq!(delete(12), (1, 9));
        assert_eq!(names(directory.path()), "new old written.1-3.tmp");
        assert_eq!(delete(8), (1, 5));
        assert_eq!(names(directory.path()), "new written.1-3.tmp");
        assert_eq!(failures.count, 0);
    }

    #[test]
    fn a_file_that_cannot_be_deleted_keeps_its_bytes_and_stops_no_other() {
        let (directory, mut files) =
            files(&[("undeletable/", 4, 1), ("old", 4, 2), ("older", 4, 1), ("new", 4, 3)]);
        // Another process has deleted it.
        files.push(Found { path: directory.path().join("missing"), bytes: 4, used: at(0) });
        let mut failures = Failures::default();
        assert_eq!(delete(files, 8, at(10), &mut failures), (3, 8));
        assert_eq!(names(directory.path()), "new undeletable");
        assert_eq!(failures.count, 1);
        assert_eq!(failures.first.unwrap().0, directory.path().join("undeletable/"));
    }

    #[test]
    fn a_folder_that_cannot_be_read_stops_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let (file, folder) = (directory.path().join("file"), directory.path().join("folder"));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("footer"), "1").unwrap();
        fs::write(&file, "").unwrap();
        let mut failures = Failures::default();
        let found = list(vec![file.clone(), folder.clone()], &mut failures);
        assert_eq!(found.iter().map(|found| &found.path).collect::<Vec<_>>(), [&folder.join("footer")]);
        assert_eq!(failures.count, 1);
        assert_eq!(failures.first.unwrap().0, file);
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
