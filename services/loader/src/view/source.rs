//! Sources of the values of a column.

use std::{
    collections::{HashMap, hash_map::Entry},
    ops::Deref,
    sync::Arc,
};

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

/// Stored columns without duplicates, as positions in the schema of the snapshot, in the order in which they are read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reads {
    columns: Vec<usize>,
    /// Index in `columns` of each column.
    at: HashMap<usize, usize>,
}

impl Reads {
    /// The stored columns that `columns` require, in the order of first use. There is at least one, because it determines the number of
    /// rows.
    pub(crate) fn of(columns: &[Source]) -> Self {
        let mut reads = Self::default();
        for source in columns {
            match source {
                Source::Stored(column) => reads.add(*column),
                Source::Computed(expression) => {
                    expression.inputs().iter().for_each(|column| reads.add(*column));
                }
            }
        }
        if reads.columns.is_empty() {
            reads.add(0);
        }
        reads
    }

    fn add(&mut self, column: usize) {
        if let Entry::Vacant(entry) = self.at.entry(column) {
            entry.insert(self.columns.len());
            self.columns.push(column);
        }
    }

    /// Index of a column; `None` if it is not read.
    pub(crate) fn position(&self, column: usize) -> Option<usize> {
        self.at.get(&column).copied()
    }
}

impl FromIterator<usize> for Reads {
    fn from_iter<I: IntoIterator<Item = usize>>(columns: I) -> Self {
        let mut reads = Self::default();
        columns.into_iter().for_each(|column| reads.add(column));
        reads
    }
}

impl Deref for Reads {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.columns
    }
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
