//! File versions, which snapshots pin.

use std::fmt;

use chrono::{DateTime, Utc};
use object_store::ObjectMeta;
use serde::{Deserialize, Serialize};

use crate::store::location::Kind;

const NANOS_PER_SECOND: u64 = 1_000_000_000;

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

    /// Returns true if the store returned more than a size, so that a change of the file can be noticed.
    pub(crate) fn has_validator(&self) -> bool {
        self.etag.is_some() || self.modified_ns != 0
    }

    /// Returns true if `found`, the current version of the file, is this version.
    ///
    /// Remote files are compared by ETag. If either has none, which some stores omit from listings, modification times
    /// are compared to the second, because HTTP dates have no fractions.
    pub(crate) fn is_still(&self, kind: Kind, found: &Self) -> bool {
        if self.size != found.size {
            return false;
        }
        if kind == Kind::Local {
            return self.modified_ns == found.modified_ns;
        }
        match (&self.etag, &found.etag) {
            (Some(pinned), Some(found)) => pinned == found,
            _ => self.modified_ns != 0 && self.modified_ns.abs_diff(found.modified_ns) < NANOS_PER_SECOND,
        }
    }

    /// Appends path and version to `bytes`. Each part is preceded by its length, so that different lists never produce the
    /// same bytes.
    pub(crate) fn append_to(&self, path: &str, bytes: &mut Vec<u8>) {
        let mtime = self.modified_ns.to_string();
        let version = self.etag.as_deref().unwrap_or(&mtime);
        for part in [path, version] {
            bytes.extend((part.len() as u64).to_le_bytes());
            bytes.extend(part.as_bytes());
        }
        bytes.extend(self.size.to_le_bytes());
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

#[cfg(test)]
mod tests {
    use super::*;

    fn version(etag: Option<&str>, modified_ns: i64) -> Version {
        Version { size: 4096, etag: etag.map(str::to_owned), modified_ns }
    }

    const THEN: i64 = 1_750_000_000_123_456_789;
    const SECOND: i64 = NANOS_PER_SECOND as i64;

    #[test]
    fn files_without_a_common_etag_are_compared_by_modification_time() {
        let (tagged, dated) = (version(Some("a"), THEN), version(None, THEN));
        for (pinned, found) in [(&dated, &dated), (&dated, &tagged), (&tagged, &dated)] {
            for kind in [Kind::Http, Kind::Object] {
                assert!(pinned.is_still(kind, found), "{pinned} {found}");
                for modified_ns in [THEN + SECOND, THEN - SECOND, 0] {
                    let other = Version { modified_ns, ..found.clone() };
                    assert!(!pinned.is_still(kind, &other), "{pinned} {other}");
                }
                let header = Version { modified_ns: THEN - THEN % SECOND, ..found.clone() };
                assert!(pinned.is_still(kind, &header), "an HTTP date has no fraction of a second");
            }
        }
    }

    #[test]
    fn files_with_etags_are_compared_by_etag() {
        let pinned = version(Some("a"), THEN);
        assert!(pinned.is_still(Kind::Object, &version(Some("a"), THEN + SECOND)));
        assert!(!pinned.is_still(Kind::Object, &version(Some("b"), THEN)));
    }

    #[test]
    fn a_size_alone_identifies_no_remote_version() {
        let sized = version(None, 0);
        assert!(!sized.has_validator());
        assert!(!sized.is_still(Kind::Http, &sized));
        assert!(!version(Some("a"), 0).is_still(Kind::Http, &sized));
    }

    #[test]
    fn local_files_are_compared_by_modification_time_in_nanoseconds() {
        let pinned = version(None, THEN);
        assert!(pinned.is_still(Kind::Local, &pinned));
        assert!(!pinned.is_still(Kind::Local, &version(None, THEN + 1)));
        let other_size = Version { size: 4097, ..pinned.clone() };
        assert!(!pinned.is_still(Kind::Local, &other_size));
    }
}
