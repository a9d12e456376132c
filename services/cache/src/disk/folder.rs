//! Taking possession of the folder, in which everything that isn't ours is deleted.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read, Write},
    path::Path,
};

use super::Error;

/// Marks a folder as a cache, for backup programs too: <https://bford.info/cachedir/>.
pub(crate) const MARKER: &str = "CACHEDIR.TAG";
const SIGNATURE: &str = "Signature: 8a477f597d28d172789f06886806bc55";
const ABOUT: &str =
    "# A cache of Forebay. Anything here may be deleted, and what Forebay did not write will be.";

/// Makes `folder` ours as long as the result lives: an empty folder is marked, a marked one locked.
pub(crate) fn take(folder: &Path) -> Result<File, Error> {
    let failed = |source| Error::Folder { folder: folder.into(), source };
    fs::create_dir_all(folder).map_err(failed)?;
    let path = folder.join(MARKER);
    if !path.exists() && holds_more_than_marker(folder).map_err(failed)? {
        return Err(Error::NotACache { folder: folder.into() });
    }
    let mut options = OpenOptions::new();
    let mut marker =
        options.read(true).write(true).create(true).truncate(false).open(path).map_err(failed)?;
    match marker.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(Error::InUse { folder: folder.into() }),
        // Some network file systems have no locks.
        Err(TryLockError::Error(error)) => {
            tracing::warn!(folder = %folder.display(), %error, "the cache folder can't be locked");
        }
    }
    let mut signature = Vec::new();
    (&marker).take(SIGNATURE.len() as u64).read_to_end(&mut signature).map_err(failed)?;
    if signature == SIGNATURE.as_bytes() {
        return Ok(marker);
    }
    // An empty marker is one whose writer died.
    if !signature.is_empty() || holds_more_than_marker(folder).map_err(failed)? {
        return Err(Error::NotACache { folder: folder.into() });
    }
    mark(folder, &mut marker).map_err(failed)?;
    Ok(marker)
}

/// The only thing that is synced: without it, what survives a crash would be taken for somebody else's.
fn mark(folder: &Path, marker: &mut File) -> io::Result<()> {
    writeln!(marker, "{SIGNATURE}\n{ABOUT}")?;
    marker.sync_all()?;
    File::open(folder)?.sync_all()
}

fn holds_more_than_marker(folder: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(folder)? {
        if entry?.file_name() != MARKER {
            return Ok(true);
        }
    }
    Ok(false)
}
