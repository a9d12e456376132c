//! File operations of the disk tier, which tests replace by failing ones.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, BufWriter, Write},
    os::unix::fs::FileExt,
    path::Path,
    time::SystemTime,
};

use crate::private;

/// Size of the write buffer, which combines small parts.
const WRITE_BUFFER_BYTES: usize = 1 << 20;

/// Blocking file operations.
pub trait Files: Send + Sync + 'static {
    /// Creates a folder if it is missing. Other users cannot access a new folder.
    ///
    /// # Errors
    /// The error of the file system; `NotFound` if the parent is missing.
    fn create_folder(&self, path: &Path) -> io::Result<()>;

    /// Writes a file that consists of `parts`, replacing an existing one. Other users cannot access a new file.
    ///
    /// # Errors
    /// The error of the file system, also after a part of the file was written.
    fn write(&self, path: &Path, parts: &[&[u8]]) -> io::Result<()>;

    /// Renames a file, replacing an existing one.
    ///
    /// # Errors
    /// The error of the file system.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Opens the file, fills each of `ranges` and closes it.
    ///
    /// # Errors
    /// The error of the file system; `UnexpectedEof` if a range exceeds the file.
    fn read(&self, path: &Path, ranges: &mut [FileRange<'_>]) -> io::Result<()>;

    /// Deletes a file.
    ///
    /// # Errors
    /// The error of the file system.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Returns all entries of a folder, in any order.
    ///
    /// # Errors
    /// The error of the file system. An error that concerns the metadata of one entry is part of the entry.
    fn list(&self, folder: &Path) -> io::Result<Vec<Listed>>;
}

/// A range of a file and its destination.
pub struct FileRange<'a> {
    /// Position in the file, in bytes.
    pub offset: u64,
    /// Destination, which is filled completely.
    pub bytes: &'a mut [u8],
}

/// An entry of a folder.
#[derive(Debug)]
pub struct Listed {
    /// Name in the folder.
    pub name: OsString,
    /// Metadata, or the error of reading it. The error is `NotFound` if the entry was deleted in the meantime.
    pub metadata: io::Result<FileMetadata>,
}

/// Metadata of a file or folder.
#[derive(Debug)]
pub struct FileMetadata {
    /// True for a folder.
    pub is_folder: bool,
    /// Size in bytes.
    pub bytes: u64,
    /// Time of the last change.
    pub modified: SystemTime,
}

/// File operations of the local file system.
pub struct FileSystem;

impl Files for FileSystem {
    fn create_folder(&self, path: &Path) -> io::Result<()> {
        private::create_subfolder(path)
    }

    fn write(&self, path: &Path, parts: &[&[u8]]) -> io::Result<()> {
        let file = private::file_options().write(true).create(true).truncate(true).open(path)?;
        let mut writer = BufWriter::with_capacity(WRITE_BUFFER_BYTES, file);
        for part in parts {
            writer.write_all(part)?;
        }
        writer.flush()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn read(&self, path: &Path, ranges: &mut [FileRange<'_>]) -> io::Result<()> {
        let file = File::open(path)?;
        ranges.iter_mut().try_for_each(|range| file.read_exact_at(range.bytes, range.offset))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<Listed>> {
        let listed = |entry: fs::DirEntry| Listed { name: entry.file_name(), metadata: metadata(&entry) };
        fs::read_dir(folder)?.map(|entry| entry.map(listed)).collect()
    }
}

fn metadata(entry: &fs::DirEntry) -> io::Result<FileMetadata> {
    let found = entry.metadata()?;
    Ok(FileMetadata { is_folder: found.is_dir(), bytes: found.len(), modified: found.modified()? })
}
