//! Reading local files without a detour: one positioned read into memory that is used again.
//!
//! The general path reads into fresh memory, which the kernel clears first, and whose parts have to be joined.

use std::{fs::File, io, ops::Range, os::unix::fs::FileExt, os::unix::fs::MetadataExt};

use bytes::Bytes;
use forebay_cache::Slabs;
use object_store::{local::LocalFileSystem, path::Path};

use crate::{Error, Version, blocking::blocking, request::changed};

/// Reads `range` of one pinned file, whose version is looked at once it is open.
pub(crate) async fn read(
    path: &Path,
    url: &str,
    version: &Version,
    range: Range<u64>,
    slabs: &Slabs,
) -> Result<Bytes, Error> {
    let file = LocalFileSystem::new().path_to_filesystem(path);
    let file = file.map_err(|error| crate::request::unavailable(url, error))?;
    let (url, version, slabs) = (url.to_owned(), version.clone(), slabs.clone());
    blocking(move || {
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => changed(&url, &version, "no such file"),
            io::ErrorKind::UnexpectedEof => changed(&url, &version, "fewer bytes"),
            _ => {
                let error = object_store::Error::Generic { store: "local", source: Box::new(error) };
                crate::request::unavailable(&url, error)
            }
        };
        let file = File::open(file).map_err(failed)?;
        let found = file.metadata().map_err(failed)?;
        let modified_ns = found.mtime().saturating_mul(1_000_000_000).saturating_add(found.mtime_nsec());
        if (found.size(), modified_ns) != (version.size, version.modified_ns) {
            let found = Version { size: found.size(), etag: None, modified_ns };
            return Err(changed(&url, &version, found.to_string()));
        }
        let length = usize::try_from(range.end - range.start).map_err(io::Error::other).map_err(failed)?;
        let mut slab = slabs.take(length).map_err(failed)?;
        file.read_exact_at(&mut slab, range.start).map_err(failed)?;
        Ok(Bytes::from_owner(slab))
    })
    .await
}
