//! npm vega-datasets' flights-3m.parquet: found where the acceptance tests keep it, or fetched by npm.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

use crate::place;

const PACKAGE: &str = "vega-datasets@3.2.1";
const MEMBER: &str = "package/data/flights-3m.parquet";
/// Names a copy of the file.
const VARIABLE: &str = "FOREBAY_FLIGHTS";

/// It has the size it has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Flights {}

/// The file: the one that `FOREBAY_FLIGHTS` names, that of the acceptance tests, or one in the folder
/// `at`, fetched unless it is there.
pub(super) fn at(at: &Path) -> anyhow::Result<PathBuf> {
    if let Some(named) = std::env::var_os(VARIABLE) {
        let named = PathBuf::from(named);
        ensure!(named.is_file(), "{VARIABLE}={}: there is no such file", named.display());
        return Ok(named);
    }
    let shared = place::target()?.join("acceptance/data/flights-3m.parquet");
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

fn run(command: &mut Command) -> anyhow::Result<()> {
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status();
    let name = command.get_program().display();
    let status = status.with_context(|| format!("can't run {name}"))?;
    ensure!(status.success(), "{name} ended with {status}");
    Ok(())
}
