//! Generations of local files.
//!
//! A snapshot pins a local file by its size and modification time, which stay when a disk is copied. A program can set both, so that another
//! file can have the same. Within one machine, the inode and the time of the last change tell such files apart. They are never stored in
//! a snapshot: they are a part of the keys of caches, and every read compares them.

use std::{
    fs::{self, Metadata},
    os::unix::fs::MetadataExt,
    sync::Arc,
};

use forebay_cache::spawn_blocking;
use object_store::{local::LocalFileSystem, path::Path};
use xxhash_rust::xxh3::xxh3_64;

use crate::{Location, Snapshot, store::local_object::in_time};

/// Generation of a local file: every program that replaces or writes it changes the generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Generation {
    inode: u64,
    /// Time of the last change of the file or its metadata, in nanoseconds. Unlike the modification time, no program can set it.
    changed_ns: i64,
}

impl Generation {
    pub(crate) fn of(found: &Metadata) -> Self {
        Self { inode: found.ino(), changed_ns: nanoseconds(found.ctime(), found.ctime_nsec()) }
    }

    /// Describes a file whose size and modification time are unchanged, and whose generation is now `found`.
    pub(crate) fn described_change(self, found: Self) -> &'static str {
        match self.inode == found.inode {
            true => {
                "a file that was written or whose mode, owner or links were changed, with the same size and modification time"
            }
            false => "a file that replaced it, with the same size and modification time",
        }
    }

    /// Appends the generation to the bytes that a key of a cache is made of.
    pub(crate) fn append_to(self, bytes: &mut Vec<u8>) {
        bytes.extend(self.inode.to_le_bytes());
        bytes.extend(self.changed_ns.to_le_bytes());
    }
}

/// Time in nanoseconds.
pub(crate) fn nanoseconds(seconds: i64, rest: i64) -> i64 {
    seconds.saturating_mul(1_000_000_000).saturating_add(rest)
}

/// Generations of the files of a snapshot. Empty if they are not pinned, as for files that are not local.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Generations(Vec<Option<Generation>>);

impl Generations {
    /// Generation of a file; `None` if it is not pinned.
    pub(crate) fn of(&self, file: u32) -> Option<Generation> {
        self.0.get(file as usize).copied().flatten()
    }

    /// Hash of all generations; `None` if no file is pinned.
    pub(crate) fn hash(&self) -> Option<u64> {
        let mut bytes = Vec::with_capacity(self.0.len() * size_of::<Generation>());
        for generation in &self.0 {
            match generation {
                Some(generation) => generation.append_to(&mut bytes),
                None => bytes.push(0),
            }
        }
        (!bytes.is_empty()).then(|| xxh3_64(&bytes))
    }

    /// Reads the generations on a blocking thread. Returns `None` if the file system does not answer in time.
    pub(crate) async fn read(location: &Location, snapshot: &Arc<Snapshot>) -> Option<Self> {
        let Some(reads) = location.local_reads() else { return Some(Self::default()) };
        // Counts as a request of 1 KiB for each file, so that 1,024 files may take another second.
        let bytes = (snapshot.files().len() as u64) << 10;
        let (location, snapshot) = (location.clone(), Arc::clone(snapshot));
        let read = async move { Ok(spawn_blocking(move || Self::read_now(&location, &snapshot)).await?) };
        let read = in_time(reads, bytes, read).await;
        read.inspect_err(|error| {
            tracing::warn!(%error, "the inodes of a dataset could not be read, so that a replaced file may go unnoticed");
        })
        .ok()
    }

    /// Reads the generations. A file that cannot be found has none, and a read of it fails.
    pub(crate) fn read_now(location: &Location, snapshot: &Snapshot) -> Self {
        if location.local_reads().is_none() {
            return Self::default();
        }
        let of_file = |file| generation(location, &snapshot.locate(location, file).ok()?.0);
        Self(snapshot.files().iter().map(of_file).collect())
    }
}

/// Reads the generation of a local file; `None` for other locations, and if the file cannot be found.
pub(crate) fn generation(location: &Location, path: &Path) -> Option<Generation> {
    location.local_reads()?;
    let file = LocalFileSystem::new().path_to_filesystem(path).ok()?;
    Some(Generation::of(&fs::metadata(file).ok()?))
}
