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
        let filter = self.filter.as_ref().map(|filter| filter.identity());
        let keys: Vec<u128> = self.keys.iter().map(|key| key.identity(snapshot)).collect();
        Some(name_of(SEMANTICS, filter, &keys, self.lengths))
    }

    /// Columns to compute: the keys, then the filter.
    pub(crate) fn columns(&self) -> Vec<Source> {
        self.keys.iter().cloned().chain(self.filter.clone().map(Source::Computed)).collect()
    }
}

/// Name of the counts of a row selection, with the identities of its filter and its keys.
fn name_of(semantics: u32, filter: Option<u128>, keys: &[u128], lengths: bool) -> u128 {
    let counts = Identity::new("counts", semantics).list(filter.iter().len());
    let counts = filter.into_iter().fold(counts, Identity::part).list(keys.len());
    keys.iter().copied().fold(counts, Identity::part).number(lengths.into()).hash()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With a fixed version of the semantics, so that a new one does not change the golden names.
    #[test]
    fn the_name_of_kept_row_counts_is_frozen() {
        let filtered = name_of(2, Some(0x11), &[], false);
        let grouped = name_of(2, Some(0x11), &[0x22, 0x33], true);
        assert_eq!(
            format!("{filtered:032x} {grouped:032x}"),
            "da869c497bed282b79043627e683419f d644b0d97d01a63d876688b8a80355b3",
            "stored counts have this name, and counts with another name are computed again"
        );
    }

    #[test]
    fn counts_of_other_semantics_and_other_rows_have_other_names() {
        let names = [
            name_of(2, Some(1), &[2], false),
            name_of(3, Some(1), &[2], false),
            name_of(2, None, &[1, 2], false),
            name_of(2, None, &[2, 1], false),
            name_of(2, Some(1), &[2], true),
        ];
        let distinct: std::collections::BTreeSet<u128> = names.into_iter().collect();
        assert_eq!(distinct.len(), names.len());
    }
}
