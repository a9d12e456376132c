//! File operations with injected faults.

use std::{
    ffi::OsString,
    io::{Error, ErrorKind, Result},
    path::Path,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use parking_lot::{Mutex, MutexGuard};

use super::files::{FileRange, FileSystem, Files, Listed};

/// The local file system with injected faults.
#[derive(Default)]
pub(crate) struct Faulty {
    pub(crate) operations: AtomicU64,
    pub(crate) writes: AtomicU64,
    faults: Mutex<Faults>,
    /// Blocks writes while a test holds it.
    pub(crate) gate: Mutex<()>,
    /// Blocks reads while a test holds it, as a disk that hangs.
    pub(crate) read_gate: Mutex<()>,
    /// Reads that reached the gate.
    pub(crate) reads: AtomicU64,
}

/// Injected faults.
#[derive(Default)]
pub(crate) struct Faults {
    /// Index of the operation that fails.
    pub(crate) fail_nth: Option<u64>,
    /// Bytes that can still be written before the disk is full.
    pub(crate) room_bytes: Option<u64>,
    /// If true, reads find a truncated file.
    pub(crate) cut_reads: bool,
    /// If true, reads find the last bit of each range flipped.
    pub(crate) flip_reads: bool,
    /// OS error of every read.
    pub(crate) fail_reads: Option<i32>,
    /// Name of a folder that cannot be listed, and the OS error.
    pub(crate) fail_list: Option<(OsString, i32)>,
    /// Name of a listed entry whose metadata cannot be read, and the OS error.
    pub(crate) fail_metadata: Option<(OsString, i32)>,
}

impl Faulty {
    pub(crate) fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock()
    }

    fn count(&self) -> Result<()> {
        let operation = self.operations.fetch_add(1, Relaxed);
        if self.faults().fail_nth == Some(operation) { Err(Error::other("injected")) } else { Ok(()) }
    }
}

impl Files for Faulty {
    fn create_folder(&self, path: &Path) -> Result<()> {
        self.count()?;
        FileSystem.create_folder(path)
    }

    fn write(&self, path: &Path, parts: &[&[u8]]) -> Result<()> {
        drop(self.gate.lock());
        self.writes.fetch_add(1, Relaxed);
        let bytes: u64 = parts.iter().map(|part| part.len() as u64).sum();
        let mut faults = self.faults();
        if let Some(room) = &mut faults.room_bytes {
            if *room < bytes {
                FileSystem.write(path, &[&parts.concat()[..*room as usize]])?;
                return Err(ErrorKind::StorageFull.into());
            }
            *room -= bytes;
        }
        drop(faults);
        self.count()?;
        FileSystem.write(path, parts)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.count()?;
        FileSystem.rename(from, to)
    }

    fn read(&self, path: &Path, ranges: &mut [FileRange<'_>]) -> Result<()> {
        self.reads.fetch_add(1, Relaxed);
        drop(self.read_gate.lock());
        self.count()?;
        let faults = self.faults();
        if let Some(code) = faults.fail_reads {
            return Err(Error::from_raw_os_error(code));
        }
        if faults.cut_reads {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        FileSystem.read(path, ranges)?;
        if faults.flip_reads {
            ranges.iter_mut().filter_map(|range| range.bytes.last_mut()).for_each(|byte| *byte ^= 1);
        }
        Ok(())
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.count()?;
        FileSystem.remove(path)
    }

    fn list(&self, folder: &Path) -> Result<Vec<Listed>> {
        self.count()?;
        let faults = self.faults();
        if let Some((name, code)) = &faults.fail_list
            && folder.ends_with(name)
        {
            return Err(Error::from_raw_os_error(*code));
        }
        let mut listed = FileSystem.list(folder)?;
        if let Some((name, code)) = &faults.fail_metadata {
            for entry in listed.iter_mut().filter(|entry| entry.name == *name) {
                entry.metadata = Err(Error::from_raw_os_error(*code));
            }
        }
        Ok(listed)
    }
}

/// Conformance test for implementations of [`Files`].
fn assert_conforms(files: &dyn Files) {
    let directory = tempfile::tempdir().unwrap();
    let missing = files.create_folder(&directory.path().join("a/b"));
    assert_eq!(missing.unwrap_err().kind(), ErrorKind::NotFound);
    let folder = directory.path().join("a");
    files.create_folder(&folder).unwrap();
    files.create_folder(&folder).unwrap();
    let (one, two) = (folder.join("one"), folder.join("two"));
    files.write(&one, &[b"longer than what replaces it"]).unwrap();
    files.write(&one, &[b"01234", b"", b"56789"]).unwrap();

    let (mut first, mut second) = ([0; 3], [0; 4]);
    let mut ranges = [
        FileRange { offset: 4, bytes: &mut first },
        FileRange { offset: 0, bytes: &mut second },
        FileRange { offset: 10, bytes: &mut [] },
    ];
    files.read(&one, &mut ranges).unwrap();
    assert_eq!((&first, &second), (b"456", b"0123"));
    let past = files.read(&one, &mut [FileRange { offset: 8, bytes: &mut first }]);
    assert_eq!(past.unwrap_err().kind(), ErrorKind::UnexpectedEof);

    files.write(&two, &[b"replaced"]).unwrap();
    files.rename(&one, &two).unwrap();
    let listed = files.list(&folder).unwrap();
    assert_eq!(listed.len(), 1);
    let metadata = listed[0].metadata.as_ref().unwrap();
    assert_eq!((listed[0].name.to_str(), metadata.bytes, metadata.is_folder), (Some("two"), 10, false));
    assert!(files.list(directory.path()).unwrap()[0].metadata.as_ref().unwrap().is_folder);

    files.remove(&two).unwrap();
    for missing in [
        files.read(&two, &mut []).unwrap_err(),
        files.remove(&two).unwrap_err(),
        files.list(&two).unwrap_err(),
        files.write(&folder.join("c/d"), &[]).unwrap_err(),
    ] {
        assert_eq!(missing.kind(), ErrorKind::NotFound);
    }
}

#[test]
fn the_file_system_conforms() {
    assert_conforms(&FileSystem);
}

#[test]
fn the_file_system_with_injection_but_no_faults_conforms() {
    assert_conforms(&Faulty::default());
}
