//! The flags that select a scenario and its data.

use std::path::PathBuf;

use clap::Args;

use crate::{
    data::{self, Dataset},
    paths,
    scenario::Scenario,
};

/// Selects a scenario and the folder of its data.
#[derive(Debug, Args)]
pub(crate) struct Source {
    /// Name of a built-in scenario, or path of a scenario file.
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) scenario: String,
    /// Folder of the generated data [default: target/loadtests/data].
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
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
}
