//! Folders of data that are generated once and kept.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;

/// Returns the folder `finished`, after `generate` has filled it if it does not exist. An interrupted generation leaves no folder
/// with this name.
///
/// # Errors
/// The error of `generate`, or a failure of the disk.
pub fn generated(
    finished: &Path,
    generate: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<PathBuf> {
    if finished.is_dir() {
        return Ok(finished.to_owned());
    }
    let folder = finished.parent().context("the data folder has no parent folder")?;
    fs::create_dir_all(folder).with_context(|| format!("can't create {}", folder.display()))?;
    let unfinished = tempfile::tempdir_in(folder)?;
    generate(unfinished.path())?;
    match fs::rename(unfinished.path(), finished) {
        Ok(()) => drop(unfinished.keep()),
        // Another process generated it first.
        Err(_) if finished.is_dir() => {}
        Err(error) => return Err(error).with_context(|| format!("can't create {}", finished.display())),
    }
    Ok(finished.to_owned())
}
