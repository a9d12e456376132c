//! Files of a snapshot, pinned to a version.

use object_store::path::Path;

use crate::{Error, dataset::version::Version, store::generations::Generation};

/// A file of a snapshot: its path, its URL for error messages and its pinned version.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) path: Path,
    pub(crate) url: String,
    pub(crate) version: Version,
    /// Generation of a local file, if it is pinned.
    pub(crate) generation: Option<Generation>,
}

impl Target {
    /// Returns an [`Error::Changed`] for a file that is not the pinned version.
    pub(crate) fn changed(&self, found: impl Into<String>) -> Error {
        Error::Changed { file: self.url.clone(), expected: self.version.to_string(), found: found.into() }
    }
}
