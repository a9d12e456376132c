//! Construction of an index from the blocks of a snapshot.

use std::sync::Arc;

use forebay_loader::{BlockColumns, BlockReader, Chunks, Error, Flow, Pool, Priority, Purpose};
use forebay_storage::Reader;
use futures::{StreamExt, TryStreamExt, stream};

use super::{
    KeyIndex, KeySpec,
    block_keys::BlockKeys,
    key_hash::KeyHash,
    narrow_table::{self, FilledShard, NarrowTable},
    sharding::{shard_count, slots_for},
    table::Table,
    wide_table::{self, StoredKeys, WideTable},
};
use crate::keys::KeyType;

/// Memory per row while an index is built, in bytes: a hash, a row number and spare capacity of the lists.
const BUILDING_BYTES: u64 = 24;

/// Progress of building an index.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IndexProgress {
    /// Number of rows of the snapshot.
    pub rows: u64,
    /// Number of rows whose keys were read.
    pub rows_done: u64,
}

impl KeyIndex {
    /// Reads the keys of all rows of a snapshot, `concurrent_blocks` blocks at a time, and calls `progress` after each block.
    ///
    /// # Errors
    /// [`Error::Invalid`] for columns that cannot be a key; the error of the first block that cannot be read.
    pub async fn build(
        reader: &Reader,
        spec: &KeySpec,
        block_reader: &BlockReader,
        concurrent_blocks: usize,
        progress: impl Fn(IndexProgress),
    ) -> Result<Self, Error> {
        let (snapshot, pool) = (reader.snapshot(), block_reader.pool());
        let key = Arc::new(KeyType::new(&spec.key, snapshot.schema())?);
        let (columns, order) = spec.columns(reader)?;
        if snapshot.rows() > wide_table::MAX_ROWS {
            let (rows, most) = (snapshot.rows(), wide_table::MAX_ROWS);
            let reason = format!("the snapshot has {rows} rows, expected at most {most}");
            return Err(Error::invalid("key", reason));
        }
        let (shards, flow, hash) = (shard_count(snapshot.rows()), Flow::new(), KeyHash::random());
        let mut done = IndexProgress { rows: snapshot.rows(), rows_done: 0 };
        let mut read = stream::iter(0..snapshot.blocks().len())
            .map(|block| {
                let (key, columns) = (Arc::clone(&key), &columns);
                async move {
                    let first_row = reader.snapshot().blocks()[block].first_row;
                    let encode = move |chunks: Chunks| async move {
                        let chunks = chunks.collect::<Result<Vec<_>, _>>()?;
                        BlockKeys::new(&key, &chunks, order, first_row, (hash, shards))
                    };
                    let what = BlockColumns { reader, block: block as u32, columns };
                    block_reader.read(what, Purpose::Index, flow, encode).await
                }
            })
            .buffered(concurrent_blocks.max(1));
        let mut blocks = Vec::new();
        while let Some(block) = read.try_next().await? {
            done.rows_done += block.keys.len() as u64;
            blocks.push(block);
            progress(done);
        }
        drop(read);
        let blocks = Arc::new(blocks);
        let (table, count) = match Table::narrow_width(key.width(), snapshot.rows()) {
            Some(4) => {
                let (filled, count) =
                    fill_shards(&blocks, shards, (pool, flow), narrow_table::fill::<4, 8>).await?;
                (Table::Four(pool.run(Priority::Background, move || merge(&filled)).await?), count)
            }
            Some(8) => {
                let (filled, count) =
                    fill_shards(&blocks, shards, (pool, flow), narrow_table::fill::<8, 12>).await?;
                (Table::Eight(pool.run(Priority::Background, move || merge(&filled)).await?), count)
            }
            _ => {
                let all_blocks = Arc::clone(&blocks);
                let stored = move || StoredKeys::new(&all_blocks).map(Arc::new);
                let keys = pool.run(Priority::Background, stored).await?;
                let shared = Arc::clone(&keys);
                let fill = move |blocks: &[BlockKeys], shard| wide_table::fill(blocks, &shared, shard);
                let (shards, count) = fill_shards(&blocks, shards, (pool, flow), fill).await?;
                let keys =
                    Arc::into_inner(keys).ok_or_else(|| Error::Internal("keys are still shared".into()))?;
                (Table::Any(WideTable { keys, shards }), count)
            }
        };
        Ok(Self { key: (*key).clone(), hash, table, count })
    }
}

fn merge<const KEY: usize, const SLOT: usize>(
    filled: &[FilledShard],
) -> Result<NarrowTable<KEY, SLOT>, Error> {
    NarrowTable::merge(filled)
        .map_err(|error| Error::Unavailable(format!("cannot allocate memory for an index: {error}")))
}

/// Fills all shards in parallel. Returns the slots of each and the total number of keys.
async fn fill_shards<S: Send + 'static>(
    blocks: &Arc<Vec<BlockKeys>>,
    shards: usize,
    (pool, flow): (&Pool, Flow),
    fill: impl Fn(&[BlockKeys], usize) -> (S, u64) + Clone + Send + 'static,
) -> Result<(Vec<S>, u64), Error> {
    let fill = |shard| {
        let (blocks, fill) = (Arc::clone(blocks), fill.clone());
        pool.run_for(flow, Priority::Background, move || Ok(fill(&blocks, shard)))
    };
    // All shards are submitted at once; the pool limits the parallelism.
    let filled = futures::future::try_join_all((0..shards).map(fill)).await?;
    let count = filled.iter().map(|(_, count)| count).sum();
    Ok((filled.into_iter().map(|(slots, _)| slots).collect(), count))
}

/// Estimates the bytes of an index, and the additional bytes while it is built.
pub(crate) fn estimate(reader: &Reader, spec: &KeySpec) -> Result<(u64, u64), Error> {
    let (columns, order) = spec.columns(reader)?;
    let snapshot = reader.snapshot();
    let blocks = 0..snapshot.blocks().len();
    let bytes = |column: usize| blocks.clone().map(|block| snapshot.column_bytes(block, column)).sum::<u64>();
    let keys: u64 = columns[..spec.key.len()].iter().map(|column| bytes(*column)).sum();
    let width = KeyType::new(&spec.key, snapshot.schema())?.width();
    // A narrow table exists twice at the end: as shards and merged.
    let (table, shards) = match Table::narrow_width(width, snapshot.rows()) {
        Some(width) => {
            let bytes = narrow_table::table_bytes(snapshot.rows(), width);
            (bytes, bytes)
        }
        None => (slots_for(snapshot.rows()) * size_of::<u64>() as u64 + keys, 0),
    };
    let order = order.map_or(0, |place| 2 * bytes(columns[place]) + 16 * snapshot.rows());
    Ok((table, shards + keys + order + BUILDING_BYTES * snapshot.rows()))
}
