//! What a filter keeps of a block, as far as that is known without reading it.

use std::{cmp::Ordering, collections::HashSet, sync::Arc};

use arrow_array::Array;
use forebay_sql::{Bounds, Expression, ScalarValue, Verdict};
use forebay_storage::{Block, Reader, Statistics};

use crate::{Error, Flow, Pool, Priority};

/// Parts of a filter that are evaluated for a block, over all of its pieces, before it is read instead.
const MAX_EVALUATED: usize = 1 << 20;
/// Blocks whose folders are looked at by one piece of work: it takes a moment, as handing it over does.
const FOLDERS_AT_ONCE: usize = 256;

/// How many rows of each block `filter` keeps, where folder names tell of every row whether it is kept.
pub(crate) async fn kept_by_folders(
    reader: &Reader,
    (pool, flow): (&Pool, Flow),
    filter: &Arc<Expression>,
) -> Result<Vec<Option<u32>>, Error> {
    let blocks = reader.snapshot().blocks();
    let (stored, folders) = inputs(reader, filter);
    if folders.is_empty() && !stored.is_empty() {
        return Ok(vec![None; blocks.len()]);
    }
    let mut kept = Vec::with_capacity(blocks.len());
    let mut known = Vec::with_capacity(FOLDERS_AT_ONCE);
    for (block, Block { rows, .. }) in blocks.iter().enumerate() {
        let columns = named(reader, &folders, reader.statistics(block, &folders).await?);
        known.push(Known { rows: *rows, columns, absent: HashSet::new() });
        if known.len() == FOLDERS_AT_ONCE || block + 1 == blocks.len() {
            let (filter, some) = (Arc::clone(filter), std::mem::take(&mut known));
            let look = move || Ok(some.iter().map(|known| known.kept_rows(&filter)).collect::<Vec<_>>());
            kept.extend(pool.run_for(flow, Priority::Second, look).await?);
        }
    }
    Ok(kept)
}

/// How many rows of a block `filter` keeps, if row groups' statistics, else page indexes and bloom filters tell of every row
/// whether it is kept, and folder names do not.
pub(crate) async fn kept_rows(
    reader: &Reader,
    (pool, flow): (&Pool, Flow),
    filter: &Arc<Expression>,
    block: usize,
) -> Result<Option<u32>, Error> {
    let rows = reader.snapshot().blocks()[block].rows;
    let ask = async |statistics: Vec<Statistics>, absent: HashSet<(String, ScalarValue)>| {
        let columns = named(reader, filter.inputs(), statistics);
        let (filter, known) = (Arc::clone(filter), Known { rows, columns, absent });
        pool.run_for(flow, Priority::Second, move || Ok::<_, Error>(known.kept_rows(&filter))).await
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

/// The columns that a filter reads: those of the files, and those of folder names.
fn inputs(reader: &Reader, filter: &Expression) -> (Vec<usize>, Vec<usize>) {
    let snapshot = reader.snapshot();
    let first_folder = snapshot.schema().fields().len() - snapshot.partition_columns();
    filter.inputs().iter().partition(|column| **column < first_folder)
}

fn named(reader: &Reader, columns: &[usize], statistics: Vec<Statistics>) -> Vec<(String, Statistics)> {
    let name = |column: &usize| reader.snapshot().schema().field(*column).name().clone();
    columns.iter().map(name).zip(statistics).collect()
}

/// The values that a filter seeks and bloom filters say are not there.
async fn absent(
    reader: &Reader,
    filter: &Expression,
    block: usize,
) -> Result<HashSet<(String, ScalarValue)>, Error> {
    let sought = filter.sought();
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
        let held = reader.may_hold(block, *column, array).await?;
        absent.extend(values.into_iter().zip(held).filter(|(_, held)| !held).map(|(value, _)| value.clone()));
    }
    Ok(absent)
}

/// What is known of a block without reading it.
struct Known {
    rows: u32,
    columns: Vec<(String, Statistics)>,
    absent: HashSet<(String, ScalarValue)>,
}

impl Known {
    /// Pieces of different columns need not end at the same rows: between any two ends each column is in one piece.
    fn kept_rows(&self, filter: &Expression) -> Option<u32> {
        let mut ends: Vec<u32> = self.columns.iter().flat_map(|(_, known)| &known.ends).copied().collect();
        ends.push(self.rows);
        ends.sort_unstable();
        ends.dedup();
        if ends.len() > 1 && ends.len().saturating_mul(filter.parts()) > MAX_EVALUATED {
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

/// Rows of a block from `start` on, up to where the first piece of a column ends.
struct Segment<'a> {
    known: &'a Known,
    start: u32,
}

impl Segment<'_> {
    /// A column's statistics, and in which of its pieces the segment lies.
    fn piece(&self, column: &str) -> Option<(&Statistics, usize)> {
        let (_, known) = self.known.columns.iter().find(|(name, _)| name == column)?;
        let piece = known.ends.partition_point(|end| *end <= self.start);
        (piece < known.ends.len()).then_some((known, piece))
    }
}

impl Bounds for Segment<'_> {
    fn range(&self, column: &str) -> Option<(ScalarValue, ScalarValue)> {
        let (known, piece) = self.piece(column)?;
        let value = |array: &dyn Array| {
            ScalarValue::try_from_array(array, piece).ok().filter(|value| !value.is_null() && !is_nan(value))
        };
        let (least, greatest) = (value(&known.least)?, value(&known.greatest)?);
        // A writer that says otherwise is not to be relied on.
        (least.partial_cmp(&greatest)? != Ordering::Greater).then_some((least, greatest))
    }

    fn nulls(&self, column: &str) -> Option<(bool, bool)> {
        let (known, piece) = self.piece(column)?;
        let start = piece.checked_sub(1).map_or(0, |before| known.ends[before]);
        let nulls = known.nulls[piece]?;
        Some((nulls > 0, nulls < u64::from(known.ends[piece] - start)))
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
