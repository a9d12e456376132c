//! Recovery of files from earlier processes.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Instant, SystemTime},
};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::{
    capacity,
    files::{FileRange, Files, Listed},
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
    /// Blocks, and reads the header of every file.
    pub fn run(self) {
        self.shared.recover(&CancellationToken::new());
    }

    /// As [`run`](Self::run), on blocking threads. If the caller is cancelled, the recovery stops at the next file.
    pub async fn run_in_background(self) {
        let cancelled = CancellationToken::new();
        let _cancelled_on_drop = cancelled.clone().drop_guard();
        let recovery = spawn_blocking(move || self.shared.recover(&cancelled)).await;
        if recovery.is_err_and(|error| error.is_panic()) {
            tracing::error!(
                "the recovery of the disk cache panicked; it accepts no writes until the server is restarted"
            );
        }
    }
}

impl State {
    fn recover(&self, cancelled: &CancellationToken) {
        let started = Instant::now();
        let scan = Scan { files: &*self.files, folder: &self.folder, io_errors: &self.io_errors, cancelled };
        let found = scan.run();
        if cancelled.is_cancelled() {
            return;
        }
        let files = found.len();
        for stored in found {
            // Other threads need the index in the meantime.
            let mut index = self.index.lock();
            self.policy.insert(stored.key);
            index.recover(stored);
        }
        if self.config.capacity_bytes.is_none() {
            let resident_bytes = self.index.lock().resident_bytes();
            self.default_capacity_bytes.get_or_init(|| capacity::default_bytes(&self.folder, resident_bytes));
        }
        self.shrink();
        let capacity_bytes = self.capacity_bytes();
        metrics::gauge!("forebay_cache_capacity_bytes", "tier" => "disk").set(capacity_bytes as f64);
        self.set_gauge();
        tracing::info!(
            files,
            capacity_bytes,
            seconds = started.elapsed().as_secs_f64(),
            "disk cache recovered"
        );
        self.recovered.cancel();
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

/// First byte of the entries in a subfolder of the cache; `None` if `listed` is foreign.
fn subfolder(listed: &Listed) -> Option<u8> {
    let name = listed.name.to_str()?;
    let first_byte = u8::from_str_radix(name, 16).ok()?;
    (listed.is_folder && name == name::folder(first_byte)).then_some(first_byte)
}

impl Scan<'_> {
    /// Returns the complete files, the least recently written first. Deletes all other files. The result is incomplete if the
    /// scan is cancelled.
    fn run(&self) -> Vec<Arc<Stored>> {
        let folders = self.folders();
        let next = AtomicUsize::new(0);
        let found = Mutex::new(Vec::new());
        let scan_folders = || {
            while let Some(&first_byte) = folders.get(next.fetch_add(1, Ordering::Relaxed)) {
                let stored = self.folder(first_byte);
                found.lock().extend(stored);
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
        let mut found: Vec<Found> = found.into_inner();
        found.sort_unstable_by_key(|(modified, stored)| (*modified, stored.key));
        found.into_iter().map(|(_, stored)| stored).collect()
    }

    /// Returns the subfolders of the cache by first byte. Anything else is foreign.
    fn folders(&self) -> Vec<u8> {
        let mut folders = Vec::new();
        for listed in self.list(self.folder) {
            match subfolder(&listed) {
                Some(first_byte) => folders.push(first_byte),
                None if listed.name == MARKER => {}
                None => self.foreign(&self.folder.join(&listed.name), &listed),
            }
        }
        folders
    }

    fn folder(&self, first_byte: u8) -> Vec<Found> {
        let folder = self.folder.join(name::folder(first_byte));
        let mut found = Vec::new();
        for listed in self.list(&folder) {
            if self.cancelled.is_cancelled() {
                break;
            }
            let path = folder.join(&listed.name);
            let named = listed.name.to_str().map_or(Named::Foreign, |name| name::parse(first_byte, name));
            match named {
                _ if listed.is_folder => self.foreign(&path, &listed),
                Named::Foreign => self.foreign(&path, &listed),
                Named::Temporary => self.delete(&path, IoErrorKind::Temporary, "an interrupted write"),
                Named::File(key) => match self.table(&path, key, listed.bytes) {
                    Ok(table) => found.push((listed.modified, Arc::new(Stored::new(key, table)))),
                    Err(kind) => self.delete(&path, kind, "a damaged or incompatible file"),
                },
            }
        }
        found
    }

    fn table(&self, path: &Path, key: FileKey, file_bytes: u64) -> Result<Table, IoErrorKind> {
        let mut header = self.read(path, file_bytes.min(FIRST_READ_BYTES))?;
        let header_bytes = format::header_bytes(format::announced_sections(&header)?) as u64;
        if header_bytes > file_bytes {
            return Err(IoErrorKind::Length);
        }
        if header_bytes > header.len() as u64 {
            header = self.read(path, header_bytes)?;
        }
        let table = Table::parse(&header, file_bytes)?;
        if table.entry == key.entry { Ok(table) } else { Err(IoErrorKind::Header) }
    }

    fn read(&self, path: &Path, bytes: u64) -> Result<Vec<u8>, IoErrorKind> {
        if bytes < format::PREAMBLE_BYTES as u64 {
            return Err(IoErrorKind::Length);
        }
        let mut header = vec![0; bytes as usize];
        let read = self.files.read(path, &mut [FileRange { offset: 0, bytes: &mut header }]);
        read.map(|()| header).map_err(|_| IoErrorKind::Read)
    }

    fn list(&self, folder: &Path) -> Vec<Listed> {
        self.files.list(folder).unwrap_or_else(|error| {
            self.io_errors.report(IoErrorKind::List, folder, &error);
            Vec::new()
        })
    }

    /// Reports a foreign file and deletes it. A foreign folder is reported but not deleted.
    fn foreign(&self, path: &Path, listed: &Listed) {
        if listed.is_folder {
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
