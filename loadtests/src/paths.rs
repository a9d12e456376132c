//! Paths below cargo's target folder, in which this program was built.

use std::path::PathBuf;

use anyhow::Context;

/// Returns the target folder.
pub(crate) fn target() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().context("can't determine the path of this program")?;
    // target/release/forebay-load; tests run from target/release/deps.
    let folder = program.ancestors().find(|folder| folder.join("CACHEDIR.TAG").is_file());
    Ok(folder.context("this program is not in cargo's target folder: set --data")?.to_owned())
}

/// Returns the folder of the load tests.
pub(crate) fn loadtests() -> anyhow::Result<PathBuf> {
    Ok(target()?.join("loadtests"))
}

/// Returns the server's binary: FOREBAY_BIN, or `forebay` in the folder of this program.
pub(crate) fn forebay() -> anyhow::Result<PathBuf> {
    if let Some(named) = std::env::var_os("FOREBAY_BIN") {
        return Ok(named.into());
    }
    let path = std::env::current_exe()?.with_file_name("forebay");
    anyhow::ensure!(
        path.is_file(),
        "{} does not exist: run `cargo build --release --workspace`, or set FOREBAY_BIN",
        path.display()
    );
    Ok(path)
}
