//! Errors, one variant per action that a caller can take.

use std::{fmt, sync::Arc};

use parquet::errors::ParquetError;

use crate::store::failure::{Failure, describe};

/// Limited quantity of the error about a snapshot for which the memory budget has no room.
pub(crate) const SNAPSHOT_MEMORY: &str = "memory of the snapshot and its manifest in bytes (cache_memory, less what lookups and other snapshots hold)";

/// Cause of an [`Error`]. Shared, so that every waiter of a coalesced read receives the same failure.
pub type Source = Arc<dyn std::error::Error + Send + Sync>;

/// Page whose bytes do not match the checksum in its header. Occurs as the source of [`Error::Corrupt`].
#[derive(Debug, thiserror::Error)]
#[error("the page at offset {offset} has checksum {found:08x}, expected {expected:08x}")]
pub(crate) struct DamagedPage {
    /// Offset of the page header in the file.
    pub(crate) offset: u64,
    /// CRC-32 of the bytes that were read.
    pub(crate) found: u32,
    /// CRC-32 in the page header.
    pub(crate) expected: u32,
}

/// Error of listing, pinning, reading or decoding a dataset.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The location holds nothing to read. Action: name another location.
    #[error("nothing found at {location}: {detail}")]
    NotFound {
        /// URL of the location.
        location: String,
        /// Description of what was expected there.
        detail: String,
    },

    /// The data is valid but in an unsupported form. Action: convert it.
    #[error("{location} is not supported: {detail}")]
    Unsupported {
        /// URL of the dataset or file.
        location: String,
        /// Unsupported feature.
        detail: String,
    },

    /// The bytes violate their format. Action: restore the file.
    #[error("{file} is corrupt{}: {detail}", place(.row_group, .column))]
    Corrupt {
        /// URL of the file.
        file: String,
        /// Index of the row group, if known.
        row_group: Option<usize>,
        /// Path of the column, if known.
        column: Option<String>,
        /// Found and expected content.
        detail: String,
        /// Error of the decoder, if the decoder detected the corruption.
        source: Option<Source>,
    },

    /// A file is no longer the version that the snapshot pins. Action: take a new snapshot.
    #[error("{file} has changed since the snapshot: expected {expected}, found {found}")]
    Changed {
        /// URL of the file.
        file: String,
        /// Pinned version.
        expected: String,
        /// Current version, or the difference from the pinned one.
        found: String,
    },

    /// Two files of one dataset have different columns. Action: rewrite one, or select fewer files.
    #[error("column {column} is {expected} in {first} and {found} in {second}")]
    Mismatch {
        /// URL of the first file of the dataset.
        first: String,
        /// URL of the file that differs from the first.
        second: String,
        /// Name of the column that differs.
        column: String,
        /// Type of the column in the first file, or `absent`.
        expected: String,
        /// Type of the column in the second file, or `absent`.
        found: String,
    },

    /// No manifest is stored for this id. Action: request the current snapshot.
    #[error("dataset {dataset} has no snapshot {id}")]
    UnknownSnapshot {
        /// Name of the dataset.
        dataset: String,
        /// Requested snapshot id.
        id: String,
    },

    /// The request exceeds a configured limit. Action: raise the limit, or request less.
    #[error("{location}: {what} is {found}, the limit is {limit}")]
    Limit {
        /// URL of the dataset or file.
        location: String,
        /// Limited quantity with its unit, and the setting where there is one.
        what: &'static str,
        /// Limit.
        limit: u64,
        /// Found value, or a lower bound for it.
        found: u64,
    },

    /// The store refuses access. Action: correct the permissions, credentials or region.
    #[error(
        "access to {location} is denied: {source}; check the permissions, and for an object store the credentials \
         and the region"
    )]
    PermissionDenied {
        /// URL of the file or folder.
        location: String,
        /// Error of the store.
        source: Source,
    },

    /// The store failed or timed out. Action: retry later.
    #[error("{location} is unavailable: {source}")]
    Unavailable {
        /// URL of the file or folder.
        location: String,
        /// Error of the store.
        source: Source,
    },

    /// The URL or name is invalid. Action: correct it.
    #[error("invalid location {url}: {detail}")]
    Invalid {
        /// URL as given by the caller.
        url: String,
        /// Reason why it is invalid.
        detail: String,
    },
}

impl Error {
    /// Returns true if a page does not match its checksum. The bytes may have been damaged during the transfer, so the
    /// block is worth fetching once more.
    pub fn is_damaged_page(&self) -> bool {
        let Self::Corrupt { source: Some(source), .. } = self else { return false };
        let cause = source.downcast_ref::<ParquetError>();
        matches!(cause, Some(ParquetError::External(cause)) if cause.is::<DamagedPage>())
    }

    /// Returns true if the memory budget has no room for a snapshot. Another attempt can succeed once other snapshots are released.
    pub fn is_without_snapshot_memory(&self) -> bool {
        matches!(self, Self::Limit { what, .. } if *what == SNAPSHOT_MEMORY)
    }

    /// Returns an [`Error::Corrupt`] that concerns a whole file.
    pub(crate) fn corrupt(file: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::Corrupt {
            file: file.into(),
            row_group: None,
            column: None,
            detail: detail.into(),
            source: None,
        }
    }

    pub(crate) fn unsupported(location: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::Unsupported { location: location.into(), detail: detail.into() }
    }

    /// Converts an error of a store: [`Error::Unavailable`] if another attempt may succeed, and otherwise [`Error::PermissionDenied`],
    /// [`Error::NotFound`] or [`Error::Unsupported`].
    pub(crate) fn unavailable(location: impl Into<String>, error: &object_store::Error) -> Self {
        let (location, described) = (location.into(), describe(error));
        match Failure::of(error) {
            Failure::Denied => Self::PermissionDenied { location, source: Arc::new(described) },
            Failure::Missing => Self::NotFound { location, detail: described.to_string() },
            Failure::Unsupported => {
                let detail = format!(
                    "the store does not support the request, such as one of a byte range: {described}"
                );
                Self::Unsupported { location, detail }
            }
            Failure::Temporary => Self::Unavailable { location, source: Arc::new(described) },
        }
    }

    /// Converts an error about an object of the state. [`Error::NotFound`] becomes [`Error::Unavailable`], for example if
    /// the folder or bucket of the state is missing: it is not a dataset that is missing, and a retry succeeds once the state is there again.
    pub(crate) fn of_state(self, state: &str) -> Self {
        let Self::NotFound { location, detail } = self else { return self };
        let source: Box<dyn std::error::Error + Send + Sync> =
            format!("the state at {state} cannot be used: {detail}").into();
        Self::Unavailable { location, source: Arc::from(source) }
    }

    /// Returns the error of a read of `location` that panicked, for this `reason`. Another attempt may succeed.
    pub fn panicked(location: impl Into<String>, reason: &str) -> Self {
        let source: Box<dyn std::error::Error + Send + Sync> = reason.into();
        Self::Unavailable { location: location.into(), source: Arc::from(source) }
    }

    /// Returns an [`Error::Limit`] for a `found` value over `limit`.
    pub(crate) fn limit(location: impl Into<String>, what: &'static str, limit: u64, found: u64) -> Self {
        Self::Limit { location: location.into(), what, limit, found }
    }

    /// Returns an [`Error::Mismatch`] for a column that is `expected` in one file and `found` in another.
    pub(crate) fn mismatch(
        first: impl Into<String>,
        second: impl Into<String>,
        column: &str,
        expected: &dyn fmt::Display,
        found: &dyn fmt::Display,
    ) -> Self {
        Self::Mismatch {
            first: first.into(),
            second: second.into(),
            column: column.to_owned(),
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }

    /// Adds the row group and column to an error that does not name them yet.
    pub(crate) fn at(mut self, group: Option<usize>, name: Option<&str>) -> Self {
        match &mut self {
            Self::Corrupt { row_group, column, .. } => {
                *row_group = row_group.or(group);
                *column = column.take().or_else(|| name.map(str::to_owned));
            }
            Self::Limit { location, .. } | Self::Unsupported { location, .. } => {
                location.push_str(&place(&group, &name.map(str::to_owned)));
            }
            _ => {}
        }
        self
    }
}

fn place(row_group: &Option<usize>, column: &Option<String>) -> String {
    match (row_group, column) {
        (Some(group), Some(column)) => format!(" (row group {group}, column {column})"),
        (Some(group), None) => format!(" (row group {group})"),
        (None, Some(column)) => format!(" (column {column})"),
        (None, None) => String::new(),
    }
}
