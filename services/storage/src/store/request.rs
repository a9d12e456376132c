//! Requests to an object store: bound to a file version, bounded in time, with metrics and mapped errors.

use std::{ops::Range, sync::Arc, time::Instant};

use bytes::Bytes;
use chrono::{DateTime, TimeDelta, Utc};
use futures::{FutureExt, TryStreamExt};
use object_store::{
    GetOptions, GetRange, GetResult, ObjectMeta, PutMode, PutOptions, PutPayload, path::Path,
};

use crate::{
    Error, Location,
    dataset::{memory::SnapshotMemory, version::Version},
    store::{
        local_file, local_object,
        location::Kind,
        retries::{Operation, single_attempt, tracked},
        target::Target,
    },
};

/// Number of objects that are listed within the time limit of one request. `object_store` reads the metadata of as many files in one
/// blocking call.
pub(crate) const PAGE_OBJECTS: usize = 1024;

/// Reads `range` of one pinned file.
///
/// # Errors
/// [`Error::Changed`] if the file is not the pinned version, [`Error::PermissionDenied`] if the store refuses access,
/// [`Error::Unavailable`] if the store fails.
pub(crate) async fn read(location: &Location, target: &Target, range: Range<u64>) -> Result<Bytes, Error> {
    let read = || async {
        match location.local_reads() {
            Some(reads) => local_file::read(target, range.clone(), reads).await,
            None => read_checked(location, target, range.clone()).await,
        }
    };
    let (mut outcome, mut operation) = observed_operation("get", read()).await;
    if matches!(outcome, Err(Error::PermissionDenied { .. })) && operation.retries > 0 {
        // A retry has the signature of the first attempt, which may have expired since then. A new request gets a new
        // signature.
        (outcome, operation) = observed_operation("get", read()).await;
    }
    match &outcome {
        Ok(bytes) => metrics::counter!("forebay_storage_read_bytes_total").increment(bytes.len() as u64),
        // A range past the end of a file that shrank is refused by some stores. The version tells that apart from other
        // errors. A store that fails or does not answer says nothing about the file.
        // A local read has compared the version itself.
        Err(Error::Unavailable { .. }) if !operation.is_failing && location.kind() != Kind::Local => {
            let head = head(location, &target.path, &target.url);
            if let Ok(Some(meta)) = single_attempt(head).await {
                check_version(location.kind(), target, &meta)?;
            }
        }
        Err(_) => {}
    }
    outcome
}

async fn read_checked(location: &Location, target: &Target, range: Range<u64>) -> Result<Bytes, Error> {
    let options = GetOptions {
        if_match: target.version.strong_etag().map(str::to_owned),
        if_unmodified_since: unmodified_since(location.kind(), &target.version),
        range: Some(GetRange::Bounded(range.clone())),
        ..GetOptions::default()
    };
    let found = location.store().get_opts(&target.path, options).await;
    let found = found.map_err(|error| read_error(target, error))?;
    check_version(location.kind(), target, &found.meta)?;

    let expected = range.end - range.start;
    let bytes = collected(found, expected).await.map_err(|error| read_error(target, error))?;
    if bytes.len() as u64 != expected {
        let (found, start) = (bytes.len(), range.start);
        return Err(target.changed(format!("{found} of {expected} bytes at offset {start}")));
    }
    Ok(bytes)
}

/// Collects the body of a response, up to the first part after `expected` bytes. A store could otherwise send any number of bytes.
async fn collected(found: GetResult, expected: u64) -> object_store::Result<Bytes> {
    let mut parts = found.into_stream();
    let Some(first) = parts.try_next().await? else { return Ok(Bytes::new()) };
    if first.len() as u64 >= expected {
        return Ok(first);
    }
    let mut bytes = Vec::with_capacity(usize::try_from(expected).unwrap_or(0));
    bytes.extend_from_slice(&first);
    while let Some(part) = parts.try_next().await? {
        bytes.extend_from_slice(&part);
        if bytes.len() as u64 > expected {
            break;
        }
    }
    Ok(bytes.into())
}

/// Returns the `If-Unmodified-Since` date. HTTP dates have whole seconds, so the time is rounded up: an object would
/// otherwise look newer than itself.
fn unmodified_since(kind: Kind, version: &Version) -> Option<DateTime<Utc>> {
    let dated = kind != Kind::Local && version.strong_etag().is_none() && version.modified_ns > 0;
    dated.then(|| version.modified() + TimeDelta::seconds(1))
}

fn check_version(kind: Kind, target: &Target, found: &ObjectMeta) -> Result<(), Error> {
    let now = Version::new(kind, found);
    if target.version.is_still(kind, &now) { Ok(()) } else { Err(target.changed(now.to_string())) }
}

fn read_error(target: &Target, error: object_store::Error) -> Error {
    match error {
        object_store::Error::NotFound { .. } => target.changed("no such file"),
        object_store::Error::Precondition { .. } | object_store::Error::NotModified { .. } => {
            target.changed("another version")
        }
        error => Error::unavailable(&target.url, &error),
    }
}

/// Returns the metadata of the object at `path`; `None` if there is no object.
pub(crate) async fn head(location: &Location, path: &Path, url: &str) -> Result<Option<ObjectMeta>, Error> {
    let (store, path) = (Arc::clone(location.store()), path.clone());
    let head = async move {
        let options = GetOptions { head: true, ..GetOptions::default() };
        store.get_opts(&path, options).await.map(|found| found.meta)
    };
    if_found(observed("head", in_time(location, 0, head)).await, url)
}

/// Reads a whole small object of any version; `None` if there is no object.
pub(crate) async fn get(location: &Location, path: &Path, url: &str) -> Result<Option<Bytes>, Error> {
    get_within(location, path, url, &mut SnapshotMemory::new(None)).await
}

/// Reads a whole object of any version once its bytes are charged to `memory`; `None` if there is no object.
///
/// # Errors
/// The errors of the store, and [`Error::Limit`] if the memory budget has no room for the object.
pub(crate) async fn get_within(
    location: &Location,
    path: &Path,
    url: &str,
    memory: &mut SnapshotMemory,
) -> Result<Option<Bytes>, Error> {
    let (store, path) = (Arc::clone(location.store()), path.clone());
    let whole = async {
        let open = async move { store.get_opts(&path, GetOptions::default()).await };
        let found = in_time(location, 0, open).await?;
        if let Err(refused) = memory.raise(found.meta.size, url).await {
            return Ok(Err(refused));
        }
        in_time(location, found.meta.size, found.bytes()).await.map(Ok)
    };
    if_found(observed("get", whole).await, url)?.transpose()
}

fn if_found<T>(outcome: object_store::Result<T>, url: &str) -> Result<Option<T>, Error> {
    match outcome {
        Ok(found) => Ok(Some(found)),
        Err(error @ object_store::Error::NotFound { .. }) if !is_without_bucket(&error) => Ok(None),
        Err(error) => Err(Error::unavailable(url, &error)),
    }
}

/// True if the whole bucket is missing, and not only an object. Responses to HEAD have no body from which this is known.
fn is_without_bucket(error: &object_store::Error) -> bool {
    let text = error.to_string();
    ["<Code>NoSuchBucket", "<Code>ContainerNotFound"].iter().any(|code| text.contains(code))
}

/// Writes a whole object. With [`PutMode::Create`] an existing object stays unchanged; a store without conditional
/// writes overwrites it.
pub(crate) async fn put(
    location: &Location,
    path: &Path,
    url: &str,
    bytes: Bytes,
    mode: PutMode,
) -> Result<(), Error> {
    if location.local_reads().is_some() {
        let length = bytes.len() as u64;
        let put = in_time(location, length, local_object::put(path.clone(), bytes, mode));
        return match observed("put", put).await {
            Ok(()) | Err(object_store::Error::AlreadyExists { .. }) => Ok(()),
            Err(error) => Err(Error::unavailable(url, &error)),
        };
    }
    let payload = PutPayload::from_bytes(bytes);
    let put = |mode: PutMode| {
        let options = PutOptions { mode, ..PutOptions::default() };
        tracked(location.store().put_opts(path, payload.clone(), options)).map(|(outcome, _)| outcome)
    };
    let put_in_mode = async {
        match put(mode).await {
            Err(object_store::Error::NotImplemented { .. }) => put(PutMode::Overwrite).await.map(drop),
            Err(object_store::Error::AlreadyExists { .. }) => Ok(()),
            outcome => outcome.map(drop),
        }
    };
    observed("put", put_in_mode).await.map_err(|error| Error::unavailable(url, &error))
}

/// Runs a request that transfers `bytes` bytes. Requests to a local folder are bounded in number and time; for other locations the
/// HTTP client does that.
pub(crate) async fn in_time<T: Send + 'static>(
    location: &Location,
    bytes: u64,
    request: impl Future<Output = object_store::Result<T>> + Send + 'static,
) -> object_store::Result<T> {
    match location.local_reads() {
        Some(reads) => local_object::in_time(reads, bytes, request).await,
        None => request.await,
    }
}

/// Lists the objects below `path` that `keep` selects, or none if there is no such folder. For a local folder, the time limit of a
/// request applies to each [`PAGE_OBJECTS`] objects, and other requests to the folder can be made in between.
///
/// # Errors
/// Errors of the store; an error if a page is not listed in time.
pub(crate) async fn list(
    location: &Location,
    path: &Path,
    keep: impl Fn(&ObjectMeta) -> bool,
) -> object_store::Result<Vec<ObjectMeta>> {
    let mut objects = location.store().list(Some(path));
    let (mut found, mut is_first) = (Vec::new(), true);
    loop {
        let page = async move {
            let mut page = Vec::new();
            while page.len() < PAGE_OBJECTS
                && let Some(meta) = objects.try_next().await?
            {
                page.push(meta);
            }
            Ok((page, objects))
        };
        let page = match in_time(location, 0, page).await {
            Err(object_store::Error::NotFound { .. }) if is_first => return Ok(found),
            page => page?,
        };
        let is_last = page.0.len() < PAGE_OBJECTS;
        found.extend(page.0.into_iter().filter(&keep));
        if is_last {
            return Ok(found);
        }
        (objects, is_first) = (page.1, false);
    }
}

/// Counts bytes that a reader needs. Bytes read beyond these are the cost of coalescing requests.
pub(crate) fn count_requested(bytes: u64) {
    metrics::counter!("forebay_storage_requested_bytes_total").increment(bytes);
}

/// Runs a request. Records its outcome and duration, and counts its retries.
pub(crate) async fn observed<T, E>(
    operation: &'static str,
    request: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    observed_operation(operation, request).await.0
}

/// Runs a request as [`observed`], and returns its HTTP requests as well.
async fn observed_operation<T, E>(
    operation: &'static str,
    request: impl Future<Output = Result<T, E>>,
) -> (Result<T, E>, Operation) {
    let started = Instant::now();
    let (outcome, requests) = tracked(request).await;
    let label = if outcome.is_ok() { "ok" } else { "error" };
    metrics::counter!("forebay_storage_requests_total", "operation" => operation, "outcome" => label)
        .increment(1);
    metrics::histogram!("forebay_storage_request_duration_seconds", "operation" => operation)
        .record(started.elapsed().as_secs_f64());
    (outcome, requests)
}

#[cfg(test)]
mod tests;
