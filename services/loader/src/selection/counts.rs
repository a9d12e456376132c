//! Counts of the rows of each block that a filter keeps, and of the groups that begin in it. The order of an epoch
//! depends on them. For lookups, this module also computes which rows a filter keeps.
//!
//! Rows are counted once per snapshot, filter and key. The counts are stored permanently next to the snapshot's
//! manifest, for all servers. For sorted data, partition values and statistics answer the filter for most blocks. Of
//! the other blocks, only the columns of the filter and the keys are read.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use arrow_array::{ArrayRef, BooleanArray};
use arrow_buffer::{BooleanBuffer, BooleanBufferBuilder};
use forebay_proto::v1;
use forebay_sql::{Identity, SEMANTICS};
use forebay_storage::{Reader, Snapshot};
use futures::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore, watch};

use crate::{
    Config, Error, Flow, Pool, Priority,
    activity::Purpose,
    block_reader::{BlockColumns, BlockReader, Chunks, place_of},
    cpu::turns::TurnClock,
    selection::{
        groups::{Groups, Runs},
        prune::{kept_by_partitions, kept_rows},
    },
    view::{
        compute, expressions::Expressions, kept, only, resolve_row_selection, row_selection::RowSelection,
        source::Reads,
    },
};

/// Time that a request waits until its counts are stored. They are stored later if that takes longer.
const SAVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time within which stored counts have to be read. Counting reads the columns of the filter and the key, which usually takes longer.
const LOAD_TIMEOUT: Duration = Duration::from_secs(60);
/// Number of filters and keys with counts in memory above which unused ones are evicted.
const MAX_CACHED: usize = 256;
/// Size of the counts in memory above which unused ones are evicted, in bytes.
const MAX_CACHED_BYTES: usize = 64 << 20;
/// Size of the length of a group in memory, in bytes.
const LENGTH_BYTES: u64 = size_of::<u32>() as u64;

/// Some rows of a block, with the computed filter and keys.
pub(crate) struct SelectedRows {
    /// Number of rows.
    pub(crate) rows: usize,
    /// Rows that the filter keeps, without nulls; `None` without a filter.
    pub(crate) kept: Option<BooleanArray>,
    /// Keys of the kept rows.
    pub(crate) keys: Vec<ArrayRef>,
}

/// Number of rows and groups of each block of a snapshot for a request.
#[derive(Debug)]
pub struct Counts {
    snapshot: String,
    identity: u128,
    counted: Arc<Blocks>,
}

/// Stored form of [`Counts`].
#[derive(Debug, Serialize, Deserialize)]
struct Blocks {
    rows: Arc<[u32]>,
    groups: Option<Groups>,
}

impl Blocks {
    /// True if the counts are consistent with `snapshot`, and include the lengths of groups if `lengths` is set.
    fn fits(&self, snapshot: &Snapshot, lengths: bool) -> bool {
        let blocks = snapshot.blocks();
        let is_whole = |groups: &Groups| !lengths || groups.lengths.is_some() || groups.count() == 0;
        self.rows.len() == blocks.len()
            && self.rows.iter().zip(blocks).all(|(count, block)| *count <= block.rows)
            && self.groups.as_ref().is_none_or(|groups| groups.fit(&self.rows) && is_whole(groups))
    }
}

/// Progress of counting the kept rows and the groups of a snapshot's blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CountProgress {
    /// Number of blocks of the snapshot.
    pub blocks: u64,
    /// Number of blocks counted.
    pub blocks_done: u64,
    /// Number of counted blocks that were read.
    pub blocks_read: u64,
    /// Number of rows of the counted blocks.
    pub rows: u64,
    /// Number of rows of the counted blocks that the filter keeps.
    pub rows_kept: u64,
}

impl Counts {
    /// Number of kept rows of each block.
    pub fn rows(&self) -> &Arc<[u32]> {
        &self.counted.rows
    }

    /// Groups, if the request has a key.
    pub(crate) fn groups(&self) -> Option<&Groups> {
        self.counted.groups.as_ref()
    }

    /// True if these counts are for this selection and snapshot.
    pub(crate) fn are_of(&self, snapshot: &Snapshot, selection: &RowSelection) -> bool {
        self.snapshot == snapshot.id() && Some(self.identity) == selection.identity(snapshot)
    }
}

/// Counts rows and groups, once per snapshot, filter and key.
pub(crate) struct Counter {
    config: Config,
    blocks: BlockReader,
    pool: Pool,
    flow: Flow,
    /// Permits for group lengths in memory, one per group.
    lengths: Arc<Semaphore>,
    known: Mutex<HashMap<Key, Arc<CountEntry>>>,
}

/// Dataset, snapshot and name under which the counts of a selection are stored.
type Key = (String, String, u128);

/// Names of the counts of one selection.
#[derive(Clone, Copy)]
struct Names {
    /// Identity of the selection.
    identity: u128,
    stored: u128,
}

/// Returns the name under which counts are kept and stored. A hash of the inodes and change times of local files, `pins`, is a part of it. After
/// a file was replaced by one of equal size and modification time, which does not change the snapshot, its rows are therefore counted again.
fn stored_name(identity: u128, pins: Option<u64>) -> u128 {
    match pins {
        Some(pins) => Identity::new("counts of pinned files", SEMANTICS).part(identity).number(pins).hash(),
        None => identity,
    }
}

/// Counts for one selection, and the blocks counted so far. If a request is cancelled, the next one continues from them.
#[derive(Default)]
struct CountEntry {
    done: OnceCell<Arc<Counts>>,
    blocks: Mutex<HashMap<usize, Block>>,
    /// Progress of the request that counts, for those that wait for it.
    progress: watch::Sender<CountProgress>,
}

/// Counts of one block.
struct Block {
    rows: u32,
    was_read: bool,
    runs: Option<Runs>,
}

impl CountEntry {
    /// Returns the number of kept rows of a counted block, and whether it was read. Returns `None` if the block is not
    /// counted yet.
    fn counted(&self, block: usize) -> Option<(u32, bool)> {
        let blocks = self.blocks.lock();
        blocks.get(&block).map(|block| (block.rows, block.was_read))
    }

    /// Removes and returns the counts of all blocks.
    fn take(&self) -> HashMap<usize, Block> {
        std::mem::take(&mut *self.blocks.lock())
    }

    fn note(&self, block: usize, counted: Block) {
        self.blocks.lock().insert(block, counted);
    }

    /// Size in bytes, without the lengths of groups, which have a limit of their own.
    fn bytes(&self) -> usize {
        let done = self.done.get().map_or(0, |counts| {
            let groups = counts.groups().map_or(0, |groups| groups.begun.len());
            (counts.rows().len() + 2 * groups) * size_of::<u32>()
        });
        done + self.blocks.lock().capacity() * size_of::<(usize, Block)>()
    }

    /// True if a request counts or waits for the counts, or a job uses the lengths of the groups.
    fn is_used(self: &Arc<Self>) -> bool {
        let lengths = self.done.get().and_then(|counts| counts.groups()?.lengths.as_ref());
        Arc::strong_count(self) > 1 || lengths.is_some_and(|lengths| Arc::strong_count(lengths) > 1)
    }
}

impl Counter {
    pub(crate) fn new(config: Config, blocks: BlockReader) -> Self {
        let packed = usize::try_from(config.max_packed_groups).unwrap_or(usize::MAX);
        Self {
            config,
            pool: blocks.pool().clone(),
            blocks,
            flow: Flow::new(),
            lengths: Arc::new(Semaphore::new(packed.min(Semaphore::MAX_PERMITS))),
            known: Mutex::default(),
        }
    }

    /// Returns the counts for `train`, whose expressions are `compiled`, or `None` if it has neither a filter nor a key.
    /// Concurrent requests for the same counts share one computation, and its progress.
    pub(crate) async fn of(
        &self,
        train: &v1::Train,
        reader: &Reader,
        compiled: &Arc<Expressions>,
        progress: impl Fn(CountProgress) + Send + Sync,
    ) -> Result<Option<Arc<Counts>>, Error> {
        if train.filter.is_empty() && train.group_by.is_empty() {
            return Ok(None);
        }
        let selection = self.selection(train, reader, compiled).await?;
        let Some(identity) = selection.identity(reader.snapshot()) else { return Ok(None) };
        let names = Names { identity, stored: stored_name(identity, reader.pins()) };
        let cell = self.cell((train.dataset.clone(), reader.snapshot().id().to_owned(), names.stored));
        let counts_itself = AtomicBool::new(false);
        let own_progress = |done| {
            cell.progress.send_replace(done);
            progress(done);
        };
        let count = || {
            counts_itself.store(true, Ordering::Relaxed);
            self.find_or_count(&train.dataset, reader, &selection, names, &cell, &own_progress)
        };
        let mut of_another = cell.progress.subscribe();
        let observe = async {
            // The sender is in `cell`.
            while of_another.changed().await.is_ok() {
                if !counts_itself.load(Ordering::Relaxed) {
                    progress(*of_another.borrow_and_update());
                }
            }
        };
        tokio::select! {
            biased;
            counted = cell.done.get_or_try_init(count) => counted.map(|counts| Some(Arc::clone(counts))),
            () = observe => Err(Error::Internal("the progress of counting has no sender".into())),
        }
    }

    async fn selection(
        &self,
        train: &v1::Train,
        reader: &Reader,
        compiled: &Arc<Expressions>,
    ) -> Result<Arc<RowSelection>, Error> {
        let (snapshot, train, compiled) =
            (Arc::clone(reader.snapshot()), train.clone(), Arc::clone(compiled));
        let resolve = move || resolve_row_selection(&snapshot, &train, &compiled).map(Arc::new);
        self.pool.run(Priority::Interactive, resolve).await
    }

    /// Returns for each block a bitmap of the rows that the filter of `train` keeps, or `None` without a filter.
    pub(crate) async fn kept(
        &self,
        train: &v1::Train,
        reader: &Reader,
        compiled: &Arc<Expressions>,
    ) -> Result<Option<Vec<BooleanBuffer>>, Error> {
        let selection = self.selection(train, reader, compiled).await?;
        let Some(filter) = &selection.filter else { return Ok(None) };
        let by_partitions = kept_by_partitions(reader, (&self.pool, self.flow), filter).await?;
        let each = stream::iter(by_partitions.into_iter().enumerate())
            .map(|(block, kept)| self.kept_of(reader, &selection, block, kept))
            .buffered(self.config.concurrent_blocks.max(1));
        each.try_collect().await.map(Some)
    }

    /// Returns the bitmap of one block. `kept` is the number of kept rows if it is known.
    async fn kept_of(
        &self,
        reader: &Reader,
        selection: &RowSelection,
        block: usize,
        mut kept: Option<u32>,
    ) -> Result<BooleanBuffer, Error> {
        let rows = reader.snapshot().blocks()[block].rows;
        if let (None, Some(filter)) = (kept, &selection.filter) {
            kept = kept_rows(reader, (&self.pool, self.flow), filter, block).await?;
        }
        match kept {
            Some(0) => return Ok(BooleanBuffer::new_unset(rows as usize)),
            Some(kept) if kept == rows => return Ok(BooleanBuffer::new_set(rows as usize)),
            _ => {}
        }
        let bits = BooleanBufferBuilder::new(rows as usize);
        let read = self.read(reader, selection.clone(), block, bits, |bits, chunk| {
            match &chunk.kept {
                Some(kept) => bits.append_buffer(kept.values()),
                None => bits.append_n(chunk.rows, true),
            }
            Ok(())
        });
        read.await.map(BooleanBufferBuilder::build)
    }

    fn cell(&self, key: Key) -> Arc<CountEntry> {
        let mut known = self.known.lock();
        if !known.contains_key(&key) {
            let bytes: usize = known.values().map(|entry| entry.bytes()).sum();
            if known.len() >= MAX_CACHED || bytes > MAX_CACHED_BYTES {
                evict_unused(&mut known);
            }
        }
        Arc::clone(known.entry(key).or_default())
    }

    /// Reserves memory for the lengths of `groups` groups. Dropping the permit releases it.
    ///
    /// # Errors
    /// [`Error::TooLarge`] if `max_packed_groups` would be exceeded.
    fn reserve_lengths(&self, groups: usize) -> Result<OwnedSemaphorePermit, Error> {
        let limit = self.config.max_packed_groups;
        let too_many = || {
            let taken = limit.saturating_sub(self.lengths.available_permits() as u64);
            Error::TooLarge {
                what: "keeping the lengths of packed groups, over all filters and keys in use,".into(),
                needed: (taken + groups as u64).saturating_mul(LENGTH_BYTES),
                limit: limit.saturating_mul(LENGTH_BYTES),
                advice:
                    "exclude rows by a filter, group without max_pack_rows or raise loader.max_packed_groups"
                        .into(),
            }
        };
        let wanted = u32::try_from(groups).map_err(|_| too_many())?;
        let reserve = || Arc::clone(&self.lengths).try_acquire_many_owned(wanted);
        reserve().or_else(|_| {
            evict_unused(&mut self.known.lock());
            reserve().map_err(|_| too_many())
        })
    }

    async fn find_or_count(
        &self,
        dataset: &str,
        reader: &Reader,
        selection: &Arc<RowSelection>,
        Names { identity, stored }: Names,
        entry: &CountEntry,
        progress: &(impl Fn(CountProgress) + Send + Sync),
    ) -> Result<Arc<Counts>, Error> {
        let snapshot = reader.snapshot();
        let counts =
            |counted: Arc<Blocks>| Arc::new(Counts { snapshot: snapshot.id().to_owned(), identity, counted });
        if let Some(found) = load(reader, dataset, stored).await? {
            let (of, lengths) = (Arc::clone(snapshot), selection.lengths);
            let fitting = move || Ok(found.fits(&of, lengths).then_some(found));
            if let Some(found) = self.pool.run_for(self.flow, Priority::Background, fitting).await? {
                return Ok(counts(Arc::new(self.with_permit(found)?)));
            }
        }
        let counted = self.count(reader, selection, entry, progress).await.inspect_err(|error| {
            // The partial counts would otherwise be kept in memory for the next request.
            if matches!(error, Error::TooLarge { .. }) {
                drop(entry.take());
            }
        })?;
        let counted = Arc::new(counted);
        let (state, saved, dataset) = (reader.state().clone(), Arc::clone(&counted), dataset.to_owned());
        let snapshot = snapshot.to_owned();
        let saving = tokio::spawn(async move {
            if let Err(error) = state.save_counts(&dataset, &snapshot, stored, saved).await {
                tracing::warn!(%error, dataset, "counts could not be stored; rows are counted again after a restart");
            }
        });
        // A state store that fails for a while delays no request by more.
        tokio::time::timeout(SAVE_TIMEOUT, saving).await.ok();
        Ok(counts(counted))
    }

    async fn count(
        &self,
        reader: &Reader,
        selection: &Arc<RowSelection>,
        entry: &CountEntry,
        progress: &(impl Fn(CountProgress) + Send + Sync),
    ) -> Result<Blocks, Error> {
        let blocks = reader.snapshot().blocks();
        let done = &Mutex::new(CountProgress { blocks: blocks.len() as u64, ..CountProgress::default() });
        let by_partitions = match &selection.filter {
            Some(filter) => kept_by_partitions(reader, (&self.pool, self.flow), filter).await?,
            None => vec![None; blocks.len()],
        };
        // The rows are in the order of the blocks, as is the first error. Progress is reported when a block is counted.
        let each = stream::iter(by_partitions.into_iter().enumerate())
            .map(|(block, kept)| async move {
                let (rows, was_read) = match entry.counted(block) {
                    Some(known) => known,
                    None => {
                        let counted = self.block(reader, selection, block, kept).await?;
                        let rows = (counted.rows, counted.was_read);
                        entry.note(block, counted);
                        rows
                    }
                };
                let mut done = done.lock();
                done.rows += u64::from(blocks[block].rows);
                done.blocks_done += 1;
                done.blocks_read += u64::from(was_read);
                done.rows_kept += u64::from(rows);
                progress(*done);
                Ok::<_, Error>(rows)
            })
            .buffered(self.config.concurrent_blocks.max(1));
        let counted: Vec<u32> = each.try_collect().await?;
        let done = *done.lock();
        let (mut taken, has_keys) = (entry.take(), !selection.keys.is_empty());
        let join = move || {
            let runs = (0..counted.len()).map(|block| taken.remove(&block)?.runs);
            let groups = has_keys.then(|| Groups::joined(runs));
            Ok(Blocks { rows: counted.into(), groups })
        };
        let joined = self.pool.run_for(self.flow, Priority::Background, join).await?;
        let groups = joined.groups.as_ref();
        tracing::info!(
            rows = done.rows,
            rows_kept = done.rows_kept,
            groups = groups.map(Groups::count),
            blocks = done.blocks,
            blocks_read = done.blocks_read,
            "counted the rows of a filter or the groups of a key"
        );
        Ok(joined)
    }

    /// Reserves memory for the lengths of the groups, and attaches it to the counts.
    fn with_permit(&self, blocks: Blocks) -> Result<Blocks, Error> {
        let Some(lengths) = blocks.groups.as_ref().and_then(|groups| groups.lengths.as_ref()) else {
            return Ok(blocks);
        };
        let permit = self.reserve_lengths(lengths.len())?;
        Ok(Blocks { groups: blocks.groups.map(|groups| groups.with_permit(permit)), ..blocks })
    }

    /// Counts one block. `kept` is the number of kept rows if it is known.
    async fn block(
        &self,
        reader: &Reader,
        selection: &Arc<RowSelection>,
        block: usize,
        mut kept: Option<u32>,
    ) -> Result<Block, Error> {
        if let Some(filter) = &selection.filter {
            if kept.is_none() {
                kept = kept_rows(reader, (&self.pool, self.flow), filter, block).await?;
            }
            if let Some(rows) = kept.filter(|kept| *kept == 0 || selection.keys.is_empty()) {
                return Ok(Block { rows, was_read: false, runs: None });
            }
        }
        let counted = (0, Runs::builder());
        let counted =
            self.read(reader, RowSelection::clone(selection), block, counted, |(rows, runs), chunk| {
                *rows += chunk.kept.as_ref().map_or(chunk.rows, BooleanArray::true_count) as u32;
                if !chunk.keys.is_empty() {
                    runs.append(&chunk.keys)?;
                }
                Ok(())
            });
        let (rows, runs) = counted.await?;
        let runs = match selection.keys.as_slice() {
            [] => None,
            _ => {
                let runs = runs.summary(selection.lengths);
                let permit = self.reserve_lengths(runs.known_lengths())?;
                Some(runs.with_permit(permit))
            }
        };
        Ok(Block { rows, was_read: true, runs })
    }

    /// Reads the columns of a selection of one block and folds them into `made`: `take` is called for each chunk.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        reader: &Reader,
        selection: RowSelection,
        block: usize,
        mut made: T,
        mut take: impl FnMut(&mut T, SelectedRows) -> Result<(), Error> + Send + 'static,
    ) -> Result<T, Error> {
        let snapshot = reader.snapshot();
        let read = Reads::of(&selection.columns());
        let (inputs, place) = (read.clone(), place_of(snapshot, block as u32));
        let decode = move |chunks: Chunks| async move {
            let mut turn = TurnClock::default();
            for chunk in chunks {
                let chunk = chunk?;
                let kept = match &selection.filter {
                    Some(filter) => Some(kept(filter, &inputs, &chunk, &place, &mut turn).await?),
                    None => None,
                };
                let rows = chunk.num_rows();
                // Keys are computed for the rows that the filter keeps, so that the filter guards them.
                let keys = match (&selection.keys[..], &kept) {
                    ([], _) => Vec::new(),
                    (keys, None) => compute(keys, &inputs, &chunk, &place, &mut turn).await?,
                    (keys, Some(kept)) => {
                        let chunk = only(&chunk, kept).map_err(|error| Error::Internal(error.to_string()))?;
                        compute(keys, &inputs, &chunk, &place, &mut turn).await?
                    }
                };
                take(&mut made, SelectedRows { rows, kept, keys })?;
            }
            Ok(made)
        };
        let what = BlockColumns { reader, block: block as u32, columns: &read };
        self.blocks.read(what, Purpose::Count, self.flow, decode).await
    }
}

/// Returns the stored counts; `None` if there are none, or if the state fails or does not answer in time. Counting again gives the
/// same counts, so that a stream needs no state.
async fn load(reader: &Reader, dataset: &str, stored: u128) -> Result<Option<Blocks>, Error> {
    let loading = reader.state().load_counts::<Blocks>(dataset, reader.snapshot(), stored);
    match tokio::time::timeout(LOAD_TIMEOUT, loading).await {
        Ok(Err(
            error @ (forebay_storage::Error::Unavailable { .. }
            | forebay_storage::Error::PermissionDenied { .. }),
        )) => {
            tracing::warn!(%error, dataset, "stored counts cannot be read; rows are counted again");
            Ok(None)
        }
        Ok(loaded) => Ok(loaded?),
        Err(_) => {
            tracing::warn!(
                dataset,
                "stored counts were not read within {LOAD_TIMEOUT:?}; rows are counted again"
            );
            Ok(None)
        }
    }
}

/// Removes the counts that are not in use. They can be loaded again from the state.
fn evict_unused(known: &mut HashMap<Key, Arc<CountEntry>>) {
    known.retain(|_, entry| entry.is_used());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scheduling;

    #[tokio::test]
    async fn counts_of_requests_that_ended_early_are_kept_up_to_a_number_of_bytes() {
        let config = Config::default();
        let pool = Pool::new(1, Scheduling::Normal).unwrap();
        let counter = Counter::new(config.clone(), BlockReader::new(1 << 30, &config, pool));
        let key = |identity| ("d".to_owned(), "s".to_owned(), identity);
        let blocks = MAX_CACHED_BYTES / size_of::<(usize, Block)>() / 20;
        let mut most = 0;
        for identity in 0..100 {
            let entry = counter.cell(key(identity));
            for block in 0..blocks {
                entry.note(block, Block { rows: 1, was_read: true, runs: None });
            }
            assert!(counter.cell(key(identity)).counted(0).is_some(), "the same request continues");
            let bytes: usize = counter.known.lock().values().map(|entry| entry.bytes()).sum();
            most = most.max(bytes);
        }
        assert!(most > MAX_CACHED_BYTES / 2 && most < 2 * MAX_CACHED_BYTES, "{most} bytes");
    }
}
