//! Filter and keys of a request, which select and group rows.

use std::sync::Arc;

use forebay_sql::{Expression, Identity, SEMANTICS};
use forebay_storage::Snapshot;

use super::source::Source;

/// Properties of the rows that the order depends on: which rows are kept, and which form a group.
#[derive(Debug, Clone, Default)]
pub(crate) struct RowSelection {
    pub(crate) filter: Option<Arc<Expression>>,
    pub(crate) keys: Vec<Source>,
    /// True if the number of rows of each group is required.
    pub(crate) lengths: bool,
}

impl RowSelection {
    /// Returns the name under which the counts are stored, or `None` if the request has neither filter nor groups.
    pub(crate) fn identity(&self, snapshot: &Snapshot) -> Option<u128> {
        if self.filter.is_none() && self.keys.is_empty() {
            return None;
        }
        let filter = self.filter.iter().map(|filter| filter.identity());
        let keys = self.keys.iter().map(|key| key.identity(snapshot));
        let counts = Identity::new("counts", SEMANTICS).list(filter.len());
        let counts = filter.fold(counts, Identity::part).list(keys.len());
        Some(keys.fold(counts, Identity::part).number(self.lengths.into()).hash())
    }

    /// Columns to compute: the keys, then the filter.
    pub(crate) fn columns(&self) -> Vec<Source> {
        self.keys.iter().cloned().chain(self.filter.clone().map(Source::Computed)).collect()
    }
}
