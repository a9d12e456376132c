//! How many rows of each block a filter keeps: what the order needs to know before it can say where a row is.
//!
//! Counted once for a snapshot and a filter, and kept beside the snapshot's manifest, for every server and for ever. Folder
//! names and footers answer for most blocks of data that lies in order; the others are read, the filter's columns alone.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use arrow_array::Array;
use forebay_proto::v1;
use forebay_sql::{Bounds, Expression, ScalarValue, Verdict};
use forebay_storage::{Reader, Snapshot, Statistics};
use futures::{StreamExt, TryStreamExt, stream};
use tokio::sync::{OnceCell, Semaphore};

use crate::{
    Config, Error, Pool, Priority,
    compute::{compute, reads},
    view::{Source, filter},
    window::place_of,
};

/// Counts of so many filters are kept in memory.
const MAX_REMEMBERED: usize = 256;

/// How many rows of each block of a snapshot a filter keeps.
#[derive(Debug)]
pub struct Kept {
    snapshot: String,
    filter: u128,
    counts: Arc<[u32]>,
}

/// How far counting has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    /// Blocks of the snapshot.
    pub blocks: u64,
    /// Blocks that are counted.
    pub blocks_done: u64,
    /// Of these, blocks that had to be read.
    pub blocks_read: u64,
    /// Rows of the blocks that are counted.
    pub rows: u64,
    /// Of these, rows that are kept.
    pub rows_kept: u64,
}

impl Kept {
    /// Rows that are kept, block by block.
    pub fn counts(&self) -> &Arc<[u32]> {
        &self.counts
    }

    /// Whether these are the counts of this filter over this snapshot.
    pub(crate) fn is_of(&self, snapshot: &Snapshot, filter: &Expression) -> bool {
        self.snapshot == snapshot.id() && self.filter == filter.identity()
    }
}

/// Counts rows, each filter once.
pub(crate) struct KeptRows {
    config: Config,
    pool: Pool,
    /// Permits of 1 KiB for blocks that are being read.
    reading: Semaphore,
    read_bytes: u64,
    known: Mutex<HashMap<Key, Arc<Counting>>>,
}

/// A dataset, its snapshot and a filter.
type Key = (String, String, u128);

/// The counts of one filter, and what is known of them meanwhile: who gives up leaves it to the next.
#[derive(Default)]
struct Counting {
    done: OnceCell<Arc<Kept>>,
    /// Of each block that is counted, its kept rows, and whether it had to be read.
    blocks: Mutex<HashMap<usize, (u32, bool)>>,
}

impl Counting {
    fn counted(&self, block: usize) -> Option<(u32, bool)> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner).get(&block).copied()
    }

    fn note(&self, block: usize, count: (u32, bool)) {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner).insert(block, count);
    }
}

impl KeptRows {
    pub(crate) fn new(memory_bytes: u64, config: Config, pool: Pool) -> Self {
        let read_bytes = config.decode_bytes(memory_bytes).max(1024);
        let permits = usize::try_from(read_bytes / 1024).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Self { config, pool, reading: Semaphore::new(permits), read_bytes, known: Mutex::default() }
    }

    /// The counts for the filter of `train`; `None` if it has none. Who asks meanwhile waits for the first.
    pub(crate) async fn of(
        &self,
        train: &v1::Train,
        reader: &Reader,
        progress: impl Fn(Counted) + Send + Sync,
    ) -> Result<Option<Arc<Kept>>, Error> {
        if train.filter.is_empty() {
            return Ok(None);
        }
        let (snapshot, text) = (Arc::clone(reader.snapshot()), train.filter.clone());
        let compiled = self.pool.run(Priority::First, move || filter(&snapshot, &text)).await?;
        let Some(filter) = compiled else { return Ok(None) };
        let cell = self.cell((train.dataset.clone(), reader.snapshot().id().to_owned(), filter.identity()));
        let count = || self.find_or_count(&train.dataset, reader, &filter, &cell, &progress);
        let counted = cell.done.get_or_try_init(count);
        counted.await.map(|kept| Some(Arc::clone(kept)))
    }

    fn cell(&self, key: Key) -> Arc<Counting> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_REMEMBERED && !known.contains_key(&key) {
            // What is being counted stays; the others are found in the state again.
            known.retain(|_, counting| Arc::strong_count(counting) > 1);
        }
        Arc::clone(known.entry(key).or_default())
    }

    async fn find_or_count(
        &self,
        dataset: &str,
        reader: &Reader,
        filter: &Arc<Expression>,
        counting: &Counting,
        progress: &(impl Fn(Counted) + Send + Sync),
    ) -> Result<Arc<Kept>, Error> {
        let (snapshot, identity) = (reader.snapshot(), filter.identity());
        let kept = |counts: Vec<u32>| {
            let counts = counts.into();
            Arc::new(Kept { snapshot: snapshot.id().to_owned(), filter: identity, counts })
        };
        if let Some(counts) = reader.state().find_kept(dataset, snapshot, identity).await?
            && counts.iter().zip(snapshot.blocks()).all(|(count, block)| *count <= block.rows)
        {
            return Ok(kept(counts));
        }
        let counts = self.count(reader, filter, counting, progress).await?;
        if let Err(error) = reader.state().keep_kept(dataset, snapshot, identity, &counts).await {
            tracing::warn!(%error, dataset, "the rows that a filter keeps are counted again after a restart");
        }
        Ok(kept(counts))
    }

    async fn count(
        &self,
        reader: &Reader,
        filter: &Arc<Expression>,
        counting: &Counting,
        progress: &(impl Fn(Counted) + Send + Sync),
    ) -> Result<Vec<u32>, Error> {
        let blocks = reader.snapshot().blocks();
        let mut done = Counted { blocks: blocks.len() as u64, ..Counted::default() };
        let mut counts = Vec::with_capacity(blocks.len());
        let mut each = stream::iter(0..blocks.len())
            .map(|block| async move {
                if let Some(known) = counting.counted(block) {
                    return Ok(known);
                }
                let count = self.block(reader, filter, block).await?;
                counting.note(block, count);
                Ok::<_, Error>(count)
            })
            .buffered(self.config.concurrent_blocks.max(1));
        while let Some((count, was_read)) = each.try_next().await? {
            done.rows += u64::from(blocks[counts.len()].rows);
            done.blocks_done += 1;
            done.blocks_read += u64::from(was_read);
            done.rows_kept += u64::from(count);
            counts.push(count);
            progress(done);
        }
        *counting.blocks.lock().unwrap_or_else(PoisonError::into_inner) = HashMap::new();
        tracing::info!(
            rows = done.rows,
            rows_kept = done.rows_kept,
            blocks = done.blocks,
            blocks_read = done.blocks_read,
            "counted the rows that a filter keeps"
        );
        Ok(counts)
    }

    /// Rows of one block that are kept, and whether it had to be read.
    async fn block(
        &self,
        reader: &Reader,
        filter: &Arc<Expression>,
        block: usize,
    ) -> Result<(u32, bool), Error> {
        let snapshot = reader.snapshot();
        let rows = snapshot.blocks()[block].rows;
        let folders = snapshot.schema().fields().len() - snapshot.partition_columns();
        let (stored, folder): (Vec<usize>, Vec<usize>) =
            filter.inputs().iter().partition(|column| **column < folders);
        // Folder names first: they need no footer.
        for columns in [folder, filter.inputs().to_vec()] {
            if columns.is_empty() {
                continue;
            }
            let known = Known::of(reader, block, &columns).await?;
            match filter.verdict(&known) {
                Verdict::None => return Ok((0, false)),
                Verdict::All => return Ok((rows, false)),
                Verdict::Unknown if stored.is_empty() => break,
                Verdict::Unknown => {}
            }
        }
        let columns = [Source::Computed(Arc::clone(filter))];
        let read = reads(&columns);
        let bytes = read.iter().map(|column| snapshot.column_bytes(block, *column)).sum::<u64>();
        let permits = (bytes.saturating_mul(2) / 1024).clamp(1, self.read_bytes / 1024);
        let permits = u32::try_from(permits).unwrap_or(u32::MAX);
        let closed = |_| Error::Internal("the semaphore of reads is closed".into());
        let _permit = self.reading.acquire_many(permits).await.map_err(closed)?;
        let encoded = reader.fetch(block, &read).await?;
        let (decode_rows, place) = (self.config.decode_rows, place_of(snapshot, block as u32));
        let count = self.pool.run(Priority::Second, move || {
            let mut count = 0;
            for chunk in encoded.decode(decode_rows) {
                let kept = compute(&columns, &read, &chunk?, &place)?;
                let kept = arrow_array::cast::AsArray::as_boolean(&kept[0]);
                count += kept.iter().filter(|kept| *kept == Some(true)).count() as u32;
            }
            Ok(count)
        });
        Ok((count.await?, true))
    }
}

/// What is known of a block without reading it.
struct Known(HashMap<String, Statistics>);

impl Known {
    async fn of(reader: &Reader, block: usize, columns: &[usize]) -> Result<Self, Error> {
        let found = reader.statistics(block, columns).await?;
        let names = columns.iter().map(|column| reader.snapshot().schema().field(*column).name().clone());
        Ok(Self(names.zip(found).collect()))
    }
}

impl Bounds for Known {
    fn range(&self, column: &str) -> Option<(ScalarValue, ScalarValue)> {
        let known = self.0.get(column)?;
        let values = |array: &dyn Array| -> Option<Vec<ScalarValue>> {
            let values = (0..array.len()).map(|row| ScalarValue::try_from_array(array, row).ok());
            values.map(|value| value.filter(|value| !value.is_null() && !is_nan(value))).collect()
        };
        let pick = |values: Vec<ScalarValue>, wanted: std::cmp::Ordering| {
            let pick =
                |a: ScalarValue, b: ScalarValue| Some(if b.partial_cmp(&a)? == wanted { b } else { a });
            let mut values = values.into_iter();
            let first = values.next()?;
            values.try_fold(first, pick)
        };
        let least = pick(values(&known.least)?, std::cmp::Ordering::Less)?;
        let greatest = pick(values(&known.greatest)?, std::cmp::Ordering::Greater)?;
        Some((least, greatest))
    }

    fn nulls(&self, column: &str) -> Option<(bool, bool)> {
        let Statistics { nulls, rows, .. } = self.0.get(column)?;
        nulls.map(|nulls| (nulls > 0, nulls < *rows))
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
