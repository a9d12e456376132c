//! Result files: the measurements as JSON and a chart as SVG.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::{chart::Chart, machine::Machine};

/// Flags of the subcommands that write results.
#[derive(Debug, Args)]
pub(crate) struct Output {
    /// Write the measurements as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a chart as SVG. `forebay-load chart` draws it later from the JSON.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

/// The JSON of a result.
#[derive(Serialize)]
struct Document<'a, T> {
    /// Name of the subcommand.
    command: &'a str,
    /// Version of Forebay.
    version: &'a str,
    machine: &'a Machine,
    chart: &'a Chart,
    #[serde(flatten)]
    measurements: &'a T,
}

impl Output {
    /// Writes the files that the flags name.
    pub(crate) fn write(
        &self,
        command: &str,
        machine: &Machine,
        measurements: &impl Serialize,
        chart: &Chart,
    ) -> anyhow::Result<()> {
        if let Some(file) = &self.json {
            let version = env!("CARGO_PKG_VERSION");
            let document = Document { command, version, machine, chart, measurements };
            write(file, &serde_json::to_vec_pretty(&document)?)?;
        }
        if let Some(file) = &self.plot {
            write(file, chart.svg()?.as_bytes())?;
        }
        Ok(())
    }
}

/// Flags of `forebay-load chart`.
#[derive(Debug, Args)]
pub(crate) struct DrawChart {
    /// JSON of a result, written with `--json`.
    #[arg(value_name = "RESULT.json")]
    result: PathBuf,
    /// File to write.
    #[arg(long, value_name = "FILE.svg")]
    out: PathBuf,
}

/// The part of a result that is drawn.
#[derive(Deserialize)]
struct WithChart {
    chart: Chart,
}

impl DrawChart {
    /// Draws the chart of a result.
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let text = fs::read(&self.result).with_context(|| format!("can't read {}", self.result.display()))?;
        let WithChart { chart } = serde_json::from_slice(&text)
            .with_context(|| format!("{}: expected JSON of forebay-load", self.result.display()))?;
        write(&self.out, chart.svg()?.as_bytes())
    }
}

fn write(file: &Path, content: &[u8]) -> anyhow::Result<()> {
    fs::write(file, content).with_context(|| format!("can't write {}", file.display()))
}
