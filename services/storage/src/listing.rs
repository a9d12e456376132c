//! Which files make up a dataset: one object, or every `*.parquet` below a folder.

use std::time::Instant;

use futures::TryStreamExt;
use object_store::ObjectMeta;

use crate::{
    Config, Error, Location,
    attempts::counted,
    location::Kind,
    request::{head, observe, unavailable},
    version::Version,
};

/// The files of a dataset as they are now.
pub(crate) struct Listing {
    /// Whether the location is a folder; else it is the one file itself.
    pub(crate) folder: bool,
    /// In bytewise order of the relative path.
    pub(crate) files: Vec<Listed>,
}

/// One file: its path below the location (its name, if it is the location), and its version.
pub(crate) struct Listed {
    pub(crate) path: String,
    pub(crate) version: Version,
}

/// Lists a dataset.
///
/// # Errors
/// [`Error::NotFound`] without a file, [`Error::Unsupported`] for a table format's folder,
/// [`Error::Corrupt`] for a file without bytes, [`Error::Limit`] for too many files.
pub(crate) async fn list(location: &Location, config: &Config) -> Result<Listing, Error> {
    let listing = match single(location).await? {
        Some(file) => Listing { folder: false, files: vec![file] },
        None => Listing { folder: true, files: below(location, config).await? },
    };
    if listing.files.is_empty() {
        let detail = "no file there, and no *.parquet below it (names that begin with _ or . are skipped)";
        return Err(Error::NotFound { location: location.url().to_owned(), detail: detail.to_owned() });
    }
    for file in &listing.files {
        if file.version.size == 0 {
            let url = if listing.folder { location.child_url(&file.path) } else { location.url().to_owned() };
            return Err(Error::corrupt(url, "the file is empty; expected Parquet"));
        }
    }
    Ok(listing)
}

/// The location itself, if it is an object.
async fn single(location: &Location) -> Result<Option<Listed>, Error> {
    let Some(name) = location.root().filename() else { return Ok(None) };
    if location.kind() == Kind::Local && is_directory(location).await {
        return Ok(None);
    }
    let Some(meta) = head(location, location.root(), location.url()).await? else { return Ok(None) };
    // An empty object without the extension is how some stores mark a folder.
    if meta.size == 0 && !name.ends_with(EXTENSION) && location.kind() == Kind::Object {
        return Ok(None);
    }
    Ok(Some(Listed { path: name.to_owned(), version: Version::of(location.kind(), &meta) }))
}

async fn is_directory(location: &Location) -> bool {
    let path = format!("/{}", location.root());
    tokio::fs::metadata(path).await.is_ok_and(|found| found.is_dir())
}

const EXTENSION: &str = ".parquet";

async fn below(location: &Location, config: &Config) -> Result<Vec<Listed>, Error> {
    if location.kind() == Kind::Http {
        return Ok(Vec::new());
    }
    let started = Instant::now();
    let outcome = counted(walk(location, config)).await;
    observe("list", started, outcome.is_ok());
    let mut files = outcome?;
    files.sort_unstable_by(|a, b| a.path.as_bytes().cmp(b.path.as_bytes()));
    Ok(files)
}

async fn walk(location: &Location, config: &Config) -> Result<Vec<Listed>, Error> {
    let mut files = Vec::new();
    let mut objects = location.store().list(Some(location.root()));
    while let Some(meta) = objects.try_next().await.map_err(|error| walk_error(location, error))? {
        let Some(path) = relative(location, &meta) else { continue };
        if let Some(format) = table_format(path) {
            let detail =
                format!("it is a table of {format} ({path}); reading its files would read deleted rows");
            return Err(Error::unsupported(location.url(), detail));
        }
        if !is_data(path) {
            continue;
        }
        if files.len() == config.max_files {
            return Err(Error::Limit {
                location: location.url().to_owned(),
                what: "number of files (max_files)",
                limit: config.max_files as u64,
                found: files.len() as u64 + 1,
            });
        }
        files.push(Listed { path: path.to_owned(), version: Version::of(location.kind(), &meta) });
    }
    Ok(files)
}

fn walk_error(location: &Location, error: object_store::Error) -> Error {
    match error {
        object_store::Error::NotFound { .. } => Error::NotFound {
            location: location.url().to_owned(),
            detail: "no such file or folder".to_owned(),
        },
        error => unavailable(location.url(), error),
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

/// The table format whose log lies at `path`.
fn table_format(path: &str) -> Option<&'static str> {
    if path.starts_with("_delta_log/") {
        return Some("Delta Lake");
    }
    let metadata = path.strip_prefix("metadata/")?;
    (!metadata.contains('/') && metadata.ends_with(".metadata.json")).then_some("Apache Iceberg")
}
