//! File versions, which snapshots pin.

use std::fmt;

use chrono::{DateTime, Utc};
use object_store::ObjectMeta;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::store::location::Kind;

/// Version of a file: its size and its ETag, or its modification time if it has no ETag.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// Size in bytes.
    pub size: u64,
    /// ETag from the store. `None` for local files, because the ETag of a local file changes when the disk is copied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
    /// Modification time in nanoseconds since the Unix epoch.
    pub modified_ns: i64,
}

impl Version {
    pub(crate) fn new(kind: Kind, meta: &ObjectMeta) -> Self {
        Self {
            size: meta.size,
            etag: if kind == Kind::Local { None } else { meta.e_tag.clone() },
            modified_ns: meta.last_modified.timestamp_nanos_opt().unwrap_or_default(),
        }
    }

    /// Modification time.
    pub fn modified(&self) -> DateTime<Utc> {
        DateTime::from_timestamp_nanos(self.modified_ns)
    }

    /// ETag, if it guarantees byte equality. A weak one (`W/`) does not.
    pub(crate) fn strong_etag(&self) -> Option<&str> {
        self.etag.as_deref().filter(|etag| !etag.starts_with("W/"))
    }

    /// Adds path and version to a hash. Each part is preceded by its length, so that different lists never produce the
    /// same bytes.
    pub(crate) fn hash_into(&self, path: &str, hash: &mut Xxh3) {
        let mtime = self.modified_ns.to_string();
        let version = self.etag.as_deref().unwrap_or(&mtime);
        for part in [path, version] {
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
        hash.update(&self.size.to_le_bytes());
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.size)?;
        match &self.etag {
            Some(etag) => write!(f, " with ETag {etag}"),
            None => write!(f, " modified {}", self.modified().format("%Y-%m-%dT%H:%M:%S%.9fZ")),
        }
    }
}
