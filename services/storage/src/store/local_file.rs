//! Reads of local files: one positioned read into a pooled buffer.
//!
//! `object_store` reads into new memory, which the kernel clears first, and in parts that have to be joined.

use std::{
    fs::File,
    io,
    ops::Range,
    os::unix::fs::{FileExt, MetadataExt},
    time::Duration,
};

use bytes::Bytes;
use forebay_cache::Slabs;
use object_store::local::LocalFileSystem;
use tokio::time::timeout;

use crate::{
    Error, Version,
    blocking::blocking,
    store::{
        generations::{Generation, nanoseconds},
        location::LocalReads,
        target::Target,
    },
};

/// Rate below which a read counts as hanging, in bytes per second.
const MIN_BYTES_PER_SECOND: u64 = 1 << 20;

/// Reads `range` of one pinned file. The version of the open file is compared before the read, and its stamp after it.
///
/// # Errors
/// [`Error::Changed`] if the file is not the pinned version or changes during the read, [`Error::Unavailable`] if it
/// cannot be read, or not within the timeout.
pub(crate) async fn read(target: &Target, range: Range<u64>, reads: &LocalReads) -> Result<Bytes, Error> {
    let file = LocalFileSystem::new().path_to_filesystem(&target.path);
    let file = file.map_err(|error| Error::unavailable(&target.url, &error))?;
    let (pinned, slabs) = (target.clone(), reads.slabs.clone());
    let permit = reads.permit().await.map_err(|busy| late(target, busy))?;
    let limit = reads.timeout + Duration::from_secs((range.end - range.start) / MIN_BYTES_PER_SECOND);
    let read = blocking(move || {
        // Held until the read ends, even if the caller has stopped waiting.
        let _permit = permit;
        let file = File::open(file).map_err(|error| read_error(&pinned, error))?;
        read_open(&file, &pinned, range, &slabs, || {})
    });
    let silent = |_| {
        late(target, format!("the file system did not answer within {limit:?}; see storage.request_timeout"))
    };
    timeout(limit, read).await.map_err(silent)?
}

/// Error of a read that took too long.
fn late(target: &Target, reason: String) -> Error {
    read_error(target, io::Error::new(io::ErrorKind::TimedOut, reason))
}

/// Reads `range` of an open file. `before_read` is called after the check of the version; tests change the file in it.
fn read_open(
    file: &File,
    target: &Target,
    range: Range<u64>,
    slabs: &Slabs,
    before_read: impl FnOnce(),
) -> Result<Bytes, Error> {
    let failed = |error: io::Error| read_error(target, error);
    let before = Stamp::of(file).map_err(failed)?;
    if (before.size, before.modified_ns) != (target.version.size, target.version.modified_ns) {
        return Err(target.changed(before.version().to_string()));
    }
    if let Some(pinned) = target.generation.filter(|pinned| *pinned != before.generation) {
        return Err(target.changed(pinned.described_change(before.generation)));
    }
    before_read();
    let length = usize::try_from(range.end - range.start).map_err(io::Error::other).map_err(failed)?;
    let mut slab = slabs.take(length).map_err(failed)?;
    file.read_exact_at(&mut slab, range.start).map_err(failed)?;
    let after = Stamp::of(file).map_err(failed)?;
    if after != before {
        return Err(target.changed(format!("{}, changed during the read", after.version())));
    }
    Ok(Bytes::from_owner(slab))
}

fn read_error(target: &Target, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::NotFound => target.changed("no such file"),
        io::ErrorKind::UnexpectedEof => target.changed("fewer bytes"),
        _ => {
            let error = object_store::Error::Generic { store: "local", source: Box::new(error) };
            Error::unavailable(&target.url, &error)
        }
    }
}

/// State of an open file that every write to it changes.
#[derive(Debug, PartialEq, Eq)]
struct Stamp {
    size: u64,
    modified_ns: i64,
    generation: Generation,
}

impl Stamp {
    fn of(file: &File) -> io::Result<Self> {
        let found = file.metadata()?;
        let modified_ns = nanoseconds(found.mtime(), found.mtime_nsec());
        Ok(Self { size: found.size(), modified_ns, generation: Generation::of(&found) })
    }

    fn version(&self) -> Version {
        Version { size: self.size, etag: None, modified_ns: self.modified_ns }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use object_store::path::Path;

    use super::*;

    /// Writes a file that was last modified long ago, and returns it with its pinned version.
    fn written(directory: &tempfile::TempDir) -> (File, Target, SystemTime) {
        let path = directory.path().join("a.parquet");
        std::fs::write(&path, b"old bytes").unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        file.set_modified(modified).unwrap();
        let version = Stamp::of(&file).unwrap().version();
        let path = Path::from_absolute_path(&path).unwrap();
        (file, Target { path, url: "/a.parquet".to_owned(), version, generation: None }, modified)
    }

    fn read_while(file: &File, target: &Target, change: impl FnOnce()) -> Result<Bytes, Error> {
        read_open(file, target, 0..9, &Slabs::new(0), change)
    }

    #[test]
    fn a_local_file_that_is_rewritten_during_a_read_has_changed() {
        let directory = tempfile::tempdir().unwrap();
        let (file, target, _) = written(&directory);
        assert_eq!(read_while(&file, &target, || {}).unwrap(), "old bytes");
        let outcome = read_while(&file, &target, || file.write_all_at(b"new bytes", 0).unwrap());
        let Err(Error::Changed { file, found, .. }) = outcome else { panic!("{outcome:?}") };
        assert_eq!(file, "/a.parquet");
        assert!(found.ends_with("changed during the read"), "{found}");
    }

    #[test]
    fn a_rewrite_during_a_read_that_keeps_the_modification_time_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let (file, target, modified) = written(&directory);
        let changed_ns = || file.metadata().unwrap().ctime_nsec();
        let before = changed_ns();
        let outcome = read_while(&file, &target, || {
            // The clock of the file system may be as coarse as several milliseconds.
            while changed_ns() == before {
                file.write_all_at(b"new bytes", 0).unwrap();
                file.set_modified(modified).unwrap();
            }
        });
        assert!(matches!(outcome, Err(Error::Changed { .. })), "{outcome:?}");
    }
}
