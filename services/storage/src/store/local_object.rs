//! Requests to whole objects of a local folder: bounded in number and time, and durable writes.

use std::{
    ffi::OsStr,
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind, Write},
    path::{Path as FilePath, PathBuf},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use forebay_cache::spawn_blocking;
use object_store::{PutMode, local::LocalFileSystem, path::Path};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use tokio::time::timeout;

use crate::store::location::LocalReads;

/// Rate below which a write counts as hanging, in bytes per second.
const MIN_BYTES_PER_SECOND: u64 = 1 << 20;

/// Runs a request that transfers `bytes` bytes. A request that hangs keeps its permit, and with it one blocking thread, until it
/// ends, even if the caller has stopped waiting.
///
/// # Errors
/// The error of the request; an error if all permits are taken, or the request takes longer than the timeout and 1 s per MiB.
pub(crate) async fn in_time<T: Send + 'static>(
    reads: &LocalReads,
    bytes: u64,
    request: impl Future<Output = object_store::Result<T>> + Send + 'static,
) -> object_store::Result<T> {
    let permit = reads.permit().await.map_err(late)?;
    let request = tokio::spawn(async move {
        let outcome = request.await;
        drop(permit);
        outcome
    });
    let limit = reads.timeout + Duration::from_secs(bytes / MIN_BYTES_PER_SECOND);
    match timeout(limit, request).await {
        Ok(outcome) => outcome?,
        Err(_) => {
            Err(late(format!("the file system did not answer within {limit:?}; see storage.request_timeout")))
        }
    }
}

/// Error of a request that took too long.
fn late(reason: String) -> object_store::Error {
    failed(io::Error::new(ErrorKind::TimedOut, reason))
}

fn failed(error: io::Error) -> object_store::Error {
    object_store::Error::Generic { store: "local", source: Box::new(error) }
}

/// Writes a whole object, which a power cut does not remove or truncate once this returns. A cut before that leaves the previous
/// object.
///
/// # Errors
/// [`object_store::Error::AlreadyExists`] with [`PutMode::Create`] if there is an object; errors of the file system.
pub(crate) async fn put(path: Path, bytes: Bytes, mode: PutMode) -> object_store::Result<()> {
    let file = LocalFileSystem::new().path_to_filesystem(&path)?;
    let written = spawn_blocking(move || write(&file, &bytes, &mode, |_| {})).await?;
    written.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => {
            object_store::Error::AlreadyExists { path: path.to_string(), source: Box::new(error) }
        }
        _ => failed(error),
    })
}

/// Step of a write, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The bytes are on disk, in a file with a temporary name.
    Content,
    /// The file has its name.
    Name,
    /// The name is on disk.
    Folder,
}

/// Writes `bytes` to a file in the folder of `path`, which is then renamed. `after` is called after each step.
fn write(path: &FilePath, bytes: &[u8], mode: &PutMode, mut after: impl FnMut(Step)) -> io::Result<()> {
    let folder = path.parent().ok_or(ErrorKind::InvalidInput)?;
    create_folders(folder)?;
    let (mut file, temporary) = temporary_file(path)?;
    let named = file.write_all(bytes).and_then(|()| file.sync_all()).and_then(|()| {
        // Some file systems of user space upload a file when it is closed.
        drop(file);
        after(Step::Content);
        match mode {
            PutMode::Create => create_name(&NAMES, &temporary, path),
            PutMode::Overwrite | PutMode::Update(_) => fs::rename(&temporary, path),
        }
    });
    if named.is_err() || *mode == PutMode::Create {
        // Missing if it was renamed.
        drop(fs::remove_file(&temporary));
    }
    named?;
    after(Step::Name);
    sync_folder(folder)?;
    after(Step::Folder);
    Ok(())
}

/// Ways to give a file a name without replacing another file, in the order in which they are tried. Some file systems, such as those that
/// mount buckets, have no hard links, and some no renaming without replacement. The last way is not atomic: of two servers that create the
/// same object at once, the second one may replace the object of the first.
const NAMES: [fn(&FilePath, &FilePath) -> io::Result<()>; 3] = [
    |from, to| fs::hard_link(from, to),
    |from, to| Ok(renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)?),
    |from, to| match to.symlink_metadata() {
        Ok(_) => Err(ErrorKind::AlreadyExists.into()),
        Err(error) if error.kind() == ErrorKind::NotFound => fs::rename(from, to),
        Err(error) => Err(error),
    },
];

/// Gives a file the name `to`, in the first of some `ways` that the file system supports.
fn create_name(
    ways: &[fn(&FilePath, &FilePath) -> io::Result<()>],
    from: &FilePath,
    to: &FilePath,
) -> io::Result<()> {
    let mut outcome = Err(ErrorKind::Unsupported.into());
    for way in ways {
        outcome = way(from, to);
        let is_unsupported = |error: &io::Error| {
            // File systems that do not know an operation answer with any of these: EPERM, EINVAL, ENOSYS, EOPNOTSUPP, and EIO by gcsfuse.
            matches!(error.raw_os_error(), Some(1 | 5 | 22 | 38 | 95))
                || error.kind() == ErrorKind::Unsupported
        };
        match &outcome {
            Err(error) if is_unsupported(error) => {}
            _ => break,
        }
    }
    outcome
}

/// Creates a file whose name listings ignore: `#` and a number follow the name of `path`.
fn temporary_file(path: &FilePath) -> io::Result<(File, PathBuf)> {
    for number in 1_u64.. {
        let mut name = path.as_os_str().to_owned();
        name.push(format!("#{number}"));
        match OpenOptions::new().write(true).create_new(true).open(&name) {
            Ok(file) => return Ok((file, name.into())),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

/// True for the names of [`temporary_file`].
fn is_temporary(name: &OsStr) -> bool {
    let number = name.to_str().and_then(|name| name.rsplit_once('#')).map_or("", |(_, number)| number);
    !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit())
}

/// Removes the temporary files of a folder that were last written before a time. A process that is killed leaves those of its writes.
///
/// # Errors
/// Errors of the file system: the first one, after all files were tried.
pub(crate) async fn remove_interrupted(folder: Path, before: SystemTime) -> object_store::Result<()> {
    let folder = LocalFileSystem::new().path_to_filesystem(&folder)?;
    let remove = |file: &FilePath| fs::remove_file(file);
    spawn_blocking(move || remove_temporary(&folder, before, remove)).await?.map_err(failed)
}

fn remove_temporary(
    folder: &FilePath,
    before: SystemTime,
    remove: impl Fn(&FilePath) -> io::Result<()>,
) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    let mut outcome = Ok(());
    for entry in entries {
        let entry = entry?;
        if !is_temporary(&entry.file_name()) {
            continue;
        }
        let removed = entry.metadata().and_then(|meta| match meta.is_file() && meta.modified()? < before {
            true => remove(&entry.path()),
            false => Ok(()),
        });
        match removed {
            // A write may end at the same time.
            Err(error) if error.kind() != ErrorKind::NotFound => {
                let detail = format!("{} can't be removed: {error}", entry.path().display());
                outcome = outcome.and(Err(io::Error::new(error.kind(), detail)));
            }
            Ok(()) | Err(_) => {}
        }
    }
    outcome
}

/// Creates a folder and those above it, on disk.
fn create_folders(folder: &FilePath) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let parent = folder.parent().ok_or(ErrorKind::NotFound)?;
    create_folders(parent)?;
    match fs::create_dir(folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        Ok(()) | Err(_) => sync_folder(parent),
    }
}

fn sync_folder(folder: &FilePath) -> io::Result<()> {
    match File::open(folder)?.sync_all() {
        // Some network file systems cannot, and need not.
        Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => Ok(()),
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests;
