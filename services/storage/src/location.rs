//! Where a dataset or the state lies: an object store and a path in it.

use std::{fmt, path::Component, sync::Arc};

use forebay_cache::Slabs;
use object_store::{
    ClientConfigKey, ObjectStore, RetryConfig,
    aws::{AmazonS3Builder, AmazonS3ConfigKey},
    azure::{AzureConfigKey, MicrosoftAzureBuilder},
    gcp::{GoogleCloudStorageBuilder, GoogleConfigKey},
    http::HttpBuilder,
    limit::LimitStore,
    local::LocalFileSystem,
    path::Path,
};
use url::Url;

use crate::{Config, Error, attempts::Connector};

/// What a store can say about the version of an object, and whether it can list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Versions are size and modification time.
    Local,
    /// Versions are ETags; it cannot list.
    Http,
    /// Versions are ETags.
    Object,
}

/// An object store and a path in it: one object, or the prefix above many. Cheap to clone; clones share
/// the limit on concurrent requests.
#[derive(Clone)]
pub struct Location {
    url: Arc<str>,
    store: Arc<dyn ObjectStore>,
    root: Path,
    kind: Kind,
    /// What local files are read into.
    slabs: Option<Slabs>,
}

impl Location {
    /// Understands a path, `file://`, `s3://`, `gs://`, `az://` (and their aliases) and `http(s)://`.
    /// Credentials and endpoints come from the environment (`AWS_*`, `GOOGLE_*`, `AZURE_*`).
    ///
    /// # Errors
    /// [`Error::Invalid`] for anything else, and for a store that its environment does not configure.
    pub fn parse(url: &str, config: &Config) -> Result<Self, Error> {
        let Some((scheme, _)) = url.split_once("://") else {
            return Self::local(url, std::path::Path::new(url), config);
        };
        let parsed = Url::parse(url).map_err(|error| invalid(url, error))?;
        if scheme == "file" {
            let path = parsed.to_file_path().map_err(|()| invalid(url, "expected file:///path"))?;
            return Self::local(url, &path, config);
        }
        if parsed.query().is_some() {
            return Err(invalid(url, "a query (?...) is not supported"));
        }
        let root = Path::from_url_path(parsed.path()).map_err(|error| invalid(url, error))?;
        let (store, kind) = remote(&parsed, config).map_err(|error| invalid(url, error))?;
        Ok(Self::new(url, store, root, kind, config))
    }

    /// A location in a store that is already there: in memory, throttled, or made to fail in tests.
    pub fn with_store(url: impl Into<String>, store: Arc<dyn ObjectStore>, prefix: impl Into<Path>) -> Self {
        Self { url: url.into().into(), store, root: prefix.into(), kind: Kind::Object, slabs: None }
    }

    /// The URL as it was given.
    pub fn url(&self) -> &str {
        &self.url
    }

    fn local(url: &str, path: &std::path::Path, config: &Config) -> Result<Self, Error> {
        let absolute = std::path::absolute(path).map_err(|error| invalid(url, error))?;
        let root = Path::from_absolute_path(plain(&absolute)).map_err(|error| invalid(url, error))?;
        Ok(Self::new(url, Arc::new(LocalFileSystem::new()), root, Kind::Local, config))
    }

    fn new(url: &str, store: Arc<dyn ObjectStore>, root: Path, kind: Kind, config: &Config) -> Self {
        let store = Arc::new(LimitStore::new(store, config.concurrent_requests.max(1)));
        let slabs = (kind == Kind::Local).then(|| Slabs::new(config.idle_bytes));
        Self { url: url.into(), store, root, kind, slabs }
    }

    pub(crate) fn store(&self) -> &Arc<dyn ObjectStore> {
        &self.store
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    pub(crate) fn slabs(&self) -> Option<&Slabs> {
        self.slabs.as_ref()
    }

    /// The path of `relative` (as a listing gave it) below the root.
    pub(crate) fn child(&self, relative: &str) -> Result<Path, Error> {
        let joined =
            if self.root.is_root() { relative.to_owned() } else { format!("{}/{relative}", self.root) };
        Path::parse(joined).map_err(|error| invalid(&self.child_url(relative), error))
    }

    /// How `relative` is named to a person.
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

/// Resolves `.` and `..` by name alone: links stay links, so that a refresh sees them move.
fn plain(path: &std::path::Path) -> std::path::PathBuf {
    let mut plain = std::path::PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                plain.pop();
            }
            other => plain.push(other),
        }
    }
    plain
}

fn remote(url: &Url, config: &Config) -> Result<(Arc<dyn ObjectStore>, Kind), object_store::Error> {
    let timeout = format!("{} ms", config.request_timeout.as_millis());
    let retry = RetryConfig {
        max_retries: config.max_retries,
        retry_timeout: config.retry_timeout,
        ..RetryConfig::default()
    };
    // The timeout is set by key: a whole `ClientOptions` would replace what the environment said.
    let key = ClientConfigKey::Timeout;
    match url.scheme() {
        "s3" | "s3a" => {
            let builder = AmazonS3Builder::from_env().with_url(url.as_str()).with_retry(retry);
            let builder = builder.with_config(AmazonS3ConfigKey::Client(key), timeout);
            Ok((Arc::new(builder.with_http_connector(Connector::default()).build()?), Kind::Object))
        }
        "gs" => {
            let builder = GoogleCloudStorageBuilder::from_env().with_url(url.as_str()).with_retry(retry);
            let builder = builder.with_config(GoogleConfigKey::Client(key), timeout);
            Ok((Arc::new(builder.with_http_connector(Connector::default()).build()?), Kind::Object))
        }
        "az" | "azure" | "adl" | "abfs" | "abfss" => {
            let builder = MicrosoftAzureBuilder::from_env().with_url(url.as_str()).with_retry(retry);
            let builder = builder.with_config(AzureConfigKey::Client(key), timeout);
            Ok((Arc::new(builder.with_http_connector(Connector::default()).build()?), Kind::Object))
        }
        "http" | "https" => {
            let base = &url[..url::Position::BeforePath];
            let builder = HttpBuilder::new().with_url(base).with_retry(retry);
            let builder = builder.with_config(ClientConfigKey::AllowHttp, "true");
            let builder = builder.with_config(key, timeout).with_http_connector(Connector::default());
            Ok((Arc::new(builder.build()?), Kind::Http))
        }
        scheme => Err(object_store::Error::NotSupported {
            source: format!("unknown scheme {scheme}; expected a path, file, s3, gs, az, http or https")
                .into(),
        }),
    }
}
