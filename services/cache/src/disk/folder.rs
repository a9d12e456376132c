//! Ownership of the cache folder: a marker file identifies and locks it.

use std::{
    fs::{self, File, TryLockError},
    io::{self, ErrorKind, Read, Write},
    os::unix::fs::MetadataExt,
    path::Path,
};

use super::{
    error::Error,
    name::{self, Named},
};
use crate::private;

/// Name of the marker file, which backup programs also recognize: <https://bford.info/cachedir/>.
pub(crate) const MARKER: &str = "CACHEDIR.TAG";
const SIGNATURE: &str = "Signature: 8a477f597d28d172789f06886806bc55";
const ABOUT: &str =
    "# A cache of Forebay. Anything here may be deleted, and what Forebay did not write will be.";

/// Acquires `folder` until the returned file, its marker, is dropped. A folder without a marker is marked first if it is empty or
/// contains only files of a cache, which a process may have written after another program removed the marker.
///
/// Other users lose access to the folder, and with it to files that earlier versions wrote. A folder of another owner
/// keeps its permissions.
///
/// # Errors
/// If the folder is in use, has contents but no marker, or cannot be accessed.
pub(crate) fn take(folder: &Path) -> Result<File, Error> {
    let failed = |source| Error::Folder { folder: folder.into(), source };
    private::create_folder(folder).map_err(failed)?;
    let path = folder.join(MARKER);
    if !path.exists() && is_foreign(folder).map_err(failed)? {
        return Err(Error::NotACache { folder: folder.into() });
    }
    let mut options = private::file_options();
    let mut marker =
        options.read(true).write(true).create(true).truncate(false).open(path).map_err(failed)?;
    match marker.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(Error::InUse { folder: folder.into() }),
        // Some network file systems do not support locks.
        Err(TryLockError::Error(error)) => {
            tracing::warn!(folder = %folder.display(), %error, "cannot lock the cache folder; use it in one process only");
        }
    }
    let mut signature = Vec::new();
    (&marker).take(SIGNATURE.len() as u64).read_to_end(&mut signature).map_err(failed)?;
    if signature != SIGNATURE.as_bytes() {
        // An empty marker was left by a process that ended before writing it.
        if !signature.is_empty() || is_foreign(folder).map_err(failed)? {
            return Err(Error::NotACache { folder: folder.into() });
        }
        mark(folder, &mut marker).map_err(failed)?;
    }
    // Only the owner may change permissions. The subfolders that this process creates are private in any case.
    private::restrict_folder(folder).ok();
    Ok(marker)
}

/// Writes and syncs the marker. Without it, files that survive a crash would be treated as foreign.
fn mark(folder: &Path, marker: &mut File) -> io::Result<()> {
    writeln!(marker, "{SIGNATURE}\n{ABOUT}")?;
    marker.sync_all()?;
    File::open(folder)?.sync_all()
}

/// True if `marker` is still the marker of the folder. It is not if the folder, or the marker in it, was removed.
///
/// # Errors
/// The error of the file system.
pub(crate) fn has_marker(folder: &Path, marker: &File) -> io::Result<bool> {
    let found = match fs::metadata(folder.join(MARKER)) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(false);
        }
        found => found?,
    };
    let held = marker.metadata()?;
    Ok((held.dev(), held.ino()) == (found.dev(), found.ino()))
}

/// True if the folder contains anything but its marker and what only a cache writes.
fn is_foreign(folder: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name() == MARKER {
            continue;
        }
        let Some(first_byte) = entry.file_name().to_str().and_then(name::parse_folder) else {
            return Ok(true);
        };
        if !entry.file_type()?.is_dir() {
            return Ok(true);
        }
        for file in fs::read_dir(entry.path())? {
            let name = file?.file_name();
            let named = name.to_str().map_or(Named::Foreign, |name| name::parse(first_byte, name));
            if named == Named::Foreign {
                return Ok(true);
            }
        }
    }
    Ok(false)
}
