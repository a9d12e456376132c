//! What goes wrong with the disk: counted always, logged rarely.

use std::{
    fmt::Display,
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

/// What went wrong. The order is that of [`LABELS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// A section isn't what was written.
    Checksum,
    /// A file is shorter or longer than its header says.
    Length,
    /// A header isn't what was written.
    Header,
    /// A file of another version of the format.
    Version,
    /// Not ours.
    Foreign,
    /// A write that never ended.
    Temporary,
    Read,
    Write,
    NoSpace,
    Remove,
    List,
}

/// Labels of the metric.
const LABELS: [&str; 11] = [
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
];

/// Counts troubles by kind.
#[derive(Debug, Default)]
pub(crate) struct Troubles {
    counts: [AtomicU64; LABELS.len()],
}

impl Troubles {
    /// Counts one; logs the first of its kind, the second, the fourth and so on.
    pub(crate) fn note(&self, trouble: Trouble, path: &Path, error: &dyn Display) {
        let kind = LABELS[trouble as usize];
        metrics::counter!("forebay_cache_errors_total", "tier" => "disk", "kind" => kind).increment(1);
        let count = self.counts[trouble as usize].fetch_add(1, Ordering::Relaxed) + 1;
        if count.is_power_of_two() {
            tracing::warn!(kind, count, path = %path.display(), %error, "trouble with the disk cache");
        }
    }

    /// How many of a kind there were.
    #[cfg(test)]
    pub(crate) fn count(&self, trouble: Trouble) -> u64 {
        self.counts[trouble as usize].load(Ordering::Relaxed)
    }
}
