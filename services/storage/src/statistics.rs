//! What footers, page indexes and folder names say of the values in a block, without reading it.

use std::{ops::Range, sync::Arc};

use arrow_array::{Array, ArrayRef, UInt64Array, new_empty_array};
use arrow_schema::DataType;
use arrow_select::concat::concat;
use parquet::{
    arrow::arrow_reader::statistics::StatisticsConverter,
    errors::ParquetError,
    file::{metadata::ColumnChunkMetaData, statistics::Statistics as OfChunk},
};

use crate::{
    Block, Error, PartitionValue, Reader,
    blocking::blocking,
    footer::{Footer, guarded},
    footers::Target,
};

/// What is known of one column of one block, piece by piece: a piece is what a folder name, a row group's statistics or a
/// page's tell of.
#[derive(Debug, Clone)]
pub struct Statistics {
    /// The row of the block at which each piece ends, ascending; the last ends with the block.
    pub ends: Vec<u32>,
    /// For each piece: what no value that is not null lies below; null where it is not known. Of the column's type.
    pub least: ArrayRef,
    /// ... and above.
    pub greatest: ArrayRef,
    /// Nulls of each piece, where they are known.
    pub nulls: Vec<Option<u64>>,
}

impl Statistics {
    fn unknown(data_type: &DataType, rows: u32) -> Self {
        let none = arrow_array::new_null_array(data_type, 1);
        Self { ends: vec![rows], least: ArrayRef::clone(&none), greatest: none, nulls: vec![None] }
    }

    fn of_folder(value: &PartitionValue, data_type: &DataType, rows: u32) -> Self {
        let one = value.repeat(data_type, 1);
        let nulls = if *value == PartitionValue::Null { u64::from(rows) } else { 0 };
        Self { ends: vec![rows], least: ArrayRef::clone(&one), greatest: one, nulls: vec![Some(nulls)] }
    }

    /// What follows one another as one; `None` if the parts don't make up the block.
    pub(crate) fn joined(parts: &[Self], data_type: &DataType, rows: u32) -> Option<Self> {
        let mut ends: Vec<u32> = Vec::new();
        for part in parts {
            let start = ends.last().copied().unwrap_or(0);
            for end in &part.ends {
                ends.push(start.checked_add(*end)?);
            }
        }
        let all = |of: fn(&Self) -> &ArrayRef| {
            let none = new_empty_array(data_type);
            let each: Vec<&dyn Array> =
                std::iter::once(&*none).chain(parts.iter().map(|part| &**of(part))).collect();
            concat(&each).ok()
        };
        let joined = Self {
            least: all(|part| &part.least)?,
            greatest: all(|part| &part.greatest)?,
            nulls: parts.iter().flat_map(|part| part.nulls.iter().copied()).collect(),
            ends,
        };
        joined.is_of(rows).then_some(joined)
    }

    fn is_of(&self, rows: u32) -> bool {
        let pieces = self.ends.len();
        [self.least.len(), self.greatest.len(), self.nulls.len()] == [pieces; 3]
            && self.ends.is_sorted()
            && self.ends.last() == Some(&rows)
    }
}

/// A block of a file, whose footer is at hand.
#[derive(Clone)]
pub(crate) struct InFile {
    pub(crate) footer: Arc<Footer>,
    pub(crate) target: Target,
    pub(crate) groups: Range<usize>,
    pub(crate) rows: u32,
}

impl InFile {
    /// The chunks of a column that has one leaf, row group by row group.
    pub(crate) fn chunks(&self, name: &str) -> Option<Vec<&ColumnChunkMetaData>> {
        let root = self.footer.schema().index_of(name).ok()?;
        let leaves = self.footer.leaves(root);
        let groups = self.footer.metadata().row_groups().get(self.groups.clone())?;
        (leaves.len() == 1).then(|| groups.iter().map(|group| group.column(leaves.start)).collect())
    }

    /// What the statistics of the row groups say; `None` where that is nothing to be relied on.
    fn statistics(&self, name: &str, data_type: &DataType) -> Option<Statistics> {
        // Old writers compared bytes as signed ones. Where there are nulls alone, nothing tells old from new.
        let relied_on = |known: &OfChunk| !known.is_min_max_deprecated() || known.min_bytes_opt().is_none();
        if !self.chunks(name)?.iter().all(|chunk| chunk.statistics().is_some_and(relied_on)) {
            return None;
        }
        let groups = &self.footer.metadata().row_groups()[self.groups.clone()];
        let read = || -> Result<_, ParquetError> {
            let schema = self.footer.metadata().file_metadata().schema_descr();
            let converter = StatisticsConverter::try_new(name, self.footer.schema(), schema)?
                .with_missing_null_counts_as_zero(false);
            let nulls: UInt64Array = converter.row_group_null_counts(groups)?;
            Ok((converter.row_group_mins(groups)?, converter.row_group_maxes(groups)?, nulls))
        };
        let (least, greatest, nulls) = guarded(&self.target.url, read).ok()?;
        let ends = groups.iter().scan(0_u32, |end, group| {
            *end = end.checked_add(u32::try_from(group.num_rows()).ok()?)?;
            Some(*end)
        });
        let read = Statistics { ends: ends.collect(), least, greatest, nulls: nulls.iter().collect() };
        Statistics::joined(&[read], data_type, self.rows)
    }
}

impl Reader {
    /// What is known of columns (positions in the snapshot's schema) of one block: of folder names, which need no I/O, else
    /// of each row group's statistics. Reads the file's footer if it was not read before.
    ///
    /// # Errors
    /// Those of reading a footer.
    ///
    /// # Panics
    /// If the snapshot has no such block or column.
    pub async fn statistics(&self, block: usize, columns: &[usize]) -> Result<Vec<Statistics>, Error> {
        let Block { file, rows, .. } = self.snapshot().blocks()[block];
        if columns.iter().all(|column| self.snapshot().partition(file, *column).is_some()) {
            return Ok(columns.iter().map(|column| self.told(file, *column, rows, None)).collect());
        }
        let (this, columns, inside) = (self.clone(), columns.to_vec(), self.in_file(block).await?);
        let each =
            move || columns.iter().map(|column| this.told(file, *column, rows, Some(&inside))).collect();
        blocking(move || Ok(each())).await
    }

    /// A block of a file.
    pub(crate) async fn in_file(&self, block: usize) -> Result<InFile, Error> {
        let Block { file, row_groups, rows, .. } = self.snapshot().blocks()[block].clone();
        let (footer, target) = self.footer(file).await?;
        Ok(InFile { footer, target, groups: row_groups.start as usize..row_groups.end as usize, rows })
    }

    pub(crate) fn told(&self, file: u32, column: usize, rows: u32, inside: Option<&InFile>) -> Statistics {
        let field = self.snapshot().schema().field(column);
        if let Some(value) = self.snapshot().partition(file, column) {
            return Statistics::of_folder(value, field.data_type(), rows);
        }
        inside
            .and_then(|inside| inside.statistics(field.name(), field.data_type()))
            .unwrap_or_else(|| Statistics::unknown(field.data_type(), rows))
    }
}
