//! A scenario: what is read, how it is asked for, and by what kind of accelerator.

use std::{path::Path, time::Duration};

use anyhow::{Context, bail, ensure};
use forebay_proto::v1;
use serde::{Deserialize, Serialize};

use crate::data::Data;

/// The scenarios that come with the program.
const BUILT_IN: [(&str, &str); 15] = [
    ("tensor", include_str!("../scenarios/tensor.toml")),
    ("clicks-tensors", include_str!("../scenarios/clicks-tensors.toml")),
    ("dlrm", include_str!("../scenarios/dlrm.toml")),
    ("clicks", include_str!("../scenarios/clicks.toml")),
    ("clicks-files", include_str!("../scenarios/clicks-files.toml")),
    ("clicks-nulls", include_str!("../scenarios/clicks-nulls.toml")),
    ("lists", include_str!("../scenarios/lists.toml")),
    ("lineitem", include_str!("../scenarios/lineitem.toml")),
    ("flights", include_str!("../scenarios/flights.toml")),
    ("images", include_str!("../scenarios/images.toml")),
    ("computed", include_str!("../scenarios/computed.toml")),
    ("filtered", include_str!("../scenarios/filtered.toml")),
    ("ranking", include_str!("../scenarios/ranking.toml")),
    ("users", include_str!("../scenarios/users.toml")),
    ("soak", include_str!("../scenarios/soak.toml")),
];

/// A scenario file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scenario {
    /// What it is called, and its dataset with it: letters, digits and `-`.
    pub(crate) name: String,
    /// What it stands for, in one line.
    pub(crate) about: String,
    /// Rows a rank a step.
    pub(crate) batch_size: u64,
    /// What the emulated accelerator computes on one batch, in milliseconds.
    pub(crate) compute_ms: f64,
    /// Epochs of a measured run, streamed without a pause between them. Default: 1.
    #[serde(default = "one")]
    pub(crate) epochs: u64,
    /// The generator of the data, and its sizes.
    pub(crate) data: Data,
    /// What is asked for of a row. Default: all columns.
    #[serde(default)]
    pub(crate) request: Request,
}

/// The view of a scenario, as in a train command.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Request {
    /// Plain columns, in this order. Default: all, or none when there are tensors.
    #[serde(default)]
    pub(crate) columns: Vec<String>,
    /// Groups of columns that are sent as one each.
    #[serde(default)]
    pub(crate) tensors: Vec<v1::Tensor>,
}

impl Request {
    /// The same columns, of which `all` are there, none of them in a tensor.
    pub(crate) fn without_tensors<'a>(&self, all: impl Iterator<Item = &'a str>) -> anyhow::Result<Self> {
        let all: Vec<String> = all.map(str::to_owned).collect();
        Ok(Self { columns: crate::table::columns(self, &all)?, tensors: Vec::new() })
    }
}

fn one() -> u64 {
    1
}

impl Scenario {
    /// The built-in scenario of that name, or the one in that file.
    pub(crate) fn named(name_or_file: &str) -> anyhow::Result<Self> {
        if let Some((_, text)) = BUILT_IN.iter().find(|(name, _)| *name == name_or_file) {
            return Self::parse(text).with_context(|| format!("scenario {name_or_file}"));
        }
        if !Path::new(name_or_file).is_file() {
            let names: Vec<&str> = BUILT_IN.iter().map(|(name, _)| *name).collect();
            bail!("there is no scenario {name_or_file}: expected a file, or one of {}", names.join(", "));
        }
        let text =
            std::fs::read_to_string(name_or_file).with_context(|| format!("can't read {name_or_file}"))?;
        Self::parse(&text).with_context(|| name_or_file.to_owned())
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let scenario: Self = toml::from_str(text)?;
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '-';
        ensure!(
            !scenario.name.is_empty() && scenario.name.chars().all(is_word),
            "name = {:?}: expected letters, digits and `-`",
            scenario.name
        );
        ensure!(scenario.batch_size > 0, "batch_size = 0: expected at least 1");
        ensure!(scenario.epochs > 0, "epochs = 0: expected at least 1");
        ensure!(
            scenario.compute_ms.is_finite() && scenario.compute_ms > 0.0,
            "compute_ms = {}: expected more than 0",
            scenario.compute_ms
        );
        Ok(scenario)
    }

    /// What `share` of an emulated accelerator takes for a batch.
    pub(crate) fn compute(&self, share: f64) -> Duration {
        Duration::from_secs_f64(self.compute_ms / 1e3 / share)
    }

    /// The command for one rank, or for all of a world of one.
    pub(crate) fn train(&self, epoch: u64, epochs: u64) -> v1::Train {
        v1::Train {
            dataset: self.name.clone(),
            columns: self.request.columns.clone(),
            tensors: self.request.tensors.clone(),
            batch_size: self.batch_size,
            epoch,
            epochs: Some(epochs),
            // Every row counts, for any number of ranks.
            remainder: v1::Remainder::Short as i32,
            job: format!("load-{}", self.name),
            hash: Some(false),
            ..v1::Train::default()
        }
    }
}

#[cfg(test)]
mod tests;
