//! Maps (epoch, step, rank) to the files, row groups and rows where a batch is stored.
//!
//! The order gives the items of each block that a batch holds. Without a filter and groups, an item is a row of its
//! block. With a filter, an item is a kept row. With groups, an item is a run of kept rows. To resolve such items, the
//! columns of the filter and the key are read again, from the blocks of the batch only.

use std::{collections::BTreeMap, sync::Arc};

use arrow_array::Array;
use forebay_plan::{Cursor, Location};
use forebay_storage::Snapshot;
use futures::{StreamExt, TryStreamExt, stream};

use crate::{
    Error, Job, Pool, Priority,
    block_reader::place_of,
    request::mixture::interleaved,
    selection::{
        counts::Counter,
        groups::{BlockRows, Runs},
    },
};

/// Number of blocks whose filter and key columns are read concurrently. The reads share the memory budget of row
/// counting.
const CONCURRENT_BLOCKS: usize = 8;

/// Storage location of a row of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StoredRow {
    /// Index of the dataset: 0 is the job's own dataset; the others of its mixture follow in order.
    pub dataset: u32,
    /// Index of the file in the snapshot.
    pub file: u32,
    /// Index of the row group in the file.
    pub row_group: u32,
    /// Index of the row in the row group.
    pub row: u32,
}

/// Row of a block, by its index among all stored rows of the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BlockRow {
    block: u32,
    row: u32,
}

/// Rows of a frame in frame order. With groups, also the start of each group and the end of the last.
struct FrameRows {
    rows: Vec<BlockRow>,
    groups: Vec<u32>,
}

impl FrameRows {
    /// Returns the rows of the given items of the block at `place`, each with its place in the batch. `wanted` holds (place, item)
    /// pairs.
    fn items(&self, place: &str, wanted: &[(u32, u32)]) -> Result<Vec<Placed>, Error> {
        let mut rows = Vec::with_capacity(wanted.len());
        for (at, item) in wanted {
            let absent = || {
                let detail = format!(
                    "no row or group {item} of those that follow from its statistics or the stored counts"
                );
                Error::contradiction(place, "", detail)
            };
            rows.extend(self.item(*item).ok_or_else(absent)?.iter().map(|row| (*at, *row)));
        }
        Ok(rows)
    }

    /// Returns the rows of an item of the block: one row, or all rows of a group.
    fn item(&self, item: u32) -> Option<&[BlockRow]> {
        let at = item as usize;
        if self.groups.is_empty() {
            return self.rows.get(at..=at);
        }
        let (start, end) = (self.groups.get(at)?, self.groups.get(at + 1)?);
        self.rows.get(*start as usize..*end as usize)
    }
}

/// Row with the place of its item in the batch. All rows of a group have the same place.
type Placed = (u32, BlockRow);

/// Rows of a batch from one dataset, as far as the order alone determines them.
#[derive(Default)]
struct Found {
    rows: Vec<Placed>,
    /// Blocks that must be read, each with its (place, item) pairs.
    pending: BTreeMap<u32, Vec<(u32, u32)>>,
}

/// Returns the storage location of each row of the batch at `cursor` of `rank`, in batch order and without padding
/// rows.
pub(crate) async fn locate(
    counter: &Counter,
    pool: &Pool,
    job: &Arc<Job>,
    cursor: Cursor,
    rank: u32,
) -> Result<Vec<StoredRow>, Error> {
    // The other datasets of a mixture repeat past the last step, so they would return rows.
    if cursor.step >= job.steps() {
        return Ok(Vec::new());
    }
    let parts: Vec<Arc<Job>> = std::iter::once(job).chain(&job.mixed).cloned().collect();
    let mut located = Vec::with_capacity(parts.len());
    for part in &parts {
        let of = Arc::clone(part);
        let Found { mut rows, pending } =
            pool.run(Priority::Interactive, move || find(&of, cursor, rank)).await?;
        let mut frames = stream::iter(pending)
            .map(|(block, wanted)| async move {
                let frame = frame_rows(counter, part, block).await?;
                let place = place_of(part.snapshot(), block);
                pool.run(Priority::Interactive, move || frame.items(&place, &wanted)).await
            })
            .buffered(CONCURRENT_BLOCKS);
        while let Some(found) = frames.try_next().await? {
            rows.extend(found);
        }
        located.push(rows);
    }
    let pattern = if parts.len() > 1 { job.pattern() } else { Vec::new() };
    let in_order = move || {
        let parts = parts.iter().zip(located).enumerate();
        let parts = parts.map(|(number, (part, mut rows))| {
            rows.sort_by_key(|(at, _)| *at);
            stored(part.snapshot(), number as u32, &rows)
        });
        Ok(interleaved(parts.collect(), &pattern))
    };
    pool.run(Priority::Interactive, in_order).await
}

/// Finds the rows of a batch that come from the dataset of `job`.
fn find(job: &Job, cursor: Cursor, rank: u32) -> Result<Found, Error> {
    let mut items: Vec<Location> = Vec::new();
    for partition in job.partitions_of(rank) {
        for (epoch, positions) in job.ranges(partition, cursor, rank) {
            job.order.epoch(partition, epoch).locate_range(positions, &mut items);
        }
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

/// Reads the filter and key columns of a block and returns the rows of its frame.
async fn frame_rows(counter: &Counter, job: &Job, block: u32) -> Result<FrameRows, Error> {
    let (mut rows, mut runs) = (Vec::new(), Runs::builder());
    for BlockRows { block, rows: range } in job.rows.of_frame(block) {
        // State: rows of the block so far, kept rows so far, rows of the frame, and runs of equal keys.
        let state = (0_u32, 0_u32, rows, runs);
        let selection = job.view().row_selection();
        let read = counter.read(job.reader(), selection, block as usize, state, move |state, chunk| {
            let (first, seen, rows, runs) = state;
            let is_kept = |at: &usize| chunk.kept.as_ref().is_none_or(|kept| kept.value(*at));
            let kept: Vec<u32> = (0..chunk.rows).filter(is_kept).map(|at| *first + at as u32).collect();
            let (start, end) = (range.start.max(*seen), range.end.min(*seen + kept.len() as u32));
            if start < end {
                let (from, len) = ((start - *seen) as usize, (end - start) as usize);
                rows.extend(kept[from..from + len].iter().map(|row| BlockRow { block, row: *row }));
                if !chunk.keys.is_empty() {
                    runs.append(&chunk.keys.iter().map(|key| key.slice(from, len)).collect::<Vec<_>>())?;
                }
            }
            *first += chunk.rows as u32;
            *seen += kept.len() as u32;
            Ok(())
        });
        (_, _, rows, runs) = read.await?;
    }
    Ok(FrameRows { rows, groups: if job.has_groups() { runs.offsets() } else { Vec::new() } })
}

/// Converts rows of blocks to rows of row groups.
fn stored(snapshot: &Snapshot, dataset: u32, rows: &[Placed]) -> Vec<StoredRow> {
    // First row of each row group of a block.
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
        // If several row groups start at the same row, all but the last are empty.
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
