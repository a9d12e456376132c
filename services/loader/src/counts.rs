//! How many rows of each block a filter keeps, and how many groups begin in it: what the order needs to know before it can
//! say where a row is; and which rows these are, for lookups.
//!
//! Counted once for a snapshot, a filter and a key, and kept beside the snapshot's manifest, for every server and for ever.
//! What is known without reading answers a filter for most blocks of data that lies in order; the others are read, the
//! columns of filter and key alone.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use arrow_array::{ArrayRef, BooleanArray, cast::AsArray};
use arrow_buffer::{BooleanBuffer, BooleanBufferBuilder};
use arrow_select::filter::filter as filter_array;
use forebay_proto::v1;
use forebay_sql::Expression;
use forebay_storage::{Reader, Snapshot};
use futures::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore};
use xxhash_rust::xxh3::xxh3_128;

use crate::{
    Config, Error, Flow, Pool, Priority,
    compute::{compute, reads},
    groups::{Groups, Runs},
    prune::{kept_by_folders, kept_rows},
    view::{Source, question},
    window::place_of,
};

/// Counts for so many filters and keys are kept in memory.
const MAX_REMEMBERED: usize = 256;
/// Bytes in which the length of a group is kept.
const LENGTH_BYTES: u64 = size_of::<u32>() as u64;

/// What a request asks of every row before it can be ordered: which are kept, and which belong together.
#[derive(Debug, Clone, Default)]
pub(crate) struct Question {
    pub(crate) filter: Option<Arc<Expression>>,
    pub(crate) keys: Vec<Source>,
    /// Whether it is asked of each group how many rows it has.
    pub(crate) lengths: bool,
}

impl Question {
    /// Names it; `None` if nothing is asked.
    pub(crate) fn identity(&self, snapshot: &Snapshot) -> Option<u128> {
        let filter = self.filter.as_ref().map(|filter| filter.identity());
        if self.keys.is_empty() {
            return filter;
        }
        let keys: Vec<String> = self.keys.iter().map(|key| key.spelled(snapshot)).collect();
        let lengths = if self.lengths { " lengths" } else { "" };
        Some(xxh3_128(format!("groups 1 {filter:?} {keys:?}{lengths}").as_bytes()))
    }

    /// The columns to be made: keys first, and the filter last.
    fn columns(&self) -> Vec<Source> {
        self.keys.iter().cloned().chain(self.filter.clone().map(Source::Computed)).collect()
    }
}

/// Some rows of a block, and what a question makes of them.
pub(crate) struct AskedRows {
    /// How many there are.
    pub(crate) rows: usize,
    /// Which of them the filter keeps, if there is one; none is null.
    pub(crate) kept: Option<BooleanArray>,
    /// The keys of those that are kept.
    pub(crate) keys: Vec<ArrayRef>,
}

/// How many rows and groups of each block of a snapshot there are for a request.
#[derive(Debug)]
pub struct Counts {
    snapshot: String,
    identity: u128,
    counted: Arc<Blocks>,
}

/// What is kept of them.
#[derive(Debug, Serialize, Deserialize)]
struct Blocks {
    rows: Arc<[u32]>,
    groups: Option<Groups>,
}

impl Blocks {
    /// Whether they can be those of `snapshot`, with the lengths of its groups if these are asked for.
    fn fits(&self, snapshot: &Snapshot, lengths: bool) -> bool {
        let blocks = snapshot.blocks();
        let is_whole = |groups: &Groups| !lengths || groups.lengths.is_some() || groups.count() == 0;
        self.rows.len() == blocks.len()
            && self.rows.iter().zip(blocks).all(|(count, block)| *count <= block.rows)
            && self.groups.as_ref().is_none_or(|groups| groups.fit(&self.rows) && is_whole(groups))
    }
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

impl Counts {
    /// Rows that are kept, block by block.
    pub fn rows(&self) -> &Arc<[u32]> {
        &self.counted.rows
    }

    /// Groups, if there is a key.
    pub(crate) fn groups(&self) -> Option<&Groups> {
        self.counted.groups.as_ref()
    }

    /// Whether these are the answer to this question over this snapshot.
    pub(crate) fn is_of(&self, snapshot: &Snapshot, question: &Question) -> bool {
        self.snapshot == snapshot.id() && Some(self.identity) == question.identity(snapshot)
    }
}

/// Counts, for each filter and key once.
pub(crate) struct Counter {
    config: Config,
    pool: Pool,
    flow: Flow,
    /// Permits of 1 KiB for blocks that are being read.
    reading: Semaphore,
    read_bytes: u64,
    /// Permits for groups of which the lengths are in memory.
    lengths: Arc<Semaphore>,
    known: Mutex<HashMap<Key, Arc<Counting>>>,
}

/// A dataset, its snapshot and a question.
type Key = (String, String, u128);

/// The counts for one question, and what is known of them meanwhile: who gives up leaves it to the next.
#[derive(Default)]
struct Counting {
    done: OnceCell<Arc<Counts>>,
    blocks: Mutex<HashMap<usize, Block>>,
}

/// What was counted of one block.
struct Block {
    rows: u32,
    was_read: bool,
    runs: Option<Runs>,
}

impl Counting {
    /// How many rows of a block are kept, and whether it was read for that, if it was counted.
    fn counted(&self, block: usize) -> Option<(u32, bool)> {
        let blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        blocks.get(&block).map(|block| (block.rows, block.was_read))
    }

    /// Takes what was counted of blocks.
    fn take(&self) -> HashMap<usize, Block> {
        std::mem::take(&mut *self.blocks.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn note(&self, block: usize, counted: Block) {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner).insert(block, counted);
    }

    /// Whether somebody counts, waits for that, or has a job with the lengths of its groups.
    fn is_used(self: &Arc<Self>) -> bool {
        let lengths = self.done.get().and_then(|counts| counts.groups()?.lengths.as_ref());
        Arc::strong_count(self) > 1 || lengths.is_some_and(|lengths| Arc::strong_count(lengths) > 1)
    }
}

impl Counter {
    pub(crate) fn new(memory_bytes: u64, config: Config, pool: Pool) -> Self {
        let read_bytes = config.decode_bytes(memory_bytes).max(1024);
        let permits = usize::try_from(read_bytes / 1024).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        let packed = usize::try_from(config.max_packed_groups).unwrap_or(usize::MAX);
        Self {
            config,
            pool,
            flow: Flow::new(),
            reading: Semaphore::new(permits),
            read_bytes,
            lengths: Arc::new(Semaphore::new(packed.min(Semaphore::MAX_PERMITS))),
            known: Mutex::default(),
        }
    }

    /// The counts for `train`; `None` if it has neither a filter nor a key. Who asks meanwhile waits for the first.
    pub(crate) async fn of(
        &self,
        train: &v1::Train,
        reader: &Reader,
        progress: impl Fn(Counted) + Send + Sync,
    ) -> Result<Option<Arc<Counts>>, Error> {
        if train.filter.is_empty() && train.group_by.is_empty() {
            return Ok(None);
        }
        let question = self.question(train, reader).await?;
        let Some(identity) = question.identity(reader.snapshot()) else { return Ok(None) };
        let cell = self.cell((train.dataset.clone(), reader.snapshot().id().to_owned(), identity));
        let count = || self.find_or_count(&train.dataset, reader, &question, identity, &cell, &progress);
        let counted = cell.done.get_or_try_init(count);
        counted.await.map(|counts| Some(Arc::clone(counts)))
    }

    async fn question(&self, train: &v1::Train, reader: &Reader) -> Result<Arc<Question>, Error> {
        let (snapshot, asked) = (Arc::clone(reader.snapshot()), train.clone());
        self.pool.run(Priority::First, move || question(&snapshot, &asked).map(Arc::new)).await
    }

    /// Which rows of each block the filter of `train` keeps; `None` if it has none. A bit a row.
    pub(crate) async fn kept(
        &self,
        train: &v1::Train,
        reader: &Reader,
    ) -> Result<Option<Vec<BooleanBuffer>>, Error> {
        let question = self.question(train, reader).await?;
        let Some(filter) = &question.filter else { return Ok(None) };
        let by_folders = kept_by_folders(reader, (&self.pool, self.flow), filter).await?;
        let each = stream::iter(by_folders.into_iter().enumerate())
            .map(|(block, kept)| self.kept_of(reader, &question, block, kept))
            .buffered(self.config.concurrent_blocks.max(1));
        each.try_collect().await.map(Some)
    }

    /// ... of one block, of which so many are `kept` if that is known.
    async fn kept_of(
        &self,
        reader: &Reader,
        question: &Question,
        block: usize,
        mut kept: Option<u32>,
    ) -> Result<BooleanBuffer, Error> {
        let rows = reader.snapshot().blocks()[block].rows;
        if let (None, Some(filter)) = (kept, &question.filter) {
            kept = kept_rows(reader, (&self.pool, self.flow), filter, block).await?;
        }
        match kept {
            Some(0) => return Ok(BooleanBuffer::new_unset(rows as usize)),
            Some(kept) if kept == rows => return Ok(BooleanBuffer::new_set(rows as usize)),
            _ => {}
        }
        let bits = BooleanBufferBuilder::new(rows as usize);
        let read = self.read(reader, question.clone(), block, bits, |bits, asked| {
            match &asked.kept {
                Some(kept) => bits.append_buffer(kept.values()),
                None => bits.append_n(asked.rows, true),
            }
            Ok(())
        });
        read.await.map(BooleanBufferBuilder::build)
    }

    fn cell(&self, key: Key) -> Arc<Counting> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_REMEMBERED && !known.contains_key(&key) {
            forget_unused(&mut known);
        }
        Arc::clone(known.entry(key).or_default())
    }

    /// Room for the lengths of so many groups, as long as what is returned lives.
    fn room(&self, groups: usize) -> Result<OwnedSemaphorePermit, Error> {
        let limit = self.config.max_packed_groups;
        let too_many = || {
            let taken = limit.saturating_sub(self.lengths.available_permits() as u64);
            Error::TooLarge {
                what: "to know how long the groups are that are packed, of all filters and keys in use,"
                    .into(),
                needed: (taken + groups as u64).saturating_mul(LENGTH_BYTES),
                limit: limit.saturating_mul(LENGTH_BYTES),
                advice:
                    "leave rows out by a filter, group without batch_rows or raise loader.max_packed_groups"
                        .into(),
            }
        };
        let wanted = u32::try_from(groups).map_err(|_| too_many())?;
        let room = || Arc::clone(&self.lengths).try_acquire_many_owned(wanted);
        room().or_else(|_| {
            forget_unused(&mut self.known.lock().unwrap_or_else(PoisonError::into_inner));
            room().map_err(|_| too_many())
        })
    }

    async fn find_or_count(
        &self,
        dataset: &str,
        reader: &Reader,
        question: &Arc<Question>,
        identity: u128,
        counting: &Counting,
        progress: &(impl Fn(Counted) + Send + Sync),
    ) -> Result<Arc<Counts>, Error> {
        let snapshot = reader.snapshot();
        let counts =
            |counted: Arc<Blocks>| Arc::new(Counts { snapshot: snapshot.id().to_owned(), identity, counted });
        if let Some(found) = reader.state().find_counts::<Blocks>(dataset, snapshot, identity).await? {
            let (of, lengths) = (Arc::clone(snapshot), question.lengths);
            let fitting = move || Ok(found.fits(&of, lengths).then_some(found));
            if let Some(found) = self.pool.run_for(self.flow, Priority::Second, fitting).await? {
                return Ok(counts(Arc::new(self.in_room(found)?)));
            }
        }
        let counted = self.count(reader, question, counting, progress).await.inspect_err(|error| {
            // Else what there is no room for would be kept for the next who asks.
            if matches!(error, Error::TooLarge { .. }) {
                drop(counting.take());
            }
        })?;
        let counted = Arc::new(counted);
        let kept = reader.state().keep_counts(dataset, snapshot, identity, Arc::clone(&counted)).await;
        if let Err(error) = kept {
            tracing::warn!(%error, dataset, "rows are counted again after a restart");
        }
        Ok(counts(counted))
    }

    async fn count(
        &self,
        reader: &Reader,
        question: &Arc<Question>,
        counting: &Counting,
        progress: &(impl Fn(Counted) + Send + Sync),
    ) -> Result<Blocks, Error> {
        let blocks = reader.snapshot().blocks();
        let mut done = Counted { blocks: blocks.len() as u64, ..Counted::default() };
        let mut counted = Vec::with_capacity(blocks.len());
        let by_folders = match &question.filter {
            Some(filter) => kept_by_folders(reader, (&self.pool, self.flow), filter).await?,
            None => vec![None; blocks.len()],
        };
        let mut each = stream::iter(by_folders.into_iter().enumerate())
            .map(|(block, kept)| async move {
                if let Some(known) = counting.counted(block) {
                    return Ok(known);
                }
                let counted = self.block(reader, question, block, kept).await?;
                let rows = (counted.rows, counted.was_read);
                counting.note(block, counted);
                Ok::<_, Error>(rows)
            })
            .buffered(self.config.concurrent_blocks.max(1));
        while let Some((rows, was_read)) = each.try_next().await? {
            done.rows += u64::from(blocks[counted.len()].rows);
            done.blocks_done += 1;
            done.blocks_read += u64::from(was_read);
            done.rows_kept += u64::from(rows);
            counted.push(rows);
            progress(done);
        }
        let (mut taken, has_keys) = (counting.take(), !question.keys.is_empty());
        let join = move || {
            let runs = (0..counted.len()).map(|block| taken.remove(&block)?.runs);
            let groups = has_keys.then(|| Groups::joined(runs));
            Ok(Blocks { rows: counted.into(), groups })
        };
        let joined = self.pool.run_for(self.flow, Priority::Second, join).await?;
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

    /// What was counted, with room for the lengths of its groups.
    fn in_room(&self, blocks: Blocks) -> Result<Blocks, Error> {
        let Some(lengths) = blocks.groups.as_ref().and_then(|groups| groups.lengths.as_ref()) else {
            return Ok(blocks);
        };
        let room = self.room(lengths.len())?;
        Ok(Blocks { groups: blocks.groups.map(|groups| groups.in_room(room)), ..blocks })
    }

    /// Counts one block, of which so many rows are `kept` if that is known.
    async fn block(
        &self,
        reader: &Reader,
        question: &Arc<Question>,
        block: usize,
        mut kept: Option<u32>,
    ) -> Result<Block, Error> {
        if let Some(filter) = &question.filter {
            if kept.is_none() {
                kept = kept_rows(reader, (&self.pool, self.flow), filter, block).await?;
            }
            if let Some(rows) = kept.filter(|kept| *kept == 0 || question.keys.is_empty()) {
                return Ok(Block { rows, was_read: false, runs: None });
            }
        }
        let counted = (0, Runs::builder());
        let counted = self.read(reader, Question::clone(question), block, counted, |(rows, runs), asked| {
            *rows += asked.kept.as_ref().map_or(asked.rows, BooleanArray::true_count) as u32;
            if !asked.keys.is_empty() {
                runs.append(&asked.keys)?;
            }
            Ok(())
        });
        let (rows, runs) = counted.await?;
        let runs = match question.keys.as_slice() {
            [] => None,
            _ => {
                let runs = runs.summary(question.lengths);
                let room = self.room(runs.known_lengths())?;
                Some(runs.in_room(room))
            }
        };
        Ok(Block { rows, was_read: true, runs })
    }

    /// Reads what a question asks of one block, and hands it to `take`, chunk by chunk, with what it made of those before.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        reader: &Reader,
        question: Question,
        block: usize,
        mut made: T,
        mut take: impl FnMut(&mut T, AskedRows) -> Result<(), Error> + Send + 'static,
    ) -> Result<T, Error> {
        let snapshot = reader.snapshot();
        let columns = question.columns();
        let read = reads(&columns);
        let bytes = read.iter().map(|column| snapshot.column_bytes(block, *column)).sum::<u64>();
        let permits = (bytes.saturating_mul(2) / 1024).clamp(1, self.read_bytes / 1024);
        let permits = u32::try_from(permits).unwrap_or(u32::MAX);
        let closed = |_| Error::Internal("the semaphore of reads is closed".into());
        let _permit = self.reading.acquire_many(permits).await.map_err(closed)?;
        let encoded = reader.fetch(block, &read).await?;
        let (decode_rows, place) = (self.config.decode_rows, place_of(snapshot, block as u32));
        let is_filtered = question.filter.is_some();
        let read = self.pool.run_for(self.flow, Priority::Second, move || {
            for chunk in encoded.decode(decode_rows) {
                let chunk = chunk?;
                let mut keys = compute(&columns, &read, &chunk, &place)?;
                let kept = is_filtered.then(|| keys.pop()).flatten();
                let kept = kept.map(|kept| forebay_sql::not_null(kept.as_boolean()));
                if let Some(kept) = &kept {
                    for key in &mut keys {
                        *key = filter_array(key, kept).map_err(|error| Error::Internal(error.to_string()))?;
                    }
                }
                take(&mut made, AskedRows { rows: chunk.num_rows(), kept, keys })?;
            }
            Ok(made)
        });
        read.await
    }
}

/// What is used stays; the others are found in the state again.
fn forget_unused(known: &mut HashMap<Key, Arc<Counting>>) {
    known.retain(|_, counting| counting.is_used());
}
