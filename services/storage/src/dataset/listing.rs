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

mod local_walk;
mod names;
mod skipped;
pub(crate) mod tables;

use local_walk::LocalWalk;
use names::{has_extension, is_data, is_hidden};
use skipped::Skipped;

/// Current files of a dataset.
#[derive(Clone)]
pub(crate) struct Listing {
    /// True if the location is a folder, false if it is a single file.
    pub(crate) folder: bool,
    /// Files in bytewise order of their relative paths.
    pub(crate) files: Vec<Listed>,
    /// Files of the folder that are skipped because of their names.
    pub(crate) skipped: Skipped,
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
    // One blocking call finds up to 1,024 files and reads the metadata of each. `request_timeout` is meant for one request, so
    // such a call may take longer.
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
        Some(file) => Listing { folder: false, files: vec![file], skipped: Skipped::default() },
        None => {
            let (files, skipped) = below(location, config, progress).await?;
            Listing { folder: true, files, skipped }
        }
    };
    if listing.files.is_empty() {
        let mut detail = format!("no such file, and no *.parquet files below it ({})", listing.skipped);
        if location.url().contains(['*', '?', '[', '{']) {
            detail.push_str(
                "; globs are not supported: name the folder, all of whose *.parquet files are read",
            );
        }
        return Err(Error::NotFound { location: location.url().to_owned(), detail });
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
        && is_directory(location, reads).await?
    {
        return Ok(None);
    }
    let Some(meta) = head(location, location.root(), location.url()).await? else { return Ok(None) };
    // Some stores represent a folder by an empty object.
    if meta.size == 0 && !has_extension(name) && location.kind() == Kind::Object {
        return Ok(None);
    }
    Ok(Some(Listed { path: name.to_owned(), version: Version::new(location.kind(), &meta) }))
}

/// True if a local location is a folder.
///
/// # Errors
/// [`Error::Unsupported`] if it is neither a folder nor a file. Opening a FIFO would wait for a writer.
async fn is_directory(location: &Location, reads: &LocalReads) -> Result<bool, Error> {
    let path = format!("/{}", location.root());
    let permit = reads.file_system_permit().await;
    let found = spawn_blocking(move || {
        let found = std::fs::metadata(path);
        drop(permit);
        found
    });
    let Ok(Ok(found)) = found.await else { return Ok(false) };
    reads.found_on(found.dev());
    match found.is_dir() || found.is_file() {
        true => Ok(found.is_dir()),
        false => Err(Error::unsupported(
            location.url(),
            "a pipe, a socket or a device; expected a file or a folder",
        )),
    }
}

async fn below(
    location: &Location,
    config: &Config,
    progress: &Progress,
) -> Result<(Vec<Listed>, Skipped), Error> {
    if location.kind() == Kind::Http {
        return Ok((Vec::new(), Skipped::default()));
    }
    let (files, skipped) = (Vec::new(), Skipped::default());
    let mut collection = Collection { location, config, progress, files, skipped };
    let walk = async {
        match location.local_reads() {
            Some(reads) => walk_local(reads, &mut collection).await,
            None => walk(&mut collection).await,
        }
    };
    observed("list", walk).await?;
    let Collection { mut files, skipped, .. } = collection;
    files.sort_unstable_by(|a, b| a.path.as_bytes().cmp(b.path.as_bytes()));
    Ok((files, skipped))
}

/// Files of a folder, while it is listed.
struct Collection<'a> {
    location: &'a Location,
    config: &'a Config,
    progress: &'a Progress,
    files: Vec<Listed>,
    skipped: Skipped,
}

impl Collection<'_> {
    /// Counts an object of the folder. Returns true if the listing was abandoned.
    fn count(&self) -> Result<bool, Error> {
        let listed = self.progress.objects.fetch_add(1, Ordering::Relaxed) + 1;
        if self.progress.abandoned.is_cancelled() {
            return Ok(true);
        }
        // A store that returns the same page again and again would otherwise be listed without end.
        if listed > self.config.max_listed_objects {
            let what = "number of objects in the folder (max_listed_objects)";
            return Err(Error::limit(self.location.url(), what, self.config.max_listed_objects, listed));
        }
        Ok(false)
    }

    /// Adds an object with its path below the folder, or with the escaped form of a path that is not nameable.
    fn add(&mut self, path: &str, is_nameable: bool, version: Version) -> Result<(), Error> {
        // `is_data` skips the log files of table formats, so they are checked first.
        tables::check_file(self.location, path)?;
        if !is_data(path) {
            check_partitions(self.location, path)?;
            self.skipped.add(path);
            return Ok(());
        }
        if !is_nameable {
            let detail = format!(
                "the path of the file {path} is not UTF-8 or has control characters; rename the file, or move it out of the \
                 dataset"
            );
            return Err(Error::unsupported(self.location.url(), detail));
        }
        if self.files.len() == self.config.max_files {
            let (limit, found) = (self.config.max_files as u64, self.files.len() as u64 + 1);
            return Err(Error::limit(self.location.url(), "number of files (max_files)", limit, found));
        }
        self.files.push(Listed { path: path.to_owned(), version });
        Ok(())
    }
}

async fn walk(collection: &mut Collection<'_>) -> Result<(), Error> {
    let location = collection.location;
    let mut objects = location.store().list(Some(location.root()));
    while let Some(meta) = objects.try_next().await.map_err(|error| walk_error(location, error))? {
        if collection.count()? {
            break;
        }
        let Some(path) = relative(location, &meta) else { continue };
        collection.add(path, true, Version::new(location.kind(), &meta))?;
    }
    Ok(())
}

async fn walk_local(reads: &LocalReads, collection: &mut Collection<'_>) -> Result<(), Error> {
    let location = collection.location;
    let mut walk = LocalWalk::new(format!("/{}", location.root()).into());
    loop {
        // A long listing leaves permits to other calls in between.
        let permit = reads.file_system_permit().await;
        let page = spawn_blocking(move || {
            let page = walk.next_files(PAGE_OBJECTS);
            drop(permit);
            (walk, page)
        });
        let (rest, page) = page.await.map_err(|error| walk_error(location, error.into()))?;
        walk = rest;
        let Some(page) = page.map_err(|error| walk_error(location, error))? else { return Ok(()) };
        for file in page {
            if collection.count()? {
                return Ok(());
            }
            collection.add(&file.path, file.is_nameable, file.version)?;
        }
    }
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

/// Checks that a file that is no data is not skipped because of the folder of a partition column. Other readers disagree about such a
/// folder: some skip its rows, and some read them.
///
/// # Errors
/// [`Error::Unsupported`] with the name of the folder.
fn check_partitions(location: &Location, path: &str) -> Result<(), Error> {
    let Some((folders, name)) = path.rsplit_once('/') else { return Ok(()) };
    let folder = folders.split('/').find(|folder| is_hidden(folder));
    let Some(folder) = folder.filter(|folder| folder.contains('=')) else { return Ok(()) };
    if is_hidden(name) || !has_extension(name) {
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
        assert!(is_directory(&location, reads).await.unwrap());
        let after = reads.file_system_permit().await;
        assert_eq!((of_link.free(), of_target.free()), (3, 2));
        drop(after);
    }
}
