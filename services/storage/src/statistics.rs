//! What footers and folder names say of the values in a block, without reading it.

use arrow_array::{Array, ArrayRef, UInt64Array, new_empty_array};
use arrow_schema::DataType;
use arrow_select::concat::concat;
use parquet::{arrow::arrow_reader::statistics::StatisticsConverter, file::metadata::RowGroupMetaData};

use crate::{
    Block, Error, PartitionValue, Reader,
    footer::{Footer, guarded},
    footers::Target,
};

/// What is known of one column of one block.
#[derive(Debug, Clone)]
pub struct Statistics {
    /// For each row group: what no value that is not null lies below; null where it is not known. Of the column's type.
    pub least: ArrayRef,
    /// ... and above.
    pub greatest: ArrayRef,
    /// Nulls of the block, if they are known.
    pub nulls: Option<u64>,
    /// Its rows.
    pub rows: u64,
}

impl Statistics {
    fn unknown(data_type: &DataType, rows: u64) -> Self {
        let none = new_empty_array(data_type);
        Self { least: ArrayRef::clone(&none), greatest: none, nulls: None, rows }
    }
}

impl Reader {
    /// What is known of columns (positions in the snapshot's schema) of one block. Reads the file's footer if it was
    /// not read before; folder names need none.
    ///
    /// # Errors
    /// Those of reading a footer.
    ///
    /// # Panics
    /// If the snapshot has no such block or column.
    pub async fn statistics(&self, block: usize, columns: &[usize]) -> Result<Vec<Statistics>, Error> {
        let Block { file, row_groups, rows, .. } = self.snapshot().blocks()[block].clone();
        let (snapshot, rows) = (self.snapshot(), u64::from(rows));
        let from_file = columns.iter().any(|column| snapshot.partition(file, *column).is_none());
        let footer = if from_file { Some(self.footer(file).await?) } else { None };
        let groups = row_groups.start as usize..row_groups.end as usize;
        let of = |column: &usize| {
            let field = snapshot.schema().field(*column);
            match (snapshot.partition(file, *column), &footer) {
                (Some(value), _) => of_folder(value, field.data_type(), rows),
                (None, Some((footer, target))) => {
                    let groups = footer.metadata().row_groups().get(groups.clone()).unwrap_or_default();
                    of_groups(footer, groups, field.name(), target, rows)
                        .unwrap_or_else(|| Statistics::unknown(field.data_type(), rows))
                }
                (None, None) => Statistics::unknown(field.data_type(), rows),
            }
        };
        Ok(columns.iter().map(of).collect())
    }
}

fn of_folder(value: &PartitionValue, data_type: &DataType, rows: u64) -> Statistics {
    let one = value.repeat(data_type, 1);
    let nulls = if *value == PartitionValue::Null { rows } else { 0 };
    Statistics { least: ArrayRef::clone(&one), greatest: one, nulls: Some(nulls), rows }
}

/// `None` where the footer says nothing that can be relied on.
fn of_groups(
    footer: &Footer,
    groups: &[RowGroupMetaData],
    name: &str,
    target: &Target,
    rows: u64,
) -> Option<Statistics> {
    let schema = footer.metadata().file_metadata().schema_descr();
    let leaf = footer
        .schema()
        .index_of(name)
        .ok()
        .map(|root| footer.leaves(root))
        .filter(|leaves| leaves.len() == 1)?;
    let chunks = groups.iter().map(|group| group.column(leaf.start));
    // Old writers compared bytes as signed ones.
    if chunks.clone().any(|chunk| {
        chunk.statistics().is_none_or(parquet::file::statistics::Statistics::is_min_max_deprecated)
    }) {
        return None;
    }
    let read = || -> Result<_, parquet::errors::ParquetError> {
        let converter = StatisticsConverter::try_new(name, footer.schema(), schema)?;
        let nulls: UInt64Array =
            converter.with_missing_null_counts_as_zero(false).row_group_null_counts(groups)?;
        let converter = StatisticsConverter::try_new(name, footer.schema(), schema)?;
        Ok((converter.row_group_mins(groups)?, converter.row_group_maxes(groups)?, nulls))
    };
    let (least, greatest, nulls) = guarded(&target.url, read).ok()?;
    let nulls = (nulls.null_count() == 0).then(|| nulls.values().iter().sum());
    Some(Statistics { least: concat(&[&least]).ok()?, greatest: concat(&[&greatest]).ok()?, nulls, rows })
}
