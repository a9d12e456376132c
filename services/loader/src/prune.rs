//! What a filter keeps of a block, as far as that is known without reading it.

use std::{cmp::Ordering, collections::HashSet, sync::Arc};

use arrow_array::Array;
use forebay_sql::{Bounds, Expression, ScalarValue, Verdict};
use forebay_storage::{Reader, Statistics};

use crate::{Error, Flow, Pool, Priority};

/// Parts of a filter that are evaluated for a block, over all of its pieces, before it is read instead.
const MAX_EVALUATED: usize = 1 << 20;

/// How many rows of a block `filter` keeps, if folder names, else row groups' statistics, else page indexes and bloom
/// filters tell of every row whether it is kept.
pub(crate) async fn kept_rows(
    reader: &Reader,
    (pool, flow): (&Pool, Flow),
    filter: &Arc<Expression>,
    block: usize,
) -> Result<Option<u32>, Error> {
    let (snapshot, rows) = (reader.snapshot(), reader.snapshot().blocks()[block].rows);
    let folders = snapshot.schema().fields().len() - snapshot.partition_columns();
    let inputs = filter.inputs();
    let ask =
        async |columns: &[usize], statistics: Vec<Statistics>, absent: HashSet<(String, ScalarValue)>| {
            let name = |column: &usize| snapshot.schema().field(*column).name().clone();
            let columns = columns.iter().map(name).zip(statistics).collect();
            let (filter, known) = (Arc::clone(filter), Known { rows, columns, absent });
            pool.run_for(flow, Priority::Second, move || Ok::<_, Error>(known.kept_rows(&filter))).await
        };
    let (stored, folder): (Vec<usize>, Vec<usize>) = inputs.iter().partition(|column| **column < folders);
    if !folder.is_empty() || stored.is_empty() {
        let statistics = reader.statistics(block, &folder).await?;
        let kept = ask(&folder, statistics, HashSet::new()).await?;
        if kept.is_some() || stored.is_empty() {
            return Ok(kept);
        }
    }
    if let Some(kept) = ask(inputs, reader.statistics(block, inputs).await?, HashSet::new()).await? {
        return Ok(Some(kept));
    }
    let (pages, absent) = futures::try_join!(
        async { Ok(reader.page_statistics(block, inputs).await?) },
        absent(reader, filter, block)
    )?;
    ask(inputs, pages, absent).await
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
