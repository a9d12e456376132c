//! Disk tier: named sections of bytes in files, verified on every read.
//!
//! ```text
//! get:  index -> coalesced reads -> checksums -> aligned sections
//! put:  claim -> queue -> eviction -> temporary file -> rename -> index
//! open: lock the folder
//! recovery: scan the headers -> index -> eviction -> writes are accepted
//! ```
//!
//! | module | contents |
//! |---|---|
//! | `tier` | [`Disk`], the public handle |
//! | `state` | state that all clones share: index, eviction policy, limits |
//! | `read`, `write` | the paths of `get` and `put` |
//! | `folder` | the path of `open` |
//! | `recover`, `capacity` | files of earlier processes, and the capacity that follows from them |
//! | `index`, `key` | files and sections, in memory |
//! | `format`, `name` | layout and names of files |
//! | `files` | file operations, replaceable by a fault-injecting implementation in tests |
//! | `backoff`, `io_errors` | handling and reporting of disk errors |
//!
//! All contents can be rebuilt. Writes are therefore not synced, and no function except [`Disk::open`] returns an
//! error. A damaged file is deleted and treated as a miss. When the disk fails, writes are skipped for a while.

mod backoff;
mod capacity;
mod config;
mod error;
mod files;
mod folder;
mod format;
mod index;
mod io_errors;
mod key;
mod name;
mod outcome;
mod read;
mod recover;
mod state;
mod tier;
mod usage;
mod write;

#[doc(hidden)]
pub use self::files::{FileMetadata, FileRange, FileSystem, Files, Listed};
pub use self::{
    config::DiskConfig,
    error::Error,
    outcome::Outcome,
    read::Section,
    recover::Recovery,
    tier::{Disk, WriteSpace},
};

#[cfg(test)]
mod faulty;
#[cfg(test)]
mod tests;
