//! Why a disk tier can't be opened.

use std::{io, path::PathBuf};

/// Why a [`Disk`](crate::Disk) can't be opened. Once it is open nothing fails: what can't be read is a miss.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another process has it open.
    #[error("the cache folder {folder} is in use by another process")]
    InUse {
        /// The folder.
        folder: PathBuf,
    },
    /// The folder has content but isn't marked as a cache. It would be deleted.
    #[error("{folder} is not empty and not a cache folder: name another, or empty it")]
    NotACache {
        /// The folder.
        folder: PathBuf,
    },
    /// The folder can't be made, marked or listed.
    #[error("the cache folder {folder} can't be used")]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}
