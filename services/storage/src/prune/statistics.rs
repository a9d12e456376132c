//! Statistics of the values in a block, from partition values and row group statistics.

use std::{ops::Range, sync::Arc};

use arrow_array::{Array, ArrayRef, UInt64Array, new_empty_array, new_null_array};
use arrow_schema::{DataType, Field, Schema};
use arrow_select::concat::concat;
use parquet::{
    arrow::arrow_reader::statistics::StatisticsConverter,
    basic::{ColumnOrder, SortOrder, Type as Physical},
    errors::ParquetError,
    file::{metadata::ColumnChunkMetaData, statistics::Statistics as OfChunk},
    schema::types::ColumnDescriptor,
};

use crate::{
    Block, Error, PartitionValue, Reader,
    dataset::{column_sizes::null_bytes, schema::unsupported_reason},
    store::target::Target,
    validate::{decoder_errors::catch_panics, footer::Footer},
};

/// Statistics of one column of one block, per piece. A piece is the whole block (for a partition column), a row group
/// or a page.
#[derive(Debug, Clone)]
pub struct Statistics {
    /// End of each piece as a row offset in the block, ascending. The last piece ends at the end of the block.
    pub ends: Vec<u32>,
    /// Lower bound of the non-null values of each piece, in the column's type; null if unknown.
    pub min: ArrayRef,
    /// Upper bound of the non-null values of each piece, in the column's type; null if unknown.
    pub max: ArrayRef,
    /// Number of nulls in each piece; `None` if unknown.
    pub null_counts: Vec<Option<u64>>,
}

impl Statistics {
    /// Statistics of a block without any known bounds.
    fn unknown(data_type: &DataType, rows: u32) -> Self {
        let none = arrow_array::new_null_array(data_type, 1);
        Self { ends: vec![rows], min: ArrayRef::clone(&none), max: none, null_counts: vec![None] }
    }

    /// Statistics of a partition column.
    fn from_partition(value: &PartitionValue, data_type: &DataType, rows: u32) -> Self {
        let one = value.repeat(data_type, 1);
        let nulls = if *value == PartitionValue::Null { u64::from(rows) } else { 0 };
        Self { ends: vec![rows], min: ArrayRef::clone(&one), max: one, null_counts: vec![Some(nulls)] }
    }

    /// Concatenates the statistics of consecutive parts; `None` if they do not add up to a block of `rows` rows.
    pub(crate) fn concat(parts: &[Self], data_type: &DataType, rows: u32) -> Option<Self> {
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
        let whole = Self {
            min: all(|part| &part.min)?,
            max: all(|part| &part.max)?,
            null_counts: parts.iter().flat_map(|part| part.null_counts.iter().copied()).collect(),
            ends,
        };
        whole.covers(rows).then_some(whole)
    }

    /// True if the pieces are consistent and end at `rows`.
    fn covers(&self, rows: u32) -> bool {
        let pieces = self.ends.len();
        [self.min.len(), self.max.len(), self.null_counts.len()] == [pieces; 3]
            && self.ends.is_sorted()
            && self.ends.last() == Some(&rows)
    }
}

/// A block with the footer of its file.
#[derive(Clone)]
pub(crate) struct BlockMetadata {
    pub(crate) footer: Arc<Footer>,
    pub(crate) target: Target,
    pub(crate) groups: Range<usize>,
    pub(crate) rows: u32,
}

impl BlockMetadata {
    /// Column chunk of each row group; `None` if the column is missing or nested with more than one leaf.
    pub(crate) fn chunks(&self, name: &str) -> Option<Vec<&ColumnChunkMetaData>> {
        let root = self.footer.schema().index_of(name).ok()?;
        let leaves = self.footer.leaves(root);
        let groups = self.footer.metadata().row_groups().get(self.groups.clone())?;
        (leaves.len() == 1).then(|| groups.iter().map(|group| group.column(leaves.start)).collect())
    }

    /// True if the bounds of a column are in the order of its values, so that they apply to comparisons.
    pub(crate) fn has_known_order(&self, name: &str) -> bool {
        let file = self.footer.metadata().file_metadata();
        let leaf = self.footer.schema().index_of(name).map(|root| self.footer.leaves(root).start);
        leaf.is_ok_and(|leaf| {
            let column = file.schema_descr().column(leaf);
            is_known_order(file.column_order(leaf), &column)
        })
    }

    /// Statistics of the row groups; `None` if they are missing or unreliable, or if one null per row group takes more
    /// than `max_bytes` bytes.
    fn statistics(&self, field: &Field, max_bytes: u64) -> Option<Statistics> {
        let (name, data_type) = (field.name(), field.data_type());
        // The bounds in the file have another type.
        if unsupported_reason(field).is_some() {
            return None;
        }
        if null_bytes(data_type).saturating_mul(self.groups.len() as u64) > max_bytes {
            return None;
        }
        // Old writers compared bytes as signed values. Statistics of nulls alone are reliable in either case.
        let reliable = |known: &OfChunk| !known.is_min_max_deprecated() || known.min_bytes_opt().is_none();
        if !self.chunks(name)?.iter().all(|chunk| chunk.statistics().is_some_and(reliable)) {
            return None;
        }
        let has_order = self.has_known_order(name);
        let groups = &self.footer.metadata().row_groups()[self.groups.clone()];
        let read = || -> Result<_, ParquetError> {
            let schema = self.footer.metadata().file_metadata().schema_descr();
            // The hint of another file may have led to another type.
            let mut fields = self.footer.schema().fields().to_vec();
            fields[self.footer.schema().index_of(name)?] = Arc::new(field.clone());
            let delivered = Schema::new(fields);
            let converter = StatisticsConverter::try_new(name, &delivered, schema)?
                .with_missing_null_counts_as_zero(false);
            let nulls: UInt64Array = converter.row_group_null_counts(groups)?;
            if !has_order {
                let none = new_null_array(data_type, groups.len());
                return Ok((ArrayRef::clone(&none), none, nulls));
            }
            Ok((converter.row_group_mins(groups)?, converter.row_group_maxes(groups)?, nulls))
        };
        let (min, max, null_counts) = catch_panics(&self.target.url, read).ok()?;
        let ends = groups.iter().scan(0_u32, |end, group| {
            *end = end.checked_add(u32::try_from(group.num_rows()).ok()?)?;
            Some(*end)
        });
        let read = Statistics { ends: ends.collect(), min, max, null_counts: null_counts.iter().collect() };
        Statistics::concat(&[read], data_type, self.rows)
    }
}

/// True if bounds of a column are in the order of its values.
///
/// A file that declares the order that the type of the column defines has such bounds, unless the type defines none. A file that declares no
/// order, as old writers do, has them for types that are compared as they are stored: signed numbers and booleans. An order that is not
/// known, of a later version of the format, says nothing.
fn is_known_order(declared: ColumnOrder, column: &ColumnDescriptor) -> bool {
    let defined = ColumnOrder::sort_order_for_type(
        column.logical_type_ref(),
        column.converted_type(),
        column.physical_type(),
    );
    match (declared, column.physical_type()) {
        (ColumnOrder::TYPE_DEFINED_ORDER(_), _) => defined != SortOrder::UNDEFINED,
        (ColumnOrder::UNDEFINED, Physical::BOOLEAN) => true,
        (ColumnOrder::UNDEFINED, Physical::INT32 | Physical::INT64 | Physical::FLOAT | Physical::DOUBLE) => {
            defined == SortOrder::SIGNED
        }
        (ColumnOrder::UNDEFINED | ColumnOrder::UNKNOWN, _) => false,
    }
}

impl Reader {
    /// Returns the statistics of `columns` (positions in the snapshot's schema) of one block: from the partition
    /// values, which need no I/O, or per row group. Reads the footer of the file if it is not cached.
    ///
    /// # Errors
    /// Errors of reading a footer.
    ///
    /// # Panics
    /// If the snapshot has no such block or column.
    pub async fn statistics(&self, block: usize, columns: &[usize]) -> Result<Vec<Statistics>, Error> {
        let Block { file, rows, .. } = self.snapshot().blocks()[block];
        if columns.iter().all(|column| self.snapshot().partition(file, *column).is_some()) {
            return Ok(columns
                .iter()
                .map(|column| self.row_group_statistics(file, *column, rows, None))
                .collect());
        }
        let metadata = self.block_metadata(block, columns).await?;
        let (this, columns) = (self.clone(), columns.to_vec());
        let each = move || {
            columns
                .iter()
                .map(|column| this.row_group_statistics(file, *column, rows, Some(&metadata)))
                .collect()
        };
        self.compute().run(move || Ok(each())).await
    }

    /// Returns a block with the footer of its file, with at least `columns`.
    pub(crate) async fn block_metadata(
        &self,
        block: usize,
        columns: &[usize],
    ) -> Result<BlockMetadata, Error> {
        let Block { file, row_groups, rows, .. } = self.snapshot().blocks()[block].clone();
        let (footer, target) = self.footer(file, columns).await?;
        Ok(BlockMetadata { footer, target, groups: row_groups.start as usize..row_groups.end as usize, rows })
    }

    /// Returns the statistics of a column from its partition value or from the row groups in `metadata`; unknown bounds
    /// if neither is available.
    pub(crate) fn row_group_statistics(
        &self,
        file: u32,
        column: usize,
        rows: u32,
        metadata: Option<&BlockMetadata>,
    ) -> Statistics {
        let field = self.snapshot().schema().field(column);
        if let Some(value) = self.snapshot().partition(file, column) {
            return Statistics::from_partition(value, field.data_type(), rows);
        }
        metadata
            .and_then(|metadata| metadata.statistics(field, self.config().max_block_bytes))
            .unwrap_or_else(|| Statistics::unknown(field.data_type(), rows))
    }
}
