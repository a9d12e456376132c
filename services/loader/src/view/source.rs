//! Sources of the values of a column.

use std::{collections::HashSet, sync::Arc};

use arrow_schema::Field;
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
            Self::Stored(column) => identity_of_stored(snapshot.schema().field(*column)),
            Self::Computed(expression) => expression.identity(),
        }
    }
}

fn identity_of_stored(field: &Field) -> u128 {
    Identity::new("stored column", 1).text(field.name()).data_type(field.data_type()).hash()
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

#[cfg(test)]
mod tests {
    use arrow_schema::DataType;

    use super::*;

    #[test]
    fn the_identity_of_a_stored_column_is_frozen() {
        let identity = identity_of_stored(&Field::new("delay", DataType::Float32, true));
        assert_eq!(
            format!("{identity:032x}"),
            "dc10f1390b57ae777a46bf61bcb26e51",
            "names of row counts contain it"
        );
    }
}
