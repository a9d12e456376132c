//! The flags that select a scenario and its data.

use std::{path::PathBuf, process::Command};

use clap::Args;

use crate::{
    data::{self, Dataset},
    paths,
    process::Process,
    scenario::Scenario,
};

/// Selects a scenario and the folder of its data.
#[derive(Debug, Args)]
pub(crate) struct Source {
    /// Name of a built-in scenario, or path of a scenario file.
    #[arg(long, value_name = "NAME|FILE")]
    scenario: String,
    /// Folder of the generated data [default: target/loadtests/data].
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

impl Source {
    /// Selects a built-in scenario with data in the default folder.
    pub(crate) fn built_in(scenario: &str) -> Self {
        Self { scenario: scenario.to_owned(), data: None }
    }

    /// Loads the scenario, and generates its data unless they exist.
    pub(crate) fn load(&self) -> anyhow::Result<(Scenario, Dataset)> {
        let scenario = Scenario::named(&self.scenario)?;
        let folder = match &self.data {
            Some(folder) => folder.clone(),
            None => paths::loadtests()?.join("data"),
        };
        let dataset = data::prepare(&scenario.name, &scenario.data, &folder)?;
        Ok((scenario, dataset))
    }

    /// Generates the data and prints their path and sizes.
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let (scenario, data) = self.load()?;
        let bytes = data.sizes.epoch_bytes(&scenario.request)?;
        println!("{}: {}", scenario.name, scenario.about);
        println!("{} rows, {bytes} bytes per epoch, in {}", data.sizes.rows, data.path.display());
        Ok(())
    }

    /// Starts a subcommand of this program with the same flags and `flags`, and waits until it is ready.
    pub(crate) fn spawn(&self, subcommand: &str, flags: &[&str]) -> anyhow::Result<Process> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args([subcommand, "--scenario", &self.scenario]).args(flags);
        if let Some(folder) = &self.data {
            command.arg("--data").arg(folder);
        }
        Process::spawn(subcommand, command)
    }
}
