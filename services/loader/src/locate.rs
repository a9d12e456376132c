//! Where the rows of a batch are stored: from (epoch, step, rank) to files, row groups and rows.
//!
//! The order says which items of which blocks a batch holds. Without a filter and groups an item is a row of its block.
//! With a filter it is one of the rows that are kept, and with groups a run of these; which they are is read again, of the blocks
//! that the batch takes something from, the columns of filter and key alone.

use std::{collections::BTreeMap, sync::Arc};

use arrow_array::Array;
use forebay_plan::{Cursor, Location};
use forebay_storage::Snapshot;
use futures::{StreamExt, TryStreamExt, stream};

use crate::{
    Error, Job, Pool, Priority,
    counts::Counter,
    groups::{Piece, Runs},
    producer::interleaved,
};

/// Blocks of which filter and key are read at the same time; they share the memory of counting.
const CONCURRENT_BLOCKS: usize = 8;

/// Where a row of a batch is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StoredRow {
    /// Which dataset: 0 is the job's own, and then those of its mixture.
    pub dataset: u32,
    /// Index of the file in the snapshot.
    pub file: u32,
    /// Row group, as the file numbers them.
    pub row_group: u32,
    /// Row of the row group.
    pub row: u32,
}

/// A row by its number among the stored rows of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BlockRow {
    block: u32,
    row: u32,
}

/// The rows of a frame, in its order, and with groups where each begins and last where all end.
struct FrameRows {
    rows: Vec<BlockRow>,
    groups: Vec<u32>,
}

impl FrameRows {
    /// The rows of these items of `block`, with their places.
    fn items(&self, block: u32, wanted: &[(u32, u32)]) -> Result<Vec<Placed>, Error> {
        let mut rows = Vec::with_capacity(wanted.len());
        for (at, item) in wanted {
            let absent =
                || Error::Internal(format!("block {block} has no item {item}, though it was counted"));
            rows.extend(self.item(*item).ok_or_else(absent)?.iter().map(|row| (*at, *row)));
        }
        Ok(rows)
    }

    /// The rows of an item of the block: one, or those of a group.
    fn item(&self, item: u32) -> Option<&[BlockRow]> {
        let at = item as usize;
        if self.groups.is_empty() {
            return self.rows.get(at..=at);
        }
        let (start, end) = (self.groups.get(at)?, self.groups.get(at + 1)?);
        self.rows.get(*start as usize..*end as usize)
    }
}

/// A row with its place among the items of a batch, of which a group has several.
type Placed = (u32, BlockRow);

/// What a batch holds of one dataset, as far as the order alone tells.
#[derive(Default)]
struct Found {
    rows: Vec<Placed>,
    /// Of blocks that have to be read: places and items.
    pending: BTreeMap<u32, Vec<(u32, u32)>>,
}

/// Where the rows of the batch at `cursor` of `rank` are stored, in the batch's order, without those that pad it.
pub(crate) async fn locate(
    counter: &Counter,
    pool: &Pool,
    job: &Arc<Job>,
    cursor: Cursor,
    rank: u32,
) -> Result<Vec<StoredRow>, Error> {
    // The others of a mixture would go on.
    if cursor.step >= job.steps() {
        return Ok(Vec::new());
    }
    let parts: Vec<Arc<Job>> = std::iter::once(job).chain(job.mixed()).cloned().collect();
    let mut located = Vec::with_capacity(parts.len());
    for part in &parts {
        let of = Arc::clone(part);
        let Found { mut rows, pending } = pool.run(Priority::First, move || find(&of, cursor, rank)).await?;
        let mut frames = stream::iter(pending)
            .map(|(block, wanted)| async move {
                let frame = frame_rows(counter, part, block).await?;
                pool.run(Priority::First, move || frame.items(block, &wanted)).await
            })
            .buffered(CONCURRENT_BLOCKS);
        while let Some(found) = frames.try_next().await? {
            rows.extend(found);
        }
        located.push(rows);
    }
    let round = if parts.len() > 1 { job.round() } else { Vec::new() };
    let in_order = move || {
        let parts = parts.iter().zip(located).enumerate();
        let parts = parts.map(|(number, (part, mut rows))| {
            rows.sort_by_key(|(at, _)| *at);
            stored(part.snapshot(), number as u32, &rows)
        });
        Ok(interleaved(parts.collect(), &round))
    };
    pool.run(Priority::First, in_order).await
}

/// What the batch holds of one dataset.
fn find(job: &Job, cursor: Cursor, rank: u32) -> Result<Found, Error> {
    let mut items: Vec<Location> = Vec::new();
    for (epoch, positions) in job.ranges(cursor, rank) {
        job.order(epoch).locate_range(positions, &mut items);
    }
    let mut found = Found::default();
    for (at, Location { block, item }) in items.into_iter().enumerate() {
        if job.has_groups() || !job.keeps_all(block) {
            found.pending.entry(block).or_default().push((at as u32, item));
        } else {
            found.rows.push((at as u32, BlockRow { block, row: item }));
        }
    }
    Ok(found)
}

/// The rows that make up the frame of a block, whose filter and key are read.
async fn frame_rows(counter: &Counter, job: &Job, block: u32) -> Result<FrameRows, Error> {
    let (mut rows, mut runs) = (Vec::new(), Runs::builder());
    for Piece { block, rows: range } in job.pieces(block) {
        // Rows of the block, rows that are kept, the runs of their keys.
        let state = (0_u32, 0_u32, rows, runs);
        let question = job.view().question();
        let read = counter.read(job.reader(), question, block as usize, state, move |state, asked| {
            let (first, seen, rows, runs) = state;
            let is_kept = |at: &usize| asked.kept.as_ref().is_none_or(|kept| kept.value(*at));
            let kept: Vec<u32> = (0..asked.rows).filter(is_kept).map(|at| *first + at as u32).collect();
            let (start, end) = (range.start.max(*seen), range.end.min(*seen + kept.len() as u32));
            if start < end {
                let (from, len) = ((start - *seen) as usize, (end - start) as usize);
                rows.extend(kept[from..from + len].iter().map(|row| BlockRow { block, row: *row }));
                if !asked.keys.is_empty() {
                    runs.append(&asked.keys.iter().map(|key| key.slice(from, len)).collect::<Vec<_>>())?;
                }
            }
            *first += asked.rows as u32;
            *seen += kept.len() as u32;
            Ok(())
        });
        (_, _, rows, runs) = read.await?;
    }
    Ok(FrameRows { rows, groups: if job.has_groups() { runs.offsets() } else { Vec::new() } })
}

/// From rows of blocks to rows of row groups.
fn stored(snapshot: &Snapshot, dataset: u32, rows: &[Placed]) -> Vec<StoredRow> {
    // Where each row group of a block begins.
    let mut starts: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let starts_of = |number: u32| {
        let block = &snapshot.blocks()[number as usize];
        let groups = &snapshot.files()[block.file as usize].row_groups;
        let groups = &groups[block.row_groups.start as usize..block.row_groups.end as usize];
        let start = |end: &mut u32, rows: u32| {
            *end += rows;
            Some(*end - rows)
        };
        groups.iter().map(|group| group.rows).scan(0, start).collect()
    };
    let place = |(_, row): &Placed| {
        let block = &snapshot.blocks()[row.block as usize];
        let starts: &Vec<u32> = starts.entry(row.block).or_insert_with(|| starts_of(row.block));
        // Of row groups that begin at one row the last one has it: those before are empty.
        let group = starts.partition_point(|start| *start <= row.row) - 1;
        StoredRow {
            dataset,
            file: block.file,
            row_group: block.row_groups.start + group as u32,
            row: row.row - starts[group],
        }
    };
    rows.iter().map(place).collect()
}
