//! Files that a subcommand writes beside what it prints.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;
use clap::Args;
use serde::Serialize;

/// The flag of subcommands that tell their figures.
#[derive(Debug, Args)]
pub(crate) struct Json {
    /// Write all figures to a file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The flag of subcommands that draw.
#[derive(Debug, Args)]
pub(crate) struct Plot {
    /// Write a plot to a file.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

impl Json {
    /// Writes `figures` if a file was asked for.
    pub(crate) fn write(&self, figures: &impl Serialize) -> anyhow::Result<()> {
        let Some(file) = &self.json else { return Ok(()) };
        write(file, &serde_json::to_vec_pretty(figures)?)
    }
}

impl Plot {
    /// Writes what `svg` draws if a file was asked for.
    pub(crate) fn write(&self, svg: impl FnOnce() -> String) -> anyhow::Result<()> {
        let Some(file) = &self.plot else { return Ok(()) };
        write(file, svg().as_bytes())
    }
}

fn write(file: &Path, content: &[u8]) -> anyhow::Result<()> {
    fs::write(file, content).with_context(|| format!("can't write {}", file.display()))
}
