//! Folders of data that are generated once and kept.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;

/// The folder `finished`, filled by `generate` if it is not there. A generation that was cut short leaves nothing that is
/// taken for whole.
///
/// # Errors
/// Those of `generate`, and when the disk fails.
pub fn generated(
    finished: &Path,
    generate: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<PathBuf> {
    if finished.is_dir() {
        return Ok(finished.to_owned());
    }
    let folder = finished.parent().context("the data need a folder to lie in")?;
    fs::create_dir_all(folder).with_context(|| format!("can't make {}", folder.display()))?;
    let unfinished = tempfile::tempdir_in(folder)?;
    generate(unfinished.path())?;
    match fs::rename(unfinished.path(), finished) {
        Ok(()) => drop(unfinished.keep()),
        // Another run was faster.
        Err(_) if finished.is_dir() => {}
        Err(error) => return Err(error).with_context(|| format!("can't make {}", finished.display())),
    }
    Ok(finished.to_owned())
}
