//! Settings of a dataset that serves lookups.

use anyhow::ensure;
use documented::DocumentedFields;
use forebay_inference::{Canary, KeySpec};
use forebay_proto::v1;
use serde::{Deserialize, Serialize};

use crate::lookup_request::check_lookup;

/// Settings of a dataset that serves lookups, from `forebay.toml`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, DocumentedFields)]
#[serde(deny_unknown_fields)]
pub struct OnlineSpec {
    /// Names of the key columns. Required.
    pub key: Vec<String>,
    /// Name of the column that selects one of several rows with the same key: the row with the greatest value, or the last of
    /// several such rows. Null is the least value. Default: none, the last row of a key is selected.
    #[serde(default)]
    pub order_by: Option<String>,
    /// Views that are always in memory. They are loaded before the dataset is ready. A new snapshot replaces the current one only
    /// after its views are loaded. Each is a table with `columns`, `tensors`, `select` and `filter`, as in a lookup. The features
    /// of a queue are always such a view and need not be listed. Default: none.
    #[serde(default)]
    pub views: Vec<v1::Lookup>,
    /// Rules for a new snapshot, see `[online.NAME.canary]`. A snapshot that breaks one of them does not answer lookups. Default: none,
    /// every snapshot that can be loaded answers lookups.
    #[serde(default)]
    pub canary: Option<Canary>,
    /// Id of the snapshot that answers lookups, also if it is not the current one. Default: none, the current snapshot.
    #[serde(default)]
    pub snapshot: Option<String>,
}

impl OnlineSpec {
    /// Key of the dataset.
    pub(crate) fn key(&self) -> KeySpec {
        KeySpec { key: self.key.clone(), order_by: self.order_by.clone() }
    }

    /// Checks the settings without opening anything.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        if let Some(canary) = &self.canary {
            canary.validate().map_err(|reason| anyhow::anyhow!("canary.{reason}"))?;
        }
        ensure!(!self.key.is_empty(), "key: is empty, expected at least one column");
        for (place, column) in self.key.iter().enumerate() {
            ensure!(!self.key[..place].contains(column), "key: column '{column}' appears twice");
        }
        for (place, view) in self.views.iter().enumerate() {
            check_lookup(view).map_err(|error| anyhow::anyhow!("views[{place}]: {error}"))?;
            let v1::Lookup { filter, columns, tensors, select, .. } = view.clone();
            let allowed = v1::Lookup { filter, columns, tensors, select, ..v1::Lookup::default() };
            ensure!(
                *view == allowed,
                "views[{place}]: expected only `columns`, `tensors`, `select` and `filter`"
            );
        }
        Ok(())
    }
}
