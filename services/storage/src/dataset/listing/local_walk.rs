//! Walk of a local folder.
//!
//! `object_store` ends a walk at the first name that cannot be a path of a store, and at the first loop of symbolic links. Both occur
//! in folders whose Parquet files can be read.

use std::{
    fs::Metadata,
    io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

use walkdir::{DirEntry, WalkDir};

use crate::{dataset::version::Version, store::generations::nanoseconds};

/// Error of the operating system: too many symbolic links.
const ELOOP: i32 = 40;

/// Walk of all files below a folder. Symbolic links are followed. Links to a folder above themselves, or to nothing, are skipped.
pub(super) struct LocalWalk {
    root: PathBuf,
    entries: walkdir::IntoIter,
}

/// A file that a walk found.
pub(super) struct Found {
    /// Path below the folder, or its escaped form if it is not [nameable](Self::is_nameable).
    pub(super) path: String,
    /// False if a part of the path is not UTF-8 or has ASCII control characters. Such a path cannot be that of an object.
    pub(super) is_nameable: bool,
    pub(super) version: Version,
}

impl LocalWalk {
    pub(super) fn new(root: PathBuf) -> Self {
        let entries = WalkDir::new(&root).min_depth(1).follow_links(true).into_iter();
        Self { root, entries }
    }

    /// Returns the files among the next `entries` files and folders; `None` at the end. Calls the file system.
    ///
    /// # Errors
    /// An error of the file system. The walk has then ended.
    pub(super) fn next_files(&mut self, entries: usize) -> object_store::Result<Option<Vec<Found>>> {
        let mut files = Vec::new();
        for visited in 0..entries {
            let Some(entry) = self.entries.next() else {
                return Ok((visited > 0).then_some(files));
            };
            files.extend(self.file(entry).map_err(|error| object_store::Error::Generic {
                store: "LocalFileSystem",
                source: Box::new(error),
            })?);
        }
        Ok(Some(files))
    }

    fn file(&self, entry: walkdir::Result<DirEntry>) -> walkdir::Result<Option<Found>> {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) if is_no_file(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        if !entry.file_type().is_file() {
            return Ok(None);
        }
        let found = match entry.metadata() {
            Ok(found) => found,
            Err(error) if is_no_file(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        let relative = entry.path().strip_prefix(&self.root).unwrap_or(entry.path());
        let (path, is_nameable) = match relative.to_str() {
            Some(path) if !path.contains(|c: char| c.is_ascii_control()) => (path.to_owned(), true),
            _ => (escaped(relative), false),
        };
        Ok(Some(Found { path, is_nameable, version: version(&found) }))
    }
}

/// True for a link to a folder above itself, a link to nothing, and a file that was removed during the walk.
fn is_no_file(error: &walkdir::Error) -> bool {
    let is_link_to_itself = |error: &io::Error| error.raw_os_error() == Some(ELOOP);
    let is_gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound || is_link_to_itself(error);
    error.loop_ancestor().is_some() || error.io_error().is_some_and(is_gone)
}

/// Version of a file as [`Version::new`] has it.
fn version(found: &Metadata) -> Version {
    let modified_ns = nanoseconds(found.mtime(), found.mtime_nsec());
    Version { size: found.size(), etag: None, modified_ns }
}

/// A path with escapes for control characters and for bytes that are not UTF-8, such as `caf\xe9`.
fn escaped(path: &Path) -> String {
    let mut text = String::new();
    for chunk in path.as_os_str().as_bytes().utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() { text.extend(c.escape_default()) } else { text.push(c) }
        }
        text.push_str(&chunk.invalid().escape_ascii().to_string());
    }
    text
}
