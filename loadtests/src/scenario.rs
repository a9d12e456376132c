//! A scenario: the data, the request and the simulated accelerator.

use std::{path::Path, time::Duration};

use anyhow::{Context, bail, ensure};
use forebay_proto::v1;
use serde::{Deserialize, Serialize};

use crate::{data::Data, request::Request};

/// The built-in scenarios.
const BUILT_IN: &[(&str, &str)] = included!(
    "scenarios" ".toml": "tensor" "clicks-tensors" "dlrm" "clicks" "clicks-files" "clicks-nulls" "lists"
    "lineitem" "flights" "images" "computed" "filtered" "ranking" "users" "soak" "tier"
);

/// A scenario file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scenario {
    /// Name of the scenario and its dataset: letters, digits and `-`.
    pub(crate) name: String,
    /// Description in one line.
    pub(crate) about: String,
    /// Rows per rank and step.
    pub(crate) batch_size: u64,
    /// Time of the simulated accelerator per batch, in milliseconds.
    pub(crate) compute_ms: f64,
    /// Epochs per measured run, streamed without a pause. Default: 1.
    #[serde(default = "one")]
    pub(crate) epochs: u64,
    /// Generator of the data, with its parameters.
    pub(crate) data: Data,
    /// Requested columns and tensors. Default: all columns.
    #[serde(default)]
    pub(crate) request: Request,
}

fn one() -> u64 {
    1
}

impl Scenario {
    /// Returns a built-in scenario or reads a scenario file.
    pub(crate) fn named(name_or_file: &str) -> anyhow::Result<Self> {
        if let Some((_, text)) = BUILT_IN.iter().find(|(name, _)| *name == name_or_file) {
            return Self::parse(text).with_context(|| format!("scenario {name_or_file}"));
        }
        if !Path::new(name_or_file).is_file() {
            let names: Vec<&str> = BUILT_IN.iter().map(|(name, _)| *name).collect();
            bail!("unknown scenario {name_or_file}: expected a file or one of {}", names.join(", "));
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

    /// Returns the time of `share` of a simulated accelerator per batch.
    pub(crate) fn compute(&self, share: f64) -> Duration {
        Duration::from_secs_f64(self.compute_ms / 1e3 / share)
    }

    /// Returns the request for a world of one rank.
    pub(crate) fn train(&self, epoch: u64, epochs: u64) -> v1::Train {
        v1::Train {
            dataset: self.name.clone(),
            columns: self.request.columns.clone(),
            tensors: self.request.tensors.clone(),
            batch_size: self.batch_size,
            epoch,
            epochs: Some(epochs),
            // All rows are delivered, for any number of ranks.
            remainder: v1::Remainder::Short as i32,
            job_name: format!("load-{}", self.name),
            content_hash: Some(false),
            ..v1::Train::default()
        }
    }
}

#[cfg(test)]
mod tests;
