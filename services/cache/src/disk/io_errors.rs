//! Disk errors by kind: every error is counted, and a few of each kind are logged.

use std::{
    fmt::Display,
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

/// Kind of a disk error. The order is that of [`LABELS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IoErrorKind {
    /// A section does not match its checksum.
    Checksum,
    /// The length of a file differs from its header.
    Length,
    /// A header is malformed or does not match its checksum.
    Header,
    /// A file has another version of the format.
    Version,
    /// A file or folder does not belong to the cache.
    Foreign,
    /// A write was interrupted.
    Temporary,
    Read,
    Write,
    NoSpace,
    Remove,
    List,
    /// The cache folder was removed, or is used by another process.
    Folder,
}

/// Values of the metric label `kind`.
const LABELS: [&str; 12] = [
    "checksum",
    "length",
    "header",
    "version",
    "foreign",
    "temporary",
    "read",
    "write",
    "no_space",
    "remove",
    "list",
    "folder",
];

/// Counters of errors by kind.
#[derive(Debug, Default)]
pub(crate) struct IoErrors {
    counts: [AtomicU64; LABELS.len()],
}

impl IoErrors {
    /// Counts an error. Logs it if the number of errors of its kind is a power of two.
    pub(crate) fn report(&self, kind: IoErrorKind, path: &Path, error: &dyn Display) {
        let label = LABELS[kind as usize];
        metrics::counter!("forebay_cache_errors_total", "tier" => "disk", "kind" => label).increment(1);
        let count = self.counts[kind as usize].fetch_add(1, Ordering::Relaxed) + 1;
        if count.is_power_of_two() {
            tracing::warn!(kind = label, count, path = %path.display(), %error, "disk cache I/O error");
        }
    }

    /// Number of errors of a kind.
    #[cfg(test)]
    pub(crate) fn count(&self, kind: IoErrorKind) -> u64 {
        self.counts[kind as usize].load(Ordering::Relaxed)
    }
}
