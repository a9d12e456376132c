//! Numbers of rows that a filter keeps, computed from metadata without reading the blocks.

use std::{cmp::Ordering, collections::HashSet, sync::Arc};

use arrow_array::Array;
use forebay_sql::{Bounds, Expression, ScalarValue, Verdict};
use forebay_storage::{Block, Reader, Statistics};

use crate::{
    Error, Flow, Pool, Priority,
    cpu::off_io::{LongWork, assert_off_io_threads},
};

/// Maximum number of filter nodes evaluated per block, over all row ranges. Above this limit the block is read instead.
const MAX_EVALUATED: usize = 1 << 20;
/// Number of blocks whose partition values are evaluated in one task. Evaluating one block costs about as much as
/// submitting a task.
const BLOCKS_PER_TASK: usize = 256;

/// Returns the number of rows that `filter` keeps in each block, or `None` for blocks where Hive partition values do
/// not decide every row.
pub(crate) async fn kept_by_partitions(
    reader: &Reader,
    (pool, flow): (&Pool, Flow),
    filter: &Arc<Expression>,
) -> Result<Vec<Option<u32>>, Error> {
    let blocks = reader.snapshot().blocks();
    let (stored, partitions) = inputs(reader, filter);
    if partitions.is_empty() && !stored.is_empty() {
        return Ok(vec![None; blocks.len()]);
    }
    let mut kept = Vec::with_capacity(blocks.len());
    let mut known = Vec::with_capacity(BLOCKS_PER_TASK);
    for (block, Block { rows, .. }) in blocks.iter().enumerate() {
        let columns = named(reader, &partitions, reader.statistics(block, &partitions).await?);
        known.push(Known { rows: *rows, columns, absent: HashSet::new() });
        if known.len() == BLOCKS_PER_TASK || block + 1 == blocks.len() {
            let (filter, some) = (Arc::clone(filter), std::mem::take(&mut known));
            let look = move || Ok(some.iter().map(|known| known.kept_rows(&filter)).collect::<Vec<_>>());
            kept.extend(pool.run_for(flow, Priority::Background, look).await?);
        }
    }
    Ok(kept)
}

/// Returns the number of rows that `filter` keeps in a block. Tries row-group statistics first, then page indexes and
/// bloom filters. Returns `None` if they do not decide every row, or if the filter reads no stored columns.
pub(crate) async fn kept_rows(
    reader: &Reader,
    (pool, flow): (&Pool, Flow),
    filter: &Arc<Expression>,
    block: usize,
) -> Result<Option<u32>, Error> {
    let reader = &reader.computed_by(pool.compute(flow, Priority::Background));
    let rows = reader.snapshot().blocks()[block].rows;
    let ask = async |statistics: Vec<Statistics>, absent: HashSet<(String, ScalarValue)>| {
        let columns = named(reader, filter.inputs(), statistics);
        let (filter, known) = (Arc::clone(filter), Known { rows, columns, absent });
        pool.run_for(flow, Priority::Background, move || Ok::<_, Error>(known.kept_rows(&filter))).await
    };
    let (stored, _) = inputs(reader, filter);
    if stored.is_empty() {
        return Ok(None);
    }
    if let Some(kept) = ask(reader.statistics(block, filter.inputs()).await?, HashSet::new()).await? {
        return Ok(Some(kept));
    }
    let (pages, absent) = futures::try_join!(
        async { Ok(reader.page_statistics(block, filter.inputs()).await?) },
        absent(reader, filter, block)
    )?;
    ask(pages, absent).await
}

/// Splits the columns that a filter reads into columns stored in files and partition columns.
fn inputs(reader: &Reader, filter: &Expression) -> (Vec<usize>, Vec<usize>) {
    let snapshot = reader.snapshot();
    let first_partition = snapshot.schema().fields().len() - snapshot.partition_columns();
    filter.inputs().iter().partition(|column| **column < first_partition)
}

fn named(reader: &Reader, columns: &[usize], statistics: Vec<Statistics>) -> Vec<(String, Statistics)> {
    let name = |column: &usize| reader.snapshot().schema().field(*column).name().clone();
    columns.iter().map(name).zip(statistics).collect()
}

/// Returns the equality constants of a filter that bloom filters rule out for the block.
async fn absent(
    reader: &Reader,
    filter: &Expression,
    block: usize,
) -> Result<HashSet<(String, ScalarValue)>, Error> {
    let sought = filter.equality_constants();
    let mut absent = HashSet::new();
    for column in filter.inputs() {
        let field = reader.snapshot().schema().field(*column);
        let of_it = |(name, value): &&(String, ScalarValue)| {
            name == field.name() && value.data_type() == *field.data_type()
        };
        let values: Vec<_> = sought.iter().filter(of_it).collect();
        if values.is_empty() {
            continue;
        }
        let array = ScalarValue::iter_to_array(values.iter().map(|(_, value)| value.clone()));
        let array = array.map_err(|error| Error::Internal(error.to_string()))?;
        let held = reader.may_contain(block, *column, array).await?;
        absent.extend(values.into_iter().zip(held).filter(|(_, held)| !held).map(|(value, _)| value.clone()));
    }
    Ok(absent)
}

/// Metadata of a block, available without reading the block.
struct Known {
    rows: u32,
    columns: Vec<(String, Statistics)>,
    absent: HashSet<(String, ScalarValue)>,
}

impl Known {
    /// Number of rows that `filter` keeps, or `None` if the statistics do not decide every row. The row ranges of
    /// different columns may have different ends. Between two consecutive ends, each column is in a single range.
    fn kept_rows(&self, filter: &Expression) -> Option<u32> {
        assert_off_io_threads(LongWork::Metadata);
        let mut ends: Vec<u32> = self.columns.iter().flat_map(|(_, known)| &known.ends).copied().collect();
        ends.push(self.rows);
        ends.sort_unstable();
        ends.dedup();
        if ends.len() > 1 && ends.len().saturating_mul(filter.nodes()) > MAX_EVALUATED {
            return None;
        }
        let (mut kept, mut start) = (0, 0);
        for end in ends {
            match filter.verdict(&Segment { known: self, start }) {
                Verdict::None => {}
                Verdict::All => kept += end - start,
                Verdict::Unknown if start == end => {}
                Verdict::Unknown => return None,
            }
            start = end;
        }
        Some(kept)
    }
}

/// Rows of a block from `start` to the next end of a statistics range of any column.
struct Segment<'a> {
    known: &'a Known,
    start: u32,
}

impl Segment<'_> {
    /// Returns the statistics of a column and the index of the range that holds the segment.
    fn statistics(&self, column: &str) -> Option<(&Statistics, usize)> {
        let (_, known) = self.known.columns.iter().find(|(name, _)| name == column)?;
        let range = known.ends.partition_point(|end| *end <= self.start);
        (range < known.ends.len()).then_some((known, range))
    }
}

impl Bounds for Segment<'_> {
    fn range(&self, column: &str) -> Option<(ScalarValue, ScalarValue)> {
        let (known, range) = self.statistics(column)?;
        let value = |array: &dyn Array| {
            ScalarValue::try_from_array(array, range).ok().filter(|value| !value.is_null() && !is_nan(value))
        };
        let (least, greatest) = (value(&known.min)?, value(&known.max)?);
        // A minimum above the maximum is a writer error, so these statistics are ignored.
        (least.partial_cmp(&greatest)? != Ordering::Greater).then_some((least, greatest))
    }

    fn nulls(&self, column: &str) -> Option<(bool, bool)> {
        let (known, range) = self.statistics(column)?;
        let start = range.checked_sub(1).map_or(0, |before| known.ends[before]);
        let nulls = known.null_counts[range]?;
        Some((nulls > 0, nulls < u64::from(known.ends[range] - start)))
    }

    fn may_hold(&self, column: &str, value: &ScalarValue) -> bool {
        !self.known.absent.contains(&(column.to_owned(), value.clone()))
    }
}

fn is_nan(value: &ScalarValue) -> bool {
    match value {
        ScalarValue::Float64(Some(value)) => value.is_nan(),
        ScalarValue::Float32(Some(value)) => value.is_nan(),
        ScalarValue::Float16(Some(value)) => value.is_nan(),
        _ => false,
    }
}
