//! Sources of the values of a column.

use std::{collections::HashSet, sync::Arc};

use forebay_sql::{Expression, Identity};
use forebay_storage::Snapshot;

/// Source of the values of a column.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    /// Column of the snapshot, by position.
    Stored(usize),
    /// Expression over columns of the snapshot.
    Computed(Arc<Expression>),
}

impl Source {
    /// Identity of the column's values, independent of the files that store them.
    pub(crate) fn identity(&self, snapshot: &Snapshot) -> u128 {
        match self {
            Self::Stored(column) => {
                let field = snapshot.schema().field(*column);
                Identity::new("stored column", 1).text(field.name()).data_type(field.data_type()).hash()
            }
            Self::Computed(expression) => expression.identity(),
        }
    }
}

/// Returns the stored columns that `columns` require, without duplicates, in the order of first use. There is at least
/// one, because it determines the number of rows.
pub(crate) fn reads(columns: &[Source]) -> Vec<usize> {
    let mut reads = Vec::new();
    for source in columns {
        match source {
            Source::Stored(column) => reads.push(*column),
            Source::Computed(expression) => reads.extend(expression.inputs()),
        }
    }
    if reads.is_empty() {
        reads.push(0);
    }
    let mut seen = HashSet::new();
    reads.retain(|column| seen.insert(*column));
    reads
}
