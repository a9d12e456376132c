//! Reads of local files: one positioned read into a pooled buffer.
//!
//! `object_store` reads into new memory, which the kernel clears first, and in parts that have to be joined.

use std::{fs::File, io, ops::Range, os::unix::fs::FileExt, os::unix::fs::MetadataExt};

use bytes::Bytes;
use forebay_cache::Slabs;
use object_store::local::LocalFileSystem;

use crate::{Error, Version, blocking::blocking, store::target::Target};

/// Reads `range` of one pinned file, after comparing the version of the open file.
///
/// # Errors
/// [`Error::Changed`] if the file is not the pinned version, [`Error::Unavailable`] if it cannot be read.
pub(crate) async fn read(target: &Target, range: Range<u64>, slabs: &Slabs) -> Result<Bytes, Error> {
    let file = LocalFileSystem::new().path_to_filesystem(&target.path);
    let file = file.map_err(|error| Error::unavailable(&target.url, error))?;
    let (target, slabs) = (target.clone(), slabs.clone());
    blocking(move || {
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => target.changed("no such file"),
            io::ErrorKind::UnexpectedEof => target.changed("fewer bytes"),
            _ => {
                let error = object_store::Error::Generic { store: "local", source: Box::new(error) };
                Error::unavailable(&target.url, error)
            }
        };
        let file = File::open(file).map_err(failed)?;
        let found = file.metadata().map_err(failed)?;
        let modified_ns = found.mtime().saturating_mul(1_000_000_000).saturating_add(found.mtime_nsec());
        if (found.size(), modified_ns) != (target.version.size, target.version.modified_ns) {
            let found = Version { size: found.size(), etag: None, modified_ns };
            return Err(target.changed(found.to_string()));
        }
        let length = usize::try_from(range.end - range.start).map_err(io::Error::other).map_err(failed)?;
        let mut slab = slabs.take(length).map_err(failed)?;
        file.read_exact_at(&mut slab, range.start).map_err(failed)?;
        Ok(Bytes::from_owner(slab))
    })
    .await
}
