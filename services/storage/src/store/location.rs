//! Locations: an object store and a path in it, parsed from a URL.

use std::{fmt, path::Component, sync::Arc, time::Duration};

use forebay_cache::Slabs;
use object_store::{ObjectStore, limit::LimitStore, local::LocalFileSystem, path::Path};
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};
use url::Url;

use crate::{
    Config, Error,
    store::{
        answers::{Answers, Asked},
        credentials::Credentials,
        file_system::{FileSystem, Mounts},
        remote::remote,
        shown_url::{check_url, shown_url},
    },
};

/// Total size of the footers, page indexes and bloom filters of one location that are read and parsed at a time, in bytes. A longer one is
/// read alone.
const FOOTER_ROOM: u32 = 64 << 20;

/// Kind of a store: the form of its object versions, and whether it supports listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Local file system. A version is a size and a modification time.
    Local,
    /// HTTP server. A version is an ETag. Does not support listing.
    Http,
    /// Object store. A version is an ETag.
    Object,
}

/// An object store and a path in it, which names one object or a prefix (a folder). Cheap to clone; clones share the
/// limit on concurrent requests.
#[derive(Clone)]
pub struct Location {
    url: Arc<str>,
    store: Arc<dyn ObjectStore>,
    root: Path,
    kind: Kind,
    /// One permit per byte of the footers that are read and parsed.
    footer_room: Arc<Semaphore>,
    /// Reads of local files; `None` for other kinds.
    local: Option<LocalReads>,
    answers: Answers,
    /// Separates what is cached of this location from what is cached of the same files for others; `None` if it is shared.
    scope: Option<u128>,
}

/// Bounds and buffers of the reads of one local folder. A folder that hangs takes only its own share of the threads of its file
/// system, and a file system that hangs only its own share of the blocking threads.
#[derive(Clone)]
pub(crate) struct LocalReads {
    pub(crate) slabs: Slabs,
    permits: Arc<Semaphore>,
    file_system: Arc<Mutex<FileSystem>>,
    /// Maximum number of concurrent calls to one file system.
    pub(crate) file_system_calls: usize,
    /// Permit of the one listing at a time.
    pub(crate) listing: Arc<Semaphore>,
    /// Permit of the one search of the folders above at a time.
    pub(crate) parents: Arc<Semaphore>,
    pub(crate) timeout: Duration,
    answers: Answers,
}

/// Permits of one call to a local folder: its own, and one of its file system.
pub(crate) struct CallPermit {
    _folder: OwnedSemaphorePermit,
    _file_system: OwnedSemaphorePermit,
    _asked: Asked,
}

impl LocalReads {
    /// Waits at most [`timeout`](Self::timeout) until a further call may run. The permit must be held until the call ends.
    ///
    /// # Errors
    /// The limit that all other calls reach, and its setting.
    pub(crate) async fn permit(&self) -> Result<CallPermit, String> {
        let limit = self.timeout;
        let folder = timeout(limit, Arc::clone(&self.permits).acquire_owned()).await.map_err(|_| {
            format!("all requests to the folder are busy for {limit:?}; see storage.concurrent_local_reads")
        })?;
        let file_system = timeout(limit, self.file_system_permit()).await.map_err(|_| {
            format!(
                "all requests to the file system of the folder are busy for {limit:?}; see \
                 storage.concurrent_file_system_calls"
            )
        })?;
        let folder = folder.expect("the semaphore is never closed");
        Ok(CallPermit { _folder: folder, _file_system: file_system, _asked: self.answers.call() })
    }

    /// Waits until a further call to the file system may run, which does not count as a call to the folder.
    pub(crate) async fn file_system_permit(&self) -> OwnedSemaphorePermit {
        let file_system = self.file_system.lock().clone();
        file_system.permit().await
    }

    /// Corrects the file system, which the path alone does not tell if it contains a symbolic link. `device` is the device number of
    /// the folder.
    pub(crate) fn found_on(&self, device: u64) {
        *self.file_system.lock() = FileSystem::of_device(device, self.file_system_calls);
    }
}

impl Location {
    /// Parses a file system path or a URL with scheme `file`, `s3`, `gs`, `az` (or an alias of these), `http` or
    /// `https`. Credentials and endpoints come from the environment (`AWS_*`, `GOOGLE_*`, `AZURE_*`).
    ///
    /// # Errors
    /// [`Error::Invalid`] for any other URL, and for a store without configuration in the environment.
    pub fn parse(url: &str, config: &Config) -> Result<Self, Error> {
        Self::parse_for(url, config, None)
    }

    /// Parses a URL like [`parse`](Self::parse), for a caller: credentials and endpoints are those in `credentials` alone. What is cached
    /// of the files is found only by locations with the same `scope`.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn parse_with(
        url: &str,
        config: &Config,
        credentials: &Credentials,
        scope: Option<u128>,
    ) -> Result<Self, Error> {
        Ok(Self { scope, ..Self::parse_for(url, config, Some(credentials))? })
    }

    fn parse_for(url: &str, config: &Config, given: Option<&Credentials>) -> Result<Self, Error> {
        // Logs, errors and the API contain URLs, so they must not contain a secret.
        check_url(url)?;
        if url.starts_with('/') || !url.contains("://") {
            return Self::local(url, std::path::Path::new(url), config);
        }
        let parsed = Url::parse(url).map_err(|error| invalid(&shown_url(url), error))?;
        // The parser may find a part that the check of the text has not found.
        let has_user = parsed.scheme().starts_with("http") && !parsed.username().is_empty();
        let has_end = parsed.query().is_some() || parsed.fragment().is_some();
        if has_user || parsed.password().is_some() || has_end {
            let detail = "a user, password, query (?...) or fragment (#...) in the URL is not supported";
            return Err(invalid(&format!("{}:...", parsed.scheme()), detail));
        }
        if parsed.scheme() == "file" {
            let path = parsed.to_file_path().map_err(|()| invalid(url, "expected file:///path"))?;
            return Self::local(url, &path, config);
        }
        let root = Path::from_url_path(parsed.path()).map_err(|error| invalid(url, error))?;
        let answers = Answers::default();
        let kind = if parsed.scheme().starts_with("http") { Kind::Http } else { Kind::Object };
        let store = remote(&parsed, config, &answers, given).map_err(|error| invalid(url, error))?;
        Ok(Self { answers, ..Self::new(url, store, root, kind, config) })
    }

    /// Creates a location in an existing store, for example an in-memory or fault-injecting one in tests.
    pub fn with_store(url: impl Into<String>, store: Arc<dyn ObjectStore>, prefix: impl Into<Path>) -> Self {
        Self {
            url: url.into().into(),
            store,
            root: prefix.into(),
            kind: Kind::Object,
            footer_room: Arc::new(Semaphore::new(FOOTER_ROOM as usize)),
            local: None,
            answers: Answers::default(),
            scope: None,
        }
    }

    /// URL as given by the caller.
    pub fn url(&self) -> &str {
        &self.url
    }

    fn local(url: &str, path: &std::path::Path, config: &Config) -> Result<Self, Error> {
        let absolute = std::path::absolute(path).map_err(|error| invalid(url, error))?;
        let root = Path::from_absolute_path(lexical(&absolute)).map_err(|error| invalid(url, error))?;
        // The HTTP client of other stores has such a limit, too.
        let store = LimitStore::new(LocalFileSystem::new(), config.concurrent_requests.max(1));
        Ok(Self::new(url, Arc::new(store), root, Kind::Local, config))
    }

    /// Time for which requests to the store have been waiting without an answer to any of them; `None` if no request waits.
    pub fn silence(&self) -> Option<Duration> {
        self.answers.silence()
    }

    pub(crate) fn new(
        url: &str,
        store: Arc<dyn ObjectStore>,
        root: Path,
        kind: Kind,
        config: &Config,
    ) -> Self {
        let answers = Answers::default();
        let local = (kind == Kind::Local).then(|| {
            let device = Mounts::read().device(&std::path::Path::new("/").join(root.as_ref()));
            let file_system_calls = config.concurrent_file_system_calls;
            LocalReads {
                slabs: Slabs::new(config.idle_bytes),
                permits: Arc::new(Semaphore::new(
                    config.concurrent_local_reads.clamp(1, Semaphore::MAX_PERMITS),
                )),
                file_system: Arc::new(Mutex::new(FileSystem::of_device(device, file_system_calls))),
                file_system_calls,
                listing: Arc::new(Semaphore::new(1)),
                parents: Arc::new(Semaphore::new(1)),
                timeout: config.request_timeout,
                answers: answers.clone(),
            }
        });
        Self { kind, local, answers, ..Self::with_store(url, store, root) }
    }

    pub(crate) fn store(&self) -> &Arc<dyn ObjectStore> {
        &self.store
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Appends what separates the cached data of this location to the bytes that a key of a cache is made of.
    pub(crate) fn append_scope(&self, bytes: &mut Vec<u8>) {
        if let Some(scope) = self.scope {
            bytes.extend(b"scope");
            bytes.extend(scope.to_le_bytes());
        }
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// Waits until a footer or an index of `bytes` bytes may be read and parsed. The room is free again when the permit is dropped. A
    /// caller that holds a permit must not wait for another one, which could be a deadlock.
    pub(crate) async fn footer_room(&self, bytes: u64) -> OwnedSemaphorePermit {
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX).min(FOOTER_ROOM);
        Arc::clone(&self.footer_room)
            .acquire_many_owned(permits)
            .await
            .expect("the semaphore is never closed")
    }

    pub(crate) fn local_reads(&self) -> Option<&LocalReads> {
        self.local.as_ref()
    }

    /// Path of `relative` below the root, and its URL for error messages. `relative` has the form that a listing returns.
    pub(crate) fn child(&self, relative: &str) -> Result<(Path, String), Error> {
        let url = self.child_url(relative);
        let joined =
            if self.root.is_root() { relative.to_owned() } else { format!("{}/{relative}", self.root) };
        let path = Path::parse(joined).map_err(|error| invalid(&url, error))?;
        Ok((path, url))
    }

    /// URL of `relative` below the root, for error messages.
    pub(crate) fn child_url(&self, relative: &str) -> String {
        format!("{}/{relative}", self.url.trim_end_matches('/'))
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Location").field(&self.url).finish()
    }
}

fn invalid(url: &str, detail: impl fmt::Display) -> Error {
    Error::Invalid { url: url.to_owned(), detail: detail.to_string() }
}

/// Resolves `.` and `..` lexically. Symbolic links are not followed, so that a refresh detects a link that moved.
fn lexical(path: &std::path::Path) -> std::path::PathBuf {
    let mut resolved = std::path::PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                resolved.pop();
            }
            other => resolved.push(other),
        }
    }
    resolved
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_in_a_url_is_rejected_and_not_repeated() {
        for (url, detail) in [
            ("https://user:secret@host/data", "a user or password in the URL is not supported"),
            ("http://secret@host/data", "a user or password in the URL is not supported"),
            ("s3://key:secret@bucket/data", "a user or password in the URL is not supported"),
            ("s3://secret@bucket/data", "a user or password in the URL is not supported"),
            ("https://host/a.parquet?X-Amz-Signature=secret", "a query (?...)"),
            ("az://container/data?sig=secret", "a query (?...)"),
            ("file:///data?secret", "a query (?...)"),
            ("http://host/a.parquet#secret", "a fragment (#...) is not supported"),
            ("https:/user:secret@host/data", "a user or password in the URL is not supported"),
            ("url:s3://key:secret@bucket/data", "expected a path, or a URL that begins with its scheme"),
            ("url:https://host/data?sig=secret", "expected a path, or a URL that begins with its scheme"),
        ] {
            let Err(error) = Location::parse(url, &Config::default()) else { panic!("{url} is accepted") };
            let error = error.to_string();
            assert!(error.contains(detail) && !error.contains("secret"), "{error}");
        }
    }
}
