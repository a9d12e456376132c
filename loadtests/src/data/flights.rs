//! flights-3m.parquet of the npm package vega-datasets: the copy of the acceptance tests, or a download with npm.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

use crate::{paths, process::run};

const PACKAGE: &str = "vega-datasets@3.2.1";
const MEMBER: &str = "package/data/flights-3m.parquet";
/// Environment variable with the path of a copy.
const VARIABLE: &str = "FOREBAY_FLIGHTS";

/// The dataset has no parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Flights {}

/// Returns the path of the file: `FOREBAY_FLIGHTS`, the copy of the acceptance tests, or a file in the folder `at`, which
/// is downloaded unless it exists.
pub(super) fn at(at: &Path) -> anyhow::Result<PathBuf> {
    if let Some(named) = std::env::var_os(VARIABLE) {
        let named = PathBuf::from(named);
        ensure!(named.is_file(), "{VARIABLE}={}: there is no such file", named.display());
        return Ok(named);
    }
    let shared = paths::target()?.join("acceptance/data/flights-3m.parquet");
    if shared.is_file() {
        return Ok(shared);
    }
    let file = at.join("flights-3m.parquet");
    if !file.is_file() {
        fetch(at, &file).with_context(|| {
            format!("flights-3m.parquet is not here: fetch {PACKAGE} from npm and name it in {VARIABLE}")
        })?;
    }
    Ok(file)
}

fn fetch(folder: &Path, file: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder)?;
    let work = tempfile::tempdir_in(folder)?;
    run(Command::new("npm").args(["pack", PACKAGE, "--silent"]).current_dir(work.path()))?;
    let is_archive = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "tgz");
    let archive = std::fs::read_dir(work.path())?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(is_archive)
        .context("npm packed nothing")?;
    run(Command::new("tar").arg("-xzf").arg(archive).arg(MEMBER).current_dir(work.path()))?;
    std::fs::rename(work.path().join(MEMBER), file)?;
    Ok(())
}
