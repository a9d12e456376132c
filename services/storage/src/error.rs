//! What can go wrong, sorted by what a caller would do about it.

use std::sync::Arc;

use arrow_schema::DataType;

/// The cause below an [`Error`]. Shared, so that one failure can be told to every waiter.
pub type Source = Arc<dyn std::error::Error + Send + Sync>;

/// Why a dataset could not be listed, pinned, read or decoded.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nothing to read there: name another location.
    #[error("nothing found at {location}: {detail}")]
    NotFound {
        /// The URL that was looked at.
        location: String,
        /// What was looked for.
        detail: String,
    },

    /// The data is sound but in a form that is not read: convert it.
    #[error("{location} is not supported: {detail}")]
    Unsupported {
        /// The URL of the dataset or file.
        location: String,
        /// The form that was found.
        detail: String,
    },

    /// The bytes are not what the format says: restore the file.
    #[error("{file} is corrupt{}: {detail}", place(.row_group, .column))]
    Corrupt {
        /// The URL of the file.
        file: String,
        /// The row group, where it is known.
        row_group: Option<usize>,
        /// The column, where it is known.
        column: Option<String>,
        /// What was found and what was expected.
        detail: String,
        /// The decoder's own error, if it was the one to notice.
        source: Option<Source>,
    },

    /// A file is no longer what the snapshot pinned: take a new snapshot.
    #[error("{file} has changed since the snapshot: expected {expected}, found {found}")]
    Changed {
        /// The URL of the file.
        file: String,
        /// The pinned version.
        expected: String,
        /// The version that is there now.
        found: String,
    },

    /// Two files of one dataset disagree: rewrite one, or name fewer files.
    #[error("column {column} is {expected} in {first} and {found} in {second}")]
    Mismatch {
        /// The URL of the file that came first in order.
        first: String,
        /// The URL of the file that disagrees with it.
        second: String,
        /// The column they disagree on.
        column: String,
        /// What it is in the first file.
        expected: String,
        /// What it is in the second file.
        found: String,
    },

    /// No manifest is kept for this id: ask for the current snapshot.
    #[error("dataset {dataset} has no snapshot {id}")]
    UnknownSnapshot {
        /// The dataset's name.
        dataset: String,
        /// The id that was asked for.
        id: String,
    },

    /// A configured limit would be passed: raise it, or ask for less.
    #[error("{location}: {what} is {found}, the limit is {limit}")]
    Limit {
        /// The URL of the dataset or file.
        location: String,
        /// What is limited, with its unit.
        what: &'static str,
        /// The configured limit.
        limit: u64,
        /// What was found, or a lower bound of it.
        found: u64,
    },

    /// The store did not answer, or not in time: try again later.
    #[error("{location} is unavailable: {source}")]
    Unavailable {
        /// The URL of the file or folder.
        location: String,
        /// The store's own error.
        source: Source,
    },

    /// The request makes no sense: correct it.
    #[error("invalid location {url}: {detail}")]
    Invalid {
        /// The URL as it was given.
        url: String,
        /// What is wrong with it.
        detail: String,
    },
}

impl Error {
    /// A [`Error::Corrupt`] about a whole file.
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

    /// Two files that give a column different types.
    pub(crate) fn type_mismatch(
        first: &str,
        second: &str,
        column: &str,
        expected: &DataType,
        found: &DataType,
    ) -> Self {
        Self::Mismatch {
            first: first.to_owned(),
            second: second.to_owned(),
            column: column.to_owned(),
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }

    /// Says where in the file, if the error does not yet.
    pub(crate) fn at(mut self, group: Option<usize>, name: Option<&str>) -> Self {
        match &mut self {
            Self::Corrupt { row_group, column, .. } => {
                *row_group = row_group.or(group);
                *column = column.take().or_else(|| name.map(str::to_owned));
            }
            Self::Limit { location, .. } => location.push_str(&place(&group, &name.map(str::to_owned))),
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
