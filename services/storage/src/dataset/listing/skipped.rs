//! Files of a folder that are skipped because of their names.

use std::{collections::BTreeSet, fmt};

use super::names::{has_extension, is_hidden};

/// Number of names that are kept as examples.
const EXAMPLES: usize = 3;

/// Files of a folder that are skipped because of their names.
#[derive(Clone, Debug, Default)]
pub(crate) struct Skipped {
    /// Files whose names do not end in `.parquet`.
    others: Names,
    /// Files whose names, or the names of whose folders, begin with `_` or `.`.
    hidden: Names,
}

/// Number of files, and the first of their paths below the dataset.
#[derive(Clone, Debug, Default)]
struct Names {
    count: u64,
    first: BTreeSet<String>,
}

impl Skipped {
    /// Adds a file with its path below the dataset.
    pub(super) fn add(&mut self, path: &str) {
        let names = if has_extension(path) || path.split('/').any(is_hidden) {
            &mut self.hidden
        } else {
            &mut self.others
        };
        names.count += 1;
        if names.first.len() < EXAMPLES || names.first.last().is_some_and(|last| path < last.as_str()) {
            names.first.insert(path.to_owned());
        }
        if names.first.len() > EXAMPLES {
            names.first.pop_last();
        }
    }

    /// Logs which files of a dataset are skipped. Files that begin with `_` or `.` are skipped on purpose, so they are not logged.
    pub(crate) fn log(&self, dataset: &str) {
        if self.others.count > 0 {
            tracing::info!(
                dataset,
                files = %self.others,
                "skipped files of the dataset whose names do not end in .parquet"
            );
        }
    }
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.others.count, self.hidden.count) {
            (0, 0) => write!(f, "names that begin with _ or . are skipped"),
            (_, 0) => write!(f, "skipped because their names do not end in .parquet: {}", self.others),
            (0, _) => {
                write!(f, "skipped because their names or folders begin with _ or .: {}", self.hidden)
            }
            (_, _) => write!(
                f,
                "skipped because their names do not end in .parquet: {}; or begin with _ or .: {}",
                self.others, self.hidden
            ),
        }
    }
}

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first: Vec<&str> = self.first.iter().map(String::as_str).collect();
        f.write_str(&first.join(", "))?;
        match self.count - first.len() as u64 {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}
