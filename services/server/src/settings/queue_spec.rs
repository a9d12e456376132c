//! Settings of a batch queue.

use std::collections::BTreeMap;

use anyhow::ensure;
use documented::DocumentedFields;
use forebay_inference::{RequestColumn, RequestColumns, queue::QueueConfig};
use forebay_proto::v1;
use serde::{Deserialize, Serialize};

use super::OnlineSpec;
use crate::lookup_request::check_lookup;

/// Settings of a queue, from `forebay.toml`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, DocumentedFields)]
#[serde(default, deny_unknown_fields)]
pub struct QueueSpec {
    /// Lookup that produces the features of a row, as in docs/how-to/batch-queues.md: `dataset`, `columns`, `tensors`, `select`, `joins`.
    /// Required.
    pub features: v1::Lookup,
    /// Columns that callers send with their keys, and that workers receive after the features. Each is a table with `name`, `dtype`
    /// and optionally `length`. Default: none.
    pub request_columns: Vec<RequestColumn>,
    /// Batching and admission.
    pub batching: QueueConfig,
}

impl QueueSpec {
    /// Checks the settings without opening anything.
    pub(crate) fn check(
        &self,
        online: &BTreeMap<String, OnlineSpec>,
        max_answer_bytes: u64,
    ) -> anyhow::Result<()> {
        check_lookup(&self.features).map_err(|error| anyhow::anyhow!("features: {error}"))?;
        for part in std::iter::once(&self.features).chain(&self.features.joins) {
            ensure!(!part.dataset.is_empty(), "features: dataset is missing, expected the name of a dataset");
            ensure!(part.keys.is_empty(), "features: has `keys`, which callers send with their requests");
            let name = &part.dataset;
            ensure!(
                online.contains_key(name),
                "features: dataset '{name}' does not serve lookups; add [online.{name}]"
            );
        }
        let columns = RequestColumns::new(&self.request_columns)
            .map_err(|reason| anyhow::anyhow!("request_columns{reason}"))?;
        for (place, RequestColumn { name, .. }) in self.request_columns.iter().enumerate() {
            for part in std::iter::once(&self.features).chain(&self.features.joins) {
                let of_dataset = online.get(&part.dataset).map(|online| &online.key);
                let key = if part.key.is_empty() { of_dataset } else { Some(&part.key) };
                ensure!(
                    key.is_none_or(|key| !key.contains(name)),
                    "request_columns[{place}].name: '{name}' is also the name of a key column"
                );
            }
        }
        check_batching(&self.batching, &columns, max_answer_bytes)
            .map_err(|reason| anyhow::anyhow!("batching.{reason}"))
    }
}

/// Checks batching settings against the server's other settings.
///
/// # Errors
/// The invalid setting, its value and what was expected.
pub(crate) fn check_batching(
    batching: &QueueConfig,
    columns: &RequestColumns,
    max_answer_bytes: u64,
) -> Result<(), String> {
    batching.validate()?;
    let (found, most) = (batching.max_batch_bytes, max_answer_bytes / 2);
    if found > most {
        return Err(format!(
            "max_batch_bytes is {found}, expected at most {most}, half of lookups.max_answer_bytes"
        ));
    }
    columns.check_padding(&batching.pad_to, max_answer_bytes)
}
