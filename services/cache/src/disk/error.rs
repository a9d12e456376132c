//! Errors of opening the disk tier.

use std::{io, path::PathBuf};

/// Error of [`Disk::open`](crate::Disk::open). After it is open, the tier returns no errors: a section that cannot be
/// read is a miss.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another process has opened the folder.
    #[error("the cache folder {folder} is in use by another process")]
    InUse {
        /// Path of the folder.
        folder: PathBuf,
    },
    /// The folder has contents but is not marked as a cache. Opening it would delete them.
    #[error("{folder} is not empty and is not a cache folder; choose another folder, or empty it")]
    NotACache {
        /// Path of the folder.
        folder: PathBuf,
    },
    /// The folder cannot be created, marked or listed.
    #[error("cannot use the cache folder {folder}")]
    Folder {
        /// Path of the folder.
        folder: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
}
