//! Recovery of files from earlier processes when the tier is opened.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::SystemTime,
};

use parking_lot::Mutex;

use super::{
    files::{FileRange, Files, Listed},
    folder::MARKER,
    format::{self, Table},
    index::{Stored, charged_bytes},
    io_errors::{IoErrorKind, IoErrors},
    name::{self, FileKey, Named},
};

/// Number of subfolders that are scanned concurrently.
const THREADS: usize = 8;
/// Size of the first read of a file. Contains most headers completely.
const FIRST_READ_BYTES: u64 = 4096;

/// Scan of the cache folder. Reads headers only; sections are verified when they are read.
pub(crate) struct Scan<'a> {
    pub(crate) files: &'a dyn Files,
    pub(crate) folder: &'a Path,
    pub(crate) io_errors: &'a IoErrors,
}

type Found = (SystemTime, Arc<Stored>);

/// Size in bytes of the files in `folder` that have the name of a cache file. Changes and reports nothing.
pub(crate) fn stored_bytes(files: &dyn Files, folder: &Path) -> u64 {
    let mut bytes = 0u64;
    for listed in files.list(folder).unwrap_or_default() {
        let Some(first_byte) = subfolder(&listed) else { continue };
        for file in files.list(&folder.join(&listed.name)).unwrap_or_default() {
            let name = file.name.to_str().unwrap_or_default();
            if !file.is_folder && name::parse(first_byte, name) != Named::Foreign {
                bytes = bytes.saturating_add(charged_bytes(file.bytes));
            }
        }
    }
    bytes
}

/// First byte of the entries in a subfolder of the cache; `None` if `listed` is foreign.
fn subfolder(listed: &Listed) -> Option<u8> {
    let name = listed.name.to_str()?;
    let first_byte = u8::from_str_radix(name, 16).ok()?;
    (listed.is_folder && name == name::folder(first_byte)).then_some(first_byte)
}

impl Scan<'_> {
    /// Returns the complete files, the least recently written first. Deletes all other files.
    pub(crate) fn run(&self) -> Vec<Arc<Stored>> {
        let folders = self.folders();
        let next = AtomicUsize::new(0);
        let found = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..THREADS.min(folders.len()) {
                scope.spawn(|| {
                    while let Some(&first_byte) = folders.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let stored = self.folder(first_byte);
                        found.lock().extend(stored);
                    }
                });
            }
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
