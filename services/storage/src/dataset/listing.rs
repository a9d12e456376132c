//! Listing of a dataset: one object, or the `*.parquet` files below a folder.

use std::{
    io,
    os::unix::fs::MetadataExt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use forebay_cache::spawn_blocking;
use futures::TryStreamExt;
use object_store::ObjectMeta;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::{
    Config, Error, Location,
    dataset::version::Version,
    store::{
        location::{Kind, LocalReads},
        request::{PAGE_OBJECTS, head, observed},
    },
};

pub(crate) mod tables;

/// Current files of a dataset.
#[derive(Clone)]
pub(crate) struct Listing {
    /// True if the location is a folder, false if it is a single file.
    pub(crate) folder: bool,
    /// Files in bytewise order of their relative paths.
    pub(crate) files: Vec<Listed>,
}

/// A listed file: its path below the location (its name, if the location is the file) and its version.
#[derive(Clone)]
pub(crate) struct Listed {
    pub(crate) path: String,
    pub(crate) version: Version,
}

/// Lists a dataset.
///
/// # Errors
/// [`Error::NotFound`] if there is no file, [`Error::Unsupported`] for a table of a table format and for a remote file
/// that has neither an ETag nor a modification time, [`Error::Corrupt`] for an empty file, [`Error::Limit`] for too many
/// files or other objects, [`Error::Unavailable`] if the store fails, a local file system does not answer in time, or an earlier
/// listing does not end.
pub(crate) async fn list(location: &Location, config: &Config) -> Result<Listing, Error> {
    let Some(reads) = location.local_reads() else {
        return list_all(location, config, &Progress::default()).await;
    };
    // One blocking call of `object_store` finds up to 1,024 files and reads the metadata of each. `request_timeout` is
    // meant for one request, so such a call may take longer.
    let limit = reads.timeout * 5;
    let failed = |kind: io::ErrorKind, reason: String| {
        let source = Box::new(io::Error::new(kind, reason));
        Error::unavailable(location.url(), &object_store::Error::Generic { store: "local", source })
    };
    let permit = timeout(limit, Arc::clone(&reads.listing).acquire_owned()).await;
    let busy = |_| {
        let reason = format!("another listing of the dataset did not end within {limit:?}");
        failed(io::ErrorKind::TimedOut, reason)
    };
    let permit = permit.map_err(busy)?;
    let progress = Arc::<Progress>::default();
    let _abandoned = progress.abandoned.clone().drop_guard();
    // A file system call that hangs keeps its thread and the permit, so at most one listing of a dataset hangs.
    let mut listing = {
        let (location, config, progress) = (location.clone(), config.clone(), Arc::clone(&progress));
        tokio::spawn(async move {
            let _permit = permit;
            list_all(&location, &config, &progress).await
        })
    };
    loop {
        let before = progress.objects.load(Ordering::Relaxed);
        match timeout(limit, &mut listing).await {
            Ok(Ok(listed)) => return listed,
            // The task fails when it panics or the runtime shuts down.
            Ok(Err(error)) => return Err(failed(io::ErrorKind::Other, error.to_string())),
            Err(_) if progress.objects.load(Ordering::Relaxed) == before => {
                let reason = format!(
                    "the file system did not answer within {limit:?} (5 times storage.request_timeout) while the dataset was \
                     listed"
                );
                return Err(failed(io::ErrorKind::TimedOut, reason));
            }
            Err(_) => {}
        }
    }
}

/// Progress of a listing.
#[derive(Default)]
struct Progress {
    /// Number of objects that were listed.
    objects: AtomicU64,
    /// Cancelled when the caller stops waiting. The listing then stops at the next object that it finds.
    abandoned: CancellationToken,
}

/// Lists a dataset like [`list`], without a time limit. The listing is incomplete if it is abandoned.
async fn list_all(location: &Location, config: &Config, progress: &Progress) -> Result<Listing, Error> {
    let listing = match single(location).await? {
        Some(file) => Listing { folder: false, files: vec![file] },
        None => Listing { folder: true, files: below(location, config, progress).await? },
    };
    if listing.files.is_empty() {
        let detail =
            "no such file, and no *.parquet files below it (names that begin with _ or . are skipped)";
        return Err(Error::NotFound { location: location.url().to_owned(), detail: detail.to_owned() });
    }
    for file in &listing.files {
        let url = || if listing.folder { location.child_url(&file.path) } else { location.url().to_owned() };
        if file.version.size == 0 {
            return Err(Error::corrupt(url(), "the file is empty; expected Parquet"));
        }
        if location.kind() != Kind::Local && !file.version.has_validator() {
            let detail = "the server returns neither an ETag nor a Last-Modified header for the file, expected one of \
                          them; without it, a change of the file would go unnoticed";
            return Err(Error::unsupported(url(), detail));
        }
    }
    Ok(listing)
}

/// Returns the location itself if it is an object.
async fn single(location: &Location) -> Result<Option<Listed>, Error> {
    let Some(name) = location.root().filename() else { return Ok(None) };
    if let Some(reads) = location.local_reads()
        && is_directory(location, reads).await
    {
        return Ok(None);
    }
    let Some(meta) = head(location, location.root(), location.url()).await? else { return Ok(None) };
    // Some stores represent a folder by an empty object.
    if meta.size == 0 && !name.ends_with(EXTENSION) && location.kind() == Kind::Object {
        return Ok(None);
    }
    Ok(Some(Listed { path: name.to_owned(), version: Version::new(location.kind(), &meta) }))
}

async fn is_directory(location: &Location, reads: &LocalReads) -> bool {
    let path = format!("/{}", location.root());
    let permit = reads.file_system_permit().await;
    let found = spawn_blocking(move || {
        let found = std::fs::metadata(path);
        drop(permit);
        found
    });
    let Ok(Ok(found)) = found.await else { return false };
    reads.found_on(found.dev());
    found.is_dir()
}

const EXTENSION: &str = ".parquet";

async fn below(location: &Location, config: &Config, progress: &Progress) -> Result<Vec<Listed>, Error> {
    if location.kind() == Kind::Http {
        return Ok(Vec::new());
    }
    let mut files = observed("list", walk(location, config, progress)).await?;
    files.sort_unstable_by(|a, b| a.path.as_bytes().cmp(b.path.as_bytes()));
    Ok(files)
}

async fn walk(location: &Location, config: &Config, progress: &Progress) -> Result<Vec<Listed>, Error> {
    let mut files = Vec::new();
    let mut objects = location.store().list(Some(location.root()));
    let (mut permit, mut objects_with_permit) = (None, PAGE_OBJECTS);
    loop {
        // A long listing leaves permits to other calls in between.
        if let Some(reads) = location.local_reads()
            && objects_with_permit == PAGE_OBJECTS
        {
            drop(permit.take());
            permit = Some(reads.file_system_permit().await);
            objects_with_permit = 0;
        }
        objects_with_permit += 1;
        let next = objects.try_next().await;
        let Some(meta) = next.map_err(|error| walk_error(location, error))? else { break };
        let listed = progress.objects.fetch_add(1, Ordering::Relaxed) + 1;
        if progress.abandoned.is_cancelled() {
            break;
        }
        // A store that returns the same page again and again would otherwise be listed without end.
        if listed > config.max_listed_objects {
            let what = "number of objects in the folder (max_listed_objects)";
            return Err(Error::limit(location.url(), what, config.max_listed_objects, listed));
        }
        let Some(path) = relative(location, &meta) else { continue };
        // `is_data` skips the log files of table formats, so they are checked first.
        tables::check_file(location, path)?;
        if !is_data(path) {
            check_partitions(location, path)?;
            continue;
        }
        if files.len() == config.max_files {
            let (limit, found) = (config.max_files as u64, files.len() as u64 + 1);
            return Err(Error::limit(location.url(), "number of files (max_files)", limit, found));
        }
        files.push(Listed { path: path.to_owned(), version: Version::new(location.kind(), &meta) });
    }
    Ok(files)
}

fn walk_error(location: &Location, error: object_store::Error) -> Error {
    match error {
        object_store::Error::NotFound { .. } => Error::NotFound {
            location: location.url().to_owned(),
            detail: "no such file or folder".to_owned(),
        },
        error => Error::unavailable(location.url(), &error),
    }
}

fn relative<'a>(location: &Location, meta: &'a ObjectMeta) -> Option<&'a str> {
    let path = meta.location.as_ref();
    if location.root().is_root() {
        return Some(path);
    }
    path.strip_prefix(location.root().as_ref())?.strip_prefix('/')
}

fn is_data(path: &str) -> bool {
    path.ends_with(EXTENSION) && !path.split('/').any(|name| name.starts_with(['_', '.']))
}

/// Checks that a file that is no data is not skipped because of the folder of a partition column. Other readers disagree about such a
/// folder: some skip its rows, and some read them.
///
/// # Errors
/// [`Error::Unsupported`] with the name of the folder.
fn check_partitions(location: &Location, path: &str) -> Result<(), Error> {
    let Some((folders, name)) = path.rsplit_once('/') else { return Ok(()) };
    let is_skipped = |name: &str| name.starts_with(['_', '.']);
    let folder = folders.split('/').find(|folder| is_skipped(folder));
    let Some(folder) = folder.filter(|folder| folder.contains('=')) else { return Ok(()) };
    if is_skipped(name) || !name.ends_with(EXTENSION) {
        return Ok(());
    }
    let detail = format!(
        "{path} is below the folder {folder}, which is a partition column by its '=' and would be skipped by its first \
         character; rename the folder, or move it out of the dataset"
    );
    Err(Error::unsupported(location.url(), detail))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::file_system::FileSystem;

    #[tokio::test]
    #[cfg(target_os = "linux")]
    async fn a_dataset_behind_a_symbolic_link_counts_to_the_file_system_of_its_target_once_it_was_listed() {
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink("/proc/sys", &link).unwrap();
        // No other test has this limit, so that no other test holds permits.
        let config = Config { concurrent_file_system_calls: 3, ..Config::default() };
        let device = |path: &str| std::fs::metadata(path).unwrap().dev();
        let system = |device: u64| FileSystem::of_device(device, config.concurrent_file_system_calls);
        let (of_link, of_target) =
            (system(directory.path().metadata().unwrap().dev()), system(device("/proc")));

        let location = Location::parse(&link.to_string_lossy(), &config).unwrap();
        let reads = location.local_reads().unwrap();
        let before = reads.file_system_permit().await;
        assert_eq!((of_link.free(), of_target.free()), (2, 3));
        drop(before);
        assert!(is_directory(&location, reads).await);
        let after = reads.file_system_permit().await;
        assert_eq!((of_link.free(), of_target.free()), (3, 2));
        drop(after);
    }
}
