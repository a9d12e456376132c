//! Where things lie: everything under cargo's target folder, in which this program was built.

use std::path::PathBuf;

use anyhow::Context;

/// The target folder.
pub(crate) fn target() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().context("can't tell where this program lies")?;
    // target/release/forebay-load; tests run from target/release/deps.
    let folder = program.ancestors().find(|folder| folder.join("CACHEDIR.TAG").is_file());
    Ok(folder.context("this program does not lie in cargo's target folder; give --data")?.to_owned())
}

/// What the load tests keep.
pub(crate) fn loadtests() -> anyhow::Result<PathBuf> {
    Ok(target()?.join("loadtests"))
}

/// The server's binary, beside this one.
pub(crate) fn forebay() -> anyhow::Result<PathBuf> {
    if let Some(named) = std::env::var_os("FOREBAY_BIN") {
        return Ok(named.into());
    }
    let path = std::env::current_exe()?.with_file_name("forebay");
    anyhow::ensure!(
        path.is_file(),
        "{} is not there: run `cargo build --release --workspace`, or set FOREBAY_BIN",
        path.display()
    );
    Ok(path)
}
