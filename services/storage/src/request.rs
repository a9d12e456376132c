//! Requests to a store: versioned, counted, and their errors told by what a caller would do.

use std::{ops::Range, sync::Arc, time::Instant};

use bytes::Bytes;
use chrono::{DateTime, TimeDelta, Utc};
use object_store::{GetOptions, GetRange, ObjectMeta, PutMode, PutOptions, PutPayload, path::Path};

use crate::{Error, Location, attempts::counted, local, location::Kind, version::Version};

/// Reads `range` of one pinned file, which `url` names in errors.
pub(crate) async fn read(
    location: &Location,
    path: &Path,
    url: &str,
    version: &Version,
    range: Range<u64>,
) -> Result<Bytes, Error> {
    let started = Instant::now();
    let outcome = match location.slabs() {
        Some(slabs) => local::read(path, url, version, range, slabs).await,
        None => counted(read_checked(location, path, url, version, range)).await,
    };
    observe("get", started, outcome.is_ok());
    match &outcome {
        Ok(bytes) => {
            metrics::counter!("forebay_storage_read_bytes_total").increment(bytes.len() as u64);
        }
        // A range that lies beyond a file's new end fails like any other request: look.
        Err(Error::Unavailable { .. }) => {
            if let Ok(Some(meta)) = head(location, path, url).await {
                check_version(location.kind(), url, version, &meta)?;
            }
        }
        Err(_) => {}
    }
    outcome
}

async fn read_checked(
    location: &Location,
    path: &Path,
    url: &str,
    version: &Version,
    range: Range<u64>,
) -> Result<Bytes, Error> {
    let options = GetOptions {
        if_match: version.strong_etag().map(str::to_owned),
        if_unmodified_since: unmodified_since(location.kind(), version),
        range: Some(GetRange::Bounded(range.clone())),
        ..GetOptions::default()
    };
    let found = location.store().get_opts(path, options).await;
    let found = found.map_err(|error| read_error(url, version, error))?;
    check_version(location.kind(), url, version, &found.meta)?;

    let bytes = found.bytes().await.map_err(|error| read_error(url, version, error))?;
    let expected = range.end - range.start;
    if bytes.len() as u64 != expected {
        let found = format!("{} of {expected} bytes at offset {}", bytes.len(), range.start);
        return Err(changed(url, version, found));
    }
    Ok(bytes)
}

/// HTTP dates have whole seconds: the next one, or an object would look newer than itself.
fn unmodified_since(kind: Kind, version: &Version) -> Option<DateTime<Utc>> {
    let dated = kind != Kind::Local && version.strong_etag().is_none() && version.modified_ns > 0;
    dated.then(|| version.modified() + TimeDelta::seconds(1))
}

fn check_version(kind: Kind, url: &str, version: &Version, found: &ObjectMeta) -> Result<(), Error> {
    let now = Version::of(kind, found);
    let same = now.size == version.size
        && match kind {
            Kind::Local => now.modified_ns == version.modified_ns,
            // Some stores tell an ETag with an object and none in a listing.
            Kind::Http | Kind::Object => {
                now.etag.is_none() || version.etag.is_none() || now.etag == version.etag
            }
        };
    if same { Ok(()) } else { Err(changed(url, version, now.to_string())) }
}

pub(crate) fn changed(url: &str, version: &Version, found: impl Into<String>) -> Error {
    Error::Changed { file: url.to_owned(), expected: version.to_string(), found: found.into() }
}

fn read_error(url: &str, version: &Version, error: object_store::Error) -> Error {
    match error {
        object_store::Error::NotFound { .. } => changed(url, version, "no such file"),
        object_store::Error::Precondition { .. } | object_store::Error::NotModified { .. } => {
            changed(url, version, "another version")
        }
        error => unavailable(url, error),
    }
}

/// Whether there is an object at `path`, and which.
pub(crate) async fn head(location: &Location, path: &Path, url: &str) -> Result<Option<ObjectMeta>, Error> {
    let started = Instant::now();
    let options = GetOptions { head: true, ..GetOptions::default() };
    let outcome = counted(location.store().get_opts(path, options)).await;
    observe("head", started, outcome.is_ok());
    match outcome {
        Ok(found) => Ok(Some(found.meta)),
        Err(object_store::Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(unavailable(url, error)),
    }
}

/// A whole small object, of whatever version; `None` if there is none.
pub(crate) async fn get(location: &Location, path: &Path, url: &str) -> Result<Option<Bytes>, Error> {
    let started = Instant::now();
    let whole = async { location.store().get_opts(path, GetOptions::default()).await?.bytes().await };
    let outcome = counted(whole).await;
    observe("get", started, outcome.is_ok());
    match outcome {
        Ok(bytes) => Ok(Some(bytes)),
        Err(object_store::Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(unavailable(url, error)),
    }
}

/// Writes an object whole. With [`PutMode::Create`] an object that is there already is left alone, or, in a
/// store that cannot tell, written again.
pub(crate) async fn put(
    location: &Location,
    path: &Path,
    url: &str,
    bytes: Bytes,
    mode: PutMode,
) -> Result<(), Error> {
    let started = Instant::now();
    let payload = PutPayload::from_bytes(bytes);
    let put = async |mode| {
        let options = PutOptions { mode, ..PutOptions::default() };
        counted(location.store().put_opts(path, payload.clone(), options)).await
    };
    let outcome = match put(mode).await {
        Err(object_store::Error::NotImplemented { .. }) => put(PutMode::Overwrite).await.map(drop),
        Err(object_store::Error::AlreadyExists { .. }) => Ok(()),
        outcome => outcome.map(drop),
    };
    observe("put", started, outcome.is_ok());
    outcome.map_err(|error| unavailable(url, error))
}

pub(crate) fn unavailable(url: &str, error: object_store::Error) -> Error {
    Error::Unavailable { location: url.to_owned(), source: Arc::new(error) }
}

/// Counts bytes of a file that somebody needs. What is read beyond them is the cost of reading in few requests.
pub(crate) fn wanted(bytes: u64) {
    metrics::counter!("forebay_storage_wanted_bytes_total").increment(bytes);
}

pub(crate) fn observe(operation: &'static str, started: Instant, ok: bool) {
    let outcome = if ok { "ok" } else { "error" };
    metrics::counter!("forebay_storage_requests_total", "operation" => operation, "outcome" => outcome)
        .increment(1);
    metrics::histogram!("forebay_storage_request_duration_seconds", "operation" => operation)
        .record(started.elapsed().as_secs_f64());
}
