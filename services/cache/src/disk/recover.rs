//! Recovery of files from earlier processes.

use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use parking_lot::Mutex;
use tokio::{task::JoinError, time::sleep};
use tokio_util::sync::CancellationToken;

use super::{
    capacity,
    files::{FileMetadata, FileRange, Files, Listed},
    folder::MARKER,
    format::{self, Table},
    index::Stored,
    io_errors::{IoErrorKind, IoErrors},
    name::{self, FileKey, Named},
    state::State,
};
use crate::spawn_blocking;

/// Number of subfolders that are scanned concurrently.
const THREADS: usize = 8;
/// Size of the first read of a file. Contains most headers completely.
const FIRST_READ_BYTES: u64 = 4096;
/// Time after which subfolders that could not be listed are listed again.
const LIST_AGAIN_AFTER: Duration = Duration::from_secs(10);

/// Recovery of the files of earlier processes, which a tier has not begun yet. If it is dropped or cancelled, the tier stays
/// without these files and without writes; the files remain for the next process.
#[must_use = "the tier accepts no writes before its files are recovered"]
pub struct Recovery {
    pub(super) shared: Arc<State>,
}

impl Recovery {
    /// Adds the files of earlier processes to the tier. The most recently written files count as the most recently used.
    /// Damaged files and files that do not belong to the cache are deleted and counted as errors. Then files over the
    /// capacity are evicted, and writes are accepted.
    ///
    /// A file whose header cannot be read for another reason, for example because too many files are open, is kept. It counts
    /// towards the capacity and can be evicted, but its sections are missing. If a folder cannot be listed, the size of its files is
    /// unknown, and no writes are accepted.
    ///
    /// Blocks, and reads the header of every file.
    pub fn run(self) {
        self.shared.recover(&CancellationToken::new());
    }

    /// As [`run`](Self::run), on blocking threads. Folders that cannot be listed are listed again every 10 s. Writes are accepted
    /// once all folders are listed. If the caller is cancelled, the recovery stops at the next file.
    pub async fn run_in_background(self) {
        let cancelled = CancellationToken::new();
        let _cancelled_on_drop = cancelled.clone().drop_guard();
        let (shared, cancellation) = (Arc::clone(&self.shared), cancelled.clone());
        let mut recovered = spawn_blocking(move || shared.recover(&cancellation)).await;
        while let Some(unlisted) = finished(recovered)
            && !unlisted.is_empty()
        {
            sleep(LIST_AGAIN_AFTER).await;
            let (shared, cancellation) = (Arc::clone(&self.shared), cancelled.clone());
            recovered = spawn_blocking(move || shared.recover_unlisted(&unlisted, &cancellation)).await;
        }
    }
}

/// Result of a blocking part of the recovery; `None` if it panicked or the runtime shuts down.
fn finished<T>(outcome: Result<T, JoinError>) -> Option<T> {
    if outcome.as_ref().is_err_and(JoinError::is_panic) {
        tracing::error!(
            "the recovery of the disk cache panicked; it accepts no writes until the server is restarted"
        );
    }
    outcome.ok()
}

impl State {
    /// Adds the files of earlier processes. Returns the subfolders that could not be listed, by first byte.
    fn recover(&self, cancelled: &CancellationToken) -> Vec<u8> {
        let started = Instant::now();
        let scan = self.scan(cancelled);
        let (found, unlisted) = scan.run(&scan.folders());
        if cancelled.is_cancelled() {
            return Vec::new();
        }
        let files = found.len();
        self.add(found);
        self.limit(unlisted.is_empty());
        tracing::info!(
            files,
            capacity_bytes = self.capacity_bytes(),
            seconds = started.elapsed().as_secs_f64(),
            "disk cache recovered"
        );
        if !unlisted.is_empty() {
            tracing::warn!(
                folders = unlisted.len(),
                "the disk cache accepts no writes until all of its folders can be listed: the size of some files is unknown"
            );
            self.backoff.lock().stop();
        }
        self.recovered.cancel();
        unlisted
    }

    /// Adds the files of subfolders that could not be listed before. Returns those that still cannot be listed, and accepts writes if
    /// there are none. Nothing is written in the meantime, so the scan finds no files that this process is writing.
    fn recover_unlisted(&self, folders: &[u8], cancelled: &CancellationToken) -> Vec<u8> {
        let (found, unlisted) = self.scan(cancelled).run(folders);
        if cancelled.is_cancelled() {
            return Vec::new();
        }
        self.add(found);
        self.limit(unlisted.is_empty());
        if unlisted.is_empty() {
            tracing::info!("the disk cache accepts writes: all of its folders are listed");
            self.backoff.lock().succeeded();
        }
        unlisted
    }

    /// Evicts files above the capacity. If it is not configured, it depends on the size of all files, and is determined once
    /// `all_are_listed`.
    fn limit(&self, all_are_listed: bool) {
        if all_are_listed && self.config.capacity_bytes.is_none() {
            let resident_bytes = self.index.lock().resident_bytes();
            self.default_capacity_bytes.get_or_init(|| capacity::default_bytes(&self.folder, resident_bytes));
        }
        self.shrink();
        let capacity_bytes = self.capacity_bytes();
        metrics::gauge!("forebay_cache_capacity_bytes", "tier" => "disk").set(capacity_bytes as f64);
        self.set_gauge();
    }

    fn scan<'a>(&'a self, cancelled: &'a CancellationToken) -> Scan<'a> {
        Scan { files: &*self.files, folder: &self.folder, io_errors: &self.io_errors, cancelled }
    }

    /// Adds files of earlier processes to the index and the policy.
    fn add(&self, found: Vec<Arc<Stored>>) {
        for stored in found {
            // Other threads need the index in the meantime.
            let mut index = self.index.lock();
            self.policy.insert(stored.key);
            index.recover(stored);
        }
    }
}

/// Scan of the cache folder. Reads headers only; sections are verified when they are read.
struct Scan<'a> {
    files: &'a dyn Files,
    folder: &'a Path,
    io_errors: &'a IoErrors,
    /// Ends the scan at the next file.
    cancelled: &'a CancellationToken,
}

type Found = (SystemTime, Arc<Stored>);

/// Reason why the header of a file cannot be used.
enum Unusable {
    /// The file is damaged or of another version.
    Damaged(IoErrorKind),
    /// The header could not be read. The file may be intact.
    Unread(io::Error),
}

impl From<IoErrorKind> for Unusable {
    fn from(kind: IoErrorKind) -> Self {
        Self::Damaged(kind)
    }
}

/// First byte of the entries in a subfolder of the cache; `None` if `listed` is foreign.
fn subfolder(listed: &Listed) -> Option<u8> {
    let first_byte = name::parse_folder(listed.name.to_str()?)?;
    // Without metadata, the listing of the subfolder shows whether it is one.
    let is_file = listed.metadata.as_ref().is_ok_and(|metadata| !metadata.is_folder);
    (!is_file).then_some(first_byte)
}

impl Scan<'_> {
    /// Scans `folders`, each given by the first byte of its entries. Returns the files of the cache in them, the least recently written
    /// first, and the folders that cannot be listed. Deletes damaged, incomplete and foreign files. The result is incomplete if the
    /// scan is cancelled.
    fn run(&self, folders: &[u8]) -> (Vec<Arc<Stored>>, Vec<u8>) {
        let next = AtomicUsize::new(0);
        let found = Mutex::new(Vec::new());
        let unlisted = Mutex::new(Vec::new());
        let scan_folders = || {
            while let Some(&first_byte) = folders.get(next.fetch_add(1, Ordering::Relaxed)) {
                match self.folder(first_byte) {
                    Some(stored) => found.lock().extend(stored),
                    None => unlisted.lock().push(first_byte),
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..THREADS.min(folders.len()) {
                // Without the memory or the permission for more threads, fewer do the work.
                if std::thread::Builder::new().spawn_scoped(scope, scan_folders).is_err() {
                    break;
                }
            }
            scan_folders();
        });
        let (mut found, mut unlisted): (Vec<Found>, Vec<u8>) = (found.into_inner(), unlisted.into_inner());
        found.sort_unstable_by_key(|(modified, stored)| (*modified, stored.key));
        unlisted.sort_unstable();
        (found.into_iter().map(|(_, stored)| stored).collect(), unlisted)
    }

    /// Returns the subfolders of the cache by first byte. Anything else is foreign.
    fn folders(&self) -> Vec<u8> {
        // An error of this folder does not mean that its subfolders have one.
        let Some(entries) = self.list(self.folder) else { return (0..=u8::MAX).collect() };
        let mut folders = Vec::new();
        for listed in entries {
            match subfolder(&listed) {
                Some(first_byte) => folders.push(first_byte),
                None if listed.name == MARKER => {}
                None => {
                    let path = self.folder.join(&listed.name);
                    if let Some(metadata) = self.metadata(&path, &listed) {
                        self.foreign(&path, metadata.is_folder);
                    }
                }
            }
        }
        folders
    }

    /// Returns the files of a subfolder; `None` if it cannot be listed.
    fn folder(&self, first_byte: u8) -> Option<Vec<Found>> {
        let folder = self.folder.join(name::folder(first_byte));
        let mut found = Vec::new();
        for listed in self.list(&folder)? {
            if self.cancelled.is_cancelled() {
                break;
            }
            let path = folder.join(&listed.name);
            let Some(metadata) = self.metadata(&path, &listed) else { continue };
            let named = listed.name.to_str().map_or(Named::Foreign, |name| name::parse(first_byte, name));
            match named {
                _ if metadata.is_folder => self.foreign(&path, true),
                Named::Foreign => self.foreign(&path, false),
                Named::Temporary => self.delete(&path, IoErrorKind::Temporary, "an interrupted write"),
                Named::File(key) => {
                    if let Some(table) = self.table(&path, key, metadata.bytes) {
                        found.push((metadata.modified, Arc::new(Stored::new(key, table))));
                    }
                }
            }
        }
        Some(found)
    }

    /// Reads the header of a file. Returns `None` for a damaged file, which is deleted, and for a file that another program has
    /// deleted. If the header cannot be read for another reason, returns a table without sections: the file still counts towards the
    /// capacity, and a later process can read it unless it is evicted first.
    fn table(&self, path: &Path, key: FileKey, file_bytes: u64) -> Option<Table> {
        match self.read_table(path, key, file_bytes) {
            Ok(table) => Some(table),
            Err(Unusable::Damaged(kind)) => {
                self.delete(path, kind, "a damaged or incompatible file");
                None
            }
            Err(Unusable::Unread(error)) if error.kind() == io::ErrorKind::NotFound => None,
            Err(Unusable::Unread(error)) => {
                self.io_errors.report(IoErrorKind::Read, path, &error);
                let records = Vec::new().into_boxed_slice();
                Some(Table { entry: key.entry, records, file_bytes, load_time: Duration::ZERO })
            }
        }
    }

    fn read_table(&self, path: &Path, key: FileKey, file_bytes: u64) -> Result<Table, Unusable> {
        let mut header = self.read(path, file_bytes.min(FIRST_READ_BYTES))?;
        let header_bytes = format::header_bytes(format::announced_sections(&header)?) as u64;
        if header_bytes > file_bytes {
            return Err(IoErrorKind::Length.into());
        }
        if header_bytes > header.len() as u64 {
            header = self.read(path, header_bytes)?;
        }
        let table = Table::parse(&header, file_bytes)?;
        if table.entry == key.entry { Ok(table) } else { Err(IoErrorKind::Header.into()) }
    }

    fn read(&self, path: &Path, bytes: u64) -> Result<Vec<u8>, Unusable> {
        if bytes < format::PREAMBLE_BYTES as u64 {
            return Err(IoErrorKind::Length.into());
        }
        let mut header = vec![0; bytes as usize];
        match self.files.read(path, &mut [FileRange { offset: 0, bytes: &mut header }]) {
            Ok(()) => Ok(header),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(IoErrorKind::Length.into()),
            Err(error) => Err(Unusable::Unread(error)),
        }
    }

    /// Returns the entries of a folder, none if there is no such folder; `None` if it cannot be listed.
    fn list(&self, folder: &Path) -> Option<Vec<Listed>> {
        match self.files.list(folder) {
            Ok(listed) => Some(listed),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Some(Vec::new()),
            Err(error) => {
                self.io_errors.report(IoErrorKind::List, folder, &error);
                None
            }
        }
    }

    /// Returns the metadata of an entry; `None` if it cannot be read, which is reported unless the entry was deleted.
    fn metadata<'a>(&self, path: &Path, listed: &'a Listed) -> Option<&'a FileMetadata> {
        let error = match &listed.metadata {
            Ok(metadata) => return Some(metadata),
            Err(error) => error,
        };
        if error.kind() != io::ErrorKind::NotFound {
            self.io_errors.report(IoErrorKind::List, path, error);
        }
        None
    }

    /// Reports a foreign file and deletes it. A foreign folder is reported but not deleted.
    fn foreign(&self, path: &Path, is_folder: bool) {
        if is_folder {
            self.io_errors.report(
                IoErrorKind::Foreign,
                path,
                &"a folder that does not belong to the cache; it is ignored",
            );
        } else {
            self.delete(path, IoErrorKind::Foreign, "a file that does not belong to the cache");
        }
    }

    fn delete(&self, path: &Path, kind: IoErrorKind, reason: &str) {
        self.io_errors.report(kind, path, &reason);
        if let Err(error) = self.files.remove(path) {
            self.io_errors.report(IoErrorKind::Remove, path, &error);
        }
    }
}
