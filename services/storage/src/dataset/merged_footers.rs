//! Merging of the footers of a dataset: one schema, null counts, and the row groups of each file.

use std::{fmt::Display, ops::Range, sync::Arc};

use arrow_schema::{DataType, Field};

use crate::{
    Error, RowGroup, Snapshot,
    dataset::{
        column_sizes::{chunk_bytes, leaf_types},
        schema::{column_position, merge_hinted},
    },
    store::target::Target,
    validate::footer::Footer,
};

/// Merged schema and null counts of the files read so far.
pub(crate) struct MergedFooters {
    /// URL of the first file.
    first: String,
    /// Merged file columns.
    pub(crate) fields: Vec<Field>,
    /// Types that the Parquet schema of the first file declares for `fields`; `None` if its footer was not read.
    declared: Option<Vec<DataType>>,
    /// Number of nulls in each column; `None` if a footer does not record it.
    pub(crate) nulls: Vec<Option<u64>>,
}

impl MergedFooters {
    /// Begins with the footer of the first file. `partitions` are the partition columns of the dataset.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a name that is both a file column and a partition column.
    pub(crate) fn new(footer: &Footer, target: &Target, partitions: &[Field]) -> Result<Self, Error> {
        let fields: Vec<Field> = footer.schema().fields().iter().map(|field| (**field).clone()).collect();
        if let Some(both) =
            partitions.iter().find(|key| fields.iter().any(|field| field.name() == key.name()))
        {
            let detail = format!("column {} is both a file column and a partition column", both.name());
            return Err(Error::unsupported(&target.url, detail));
        }
        let declared = footer.columns().iter().map(|column| column.declared.clone()).collect();
        let nulls = vec![Some(0); fields.len()];
        Ok(Self { first: target.url.clone(), fields, declared: Some(declared), nulls })
    }

    /// Begins with the merged footers of all files of `snapshot`, which begins with the file at `first`.
    pub(crate) fn of_snapshot(snapshot: &Snapshot, first: &Target) -> Self {
        let parts = snapshot.parts();
        let columns = &parts.schema.fields()[..parts.nulls.len()];
        let fields = columns.iter().map(|field| (**field).clone()).collect();
        Self { first: first.url.clone(), fields, declared: None, nulls: parts.nulls.clone() }
    }

    /// Merges the schema of another file.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if the columns differ from those of the first file.
    pub(crate) fn add(&mut self, footer: &Footer, target: &Target) -> Result<(), Error> {
        let schema = footer.schema();
        for (position, merged) in self.fields.iter_mut().enumerate() {
            let mismatch = |found: &dyn Display| {
                Error::mismatch(&self.first, &target.url, merged.name(), merged.data_type(), found)
            };
            let root = column_position(schema, position, merged.name());
            let root = root.ok_or_else(|| mismatch(&"absent"))?;
            let field = schema.field(root);
            let of_first = self.declared.as_ref().map(|declared| &declared[position]);
            let declared = (of_first, &footer.columns()[root].declared);
            let files = (self.first.as_str(), target.url.as_str());
            *merged =
                merge_hinted(merged, field, declared, files).ok_or_else(|| mismatch(field.data_type()))?;
        }
        let known = |field: &Field| self.fields.iter().any(|merged| merged.name() == field.name());
        if schema.fields().len() > self.fields.len()
            && let Some(extra) = schema.fields().iter().find(|field| !known(field))
        {
            let (name, found) = (extra.name(), extra.data_type());
            return Err(Error::mismatch(&self.first, &target.url, name, &"absent", found));
        }
        Ok(())
    }

    /// Describes the row groups of a file and adds its null counts.
    pub(crate) fn row_groups(&mut self, footer: &Arc<Footer>) -> Vec<RowGroup> {
        let groups = footer.metadata().row_groups().iter();
        let mut counted: Vec<RowGroup> = groups
            .map(|group| RowGroup {
                rows: u32::try_from(group.num_rows()).expect("checked when the footer was parsed"),
                bytes: u64::try_from(group.total_byte_size()).expect("checked when the footer was parsed"),
                columns: Vec::with_capacity(self.fields.len()),
            })
            .collect();
        for (position, field) in self.fields.iter().enumerate() {
            let root =
                column_position(footer.schema(), position, field.name()).expect("the file has the column");
            let leaves = footer.leaves(root);
            let types = leaf_types(field.data_type());
            for (counted, group) in counted.iter_mut().zip(footer.metadata().row_groups()) {
                let chunks = leaves
                    .clone()
                    .zip(&types)
                    .map(|(leaf, leaf_type)| chunk_bytes(leaf_type, group.column(leaf), counted.rows.into()));
                counted.columns.push(chunks.fold(0, u64::saturating_add));
            }
            let nulls = column_nulls(footer, footer.schema().field(root), leaves);
            self.nulls[position] = self.nulls[position].zip(nulls).map(|(a, b)| a.saturating_add(b));
        }
        counted
    }
}

/// Number of nulls of one column in one file; `None` if its footer does not record it.
fn column_nulls(footer: &Footer, field: &Field, leaves: Range<usize>) -> Option<u64> {
    if !field.is_nullable() {
        return Some(0);
    }
    // The null count of a leaf includes nulls of the nested levels. A column that is not supported can have any number of leaves.
    if field.data_type().is_nested() || leaves.len() != 1 {
        return None;
    }
    let groups = footer.metadata().row_groups().iter().filter(|group| group.num_rows() > 0);
    let mut counts = groups.map(|group| group.column(leaves.start).statistics()?.null_count_opt());
    counts.try_fold(0, |sum: u64, count| Some(sum.saturating_add(count?)))
}
