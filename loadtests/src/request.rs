//! The columns and tensors that a scenario requests.

use forebay_proto::v1;
use serde::{Deserialize, Serialize};

/// The view of a scenario, as in a train command.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Request {
    /// Plain columns in order. Default: all columns, or none if there are tensors.
    #[serde(default)]
    pub(crate) columns: Vec<String>,
    /// Groups of columns, each sent as one column. Default: none.
    #[serde(default)]
    pub(crate) tensors: Vec<v1::Tensor>,
}

impl Request {
    /// Returns true if all columns are requested.
    pub(crate) fn is_all(&self) -> bool {
        self.columns.is_empty() && self.tensors.is_empty()
    }
}
