//! Names of files: which ones a folder's dataset consists of.

const EXTENSION: &str = ".parquet";

/// True if a path ends in `.parquet`, in upper or lower case.
pub(super) fn has_extension(path: &str) -> bool {
    let start = path.len().checked_sub(EXTENSION.len());
    start.is_some_and(|start| path.as_bytes()[start..].eq_ignore_ascii_case(EXTENSION.as_bytes()))
}

/// True if a file or folder of this name is skipped.
pub(super) fn is_hidden(name: &str) -> bool {
    name.starts_with(['_', '.'])
}

/// True if the file with this path below the dataset is read.
pub(super) fn is_data(path: &str) -> bool {
    has_extension(path) && !path.split('/').any(is_hidden)
}
