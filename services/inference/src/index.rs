//! Which row of a snapshot has a key.

mod file;
mod narrow;
mod wide;

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_row::{RowConverter, Rows, SortField};
use forebay_loader::{Error, Flow, Pool, Priority, find_column};
use forebay_storage::Reader;
use futures::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use crate::keys::{EncodedKeys, KeyType, hash};
use narrow::Narrow;
use wide::{Keys, Wide};

/// Part of every identity: another form on disk is another version.
const VERSION: u32 = 3;
/// Rows for which an index is cut into one more shard, so that threads can build it.
const SHARD_ROWS: u64 = 1 << 17;
const MAX_SHARDS: usize = 256;
/// Of five slots, four are taken.
const SLOTS: (u64, u64) = (5, 4);
/// Bytes for each row while an index is built: its hash, its number, and room that lists grow into.
const BUILDING_BYTES: u64 = 24;
/// Rows that are encoded at once.
const DECODE_ROWS: usize = 1 << 16;

/// By which columns a dataset is looked up, and which of several rows of one key is meant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeySpec {
    /// The columns that make up the key.
    pub key: Vec<String>,
    /// The row of the greatest value here is meant, nulls being the least; of equal ones, and without it, the last row.
    #[serde(default)]
    pub order_by: Option<String>,
}

/// How far building has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Indexed {
    /// Rows of the snapshot.
    pub rows: u64,
    /// Rows of which the keys are read.
    pub rows_done: u64,
}

/// The rows of a snapshot by their keys. A lookup compares the whole key, so that an answer is right whatever hashes do.
#[derive(Debug)]
pub struct KeyIndex {
    key: KeyType,
    table: Table,
    /// Different keys.
    count: u64,
}

/// Hash tables, cut into shards, by the width of a key.
#[derive(Debug)]
enum Table {
    Four(Narrow<4, 8>),
    Eight(Narrow<8, 12>),
    Any(Wide),
}

impl Table {
    /// 4 or 8, if keys of this width, of so many rows, lie in the slots of their table.
    fn narrow_width(width: Option<usize>, rows: u64) -> Option<usize> {
        width.filter(|width| matches!(width, 4 | 8) && rows <= narrow::MAX_ROWS)
    }
}

/// What was read of one block.
struct BlockKeys {
    keys: EncodedKeys,
    order: Option<Rows>,
    first_row: u64,
    /// For each shard the hashes and rows of its keys.
    of_shards: Vec<Vec<(u64, u32)>>,
}

impl KeyIndex {
    /// Reads the keys of all rows of a snapshot, `concurrent_blocks` at a time, and calls `progress` after each block.
    ///
    /// # Errors
    /// [`Error::Invalid`] for columns that make no key; those of the first block that can't be read.
    pub async fn build(
        reader: &Reader,
        spec: &KeySpec,
        pool: &Pool,
        concurrent_blocks: usize,
        progress: impl Fn(Indexed),
    ) -> Result<Self, Error> {
        let snapshot = reader.snapshot();
        let key = Arc::new(KeyType::new(&spec.key, snapshot.schema())?);
        let (columns, order) = positions(spec, reader)?;
        if snapshot.rows() > wide::MAX_ROWS {
            let reason =
                format!("the snapshot has {} rows, at most {} are indexed", snapshot.rows(), wide::MAX_ROWS);
            return Err(Error::invalid("key", reason));
        }
        let (shards, flow) = (shard_count(snapshot.rows()), Flow::new());
        let mut done = Indexed { rows: snapshot.rows(), rows_done: 0 };
        let mut read = stream::iter(0..snapshot.blocks().len())
            .map(|block| {
                let (key, columns) = (Arc::clone(&key), &columns);
                async move {
                    let encoded = reader.fetch(block, columns).await?;
                    let first_row = reader.snapshot().blocks()[block].first_row;
                    let read = move || {
                        let chunks = encoded.decode(DECODE_ROWS).collect::<Result<Vec<_>, _>>()?;
                        BlockKeys::of(&key, &chunks, order, first_row, shards)
                    };
                    pool.run_for(flow, Priority::Second, read).await
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
                let (filled, count) = filled(&blocks, shards, (pool, flow), narrow::fill::<4, 8>).await?;
                (Table::Four(pool.run(Priority::Second, move || brought_together(&filled)).await?), count)
            }
            Some(8) => {
                let (filled, count) = filled(&blocks, shards, (pool, flow), narrow::fill::<8, 12>).await?;
                (Table::Eight(pool.run(Priority::Second, move || brought_together(&filled)).await?), count)
            }
            _ => {
                let of_blocks = Arc::clone(&blocks);
                let keys = pool.run(Priority::Second, move || Keys::of(&of_blocks).map(Arc::new)).await?;
                let known = Arc::clone(&keys);
                let fill = move |blocks: &[BlockKeys], shard| wide::fill(blocks, &known, shard);
                let (shards, count) = filled(&blocks, shards, (pool, flow), fill).await?;
                let keys =
                    Arc::into_inner(keys).ok_or_else(|| Error::Internal("keys are still shared".into()))?;
                (Table::Any(Wide { keys, shards }), count)
            }
        };
        Ok(Self { key: (*key).clone(), table, count })
    }

    /// Columns and types of the key.
    pub fn key(&self) -> &KeyType {
        &self.key
    }

    /// Different keys.
    pub fn len(&self) -> u64 {
        self.count
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> u64 {
        let bytes = match &self.table {
            Table::Four(table) => table.bytes(),
            Table::Eight(table) => table.bytes(),
            Table::Any(table) => table.bytes(),
        };
        bytes as u64
    }

    /// For each of `keys` the number of its row, if there is one.
    pub fn rows(&self, keys: &EncodedKeys) -> Vec<Option<u64>> {
        match &self.table {
            Table::Four(table) => table.rows(keys),
            Table::Eight(table) => table.rows(keys),
            Table::Any(table) => table.rows(keys),
        }
    }
}

fn brought_together<const KEY: usize, const SLOT: usize>(
    filled: &[narrow::Filled],
) -> Result<Narrow<KEY, SLOT>, Error> {
    Narrow::of(filled).map_err(|error| Error::Unavailable(format!("no memory for an index: {error}")))
}

/// The slots of all shards, each made by `fill`, and how many keys are in them.
async fn filled<S: Send + 'static>(
    blocks: &Arc<Vec<BlockKeys>>,
    shards: usize,
    (pool, flow): (&Pool, Flow),
    fill: impl Fn(&[BlockKeys], usize) -> (S, u64) + Clone + Send + 'static,
) -> Result<(Vec<S>, u64), Error> {
    let fill = |shard| {
        let (blocks, fill) = (Arc::clone(blocks), fill.clone());
        pool.run_for(flow, Priority::Second, move || Ok(fill(&blocks, shard)))
    };
    // All are handed over at once; the threads are the limit.
    let filled = futures::future::try_join_all((0..shards).map(fill)).await?;
    let count = filled.iter().map(|(_, count)| count).sum();
    Ok((filled.into_iter().map(|(slots, _)| slots).collect(), count))
}

/// About how many bytes an index takes, and how many more while it is built.
pub(crate) fn estimate(reader: &Reader, spec: &KeySpec) -> Result<(u64, u64), Error> {
    let (columns, order) = positions(spec, reader)?;
    let snapshot = reader.snapshot();
    let blocks = 0..snapshot.blocks().len();
    let bytes = |column: usize| blocks.clone().map(|block| snapshot.column_bytes(block, column)).sum::<u64>();
    let keys: u64 = columns[..spec.key.len()].iter().map(|column| bytes(*column)).sum();
    let width = KeyType::new(&spec.key, snapshot.schema())?.width();
    // At the end a narrow one is there in parts, and in one piece.
    let (table, parts) = match Table::narrow_width(width, snapshot.rows()) {
        Some(width) => {
            (narrow::table_bytes(snapshot.rows(), width), narrow::table_bytes(snapshot.rows(), width))
        }
        None => (room_for(snapshot.rows()) * size_of::<u64>() as u64 + keys, 0),
    };
    let order = order.map_or(0, |place| 2 * bytes(columns[place]) + 16 * snapshot.rows());
    Ok((table, parts + keys + order + BUILDING_BYTES * snapshot.rows()))
}

/// Names an index: of which snapshot, by which key.
fn identity(reader: &Reader, spec: &KeySpec) -> u128 {
    xxh3_128(format!("{VERSION} {} {spec:?}", reader.snapshot().id()).as_bytes())
}

/// The columns of the key, and at which place among them that of `order_by` is read.
fn positions(spec: &KeySpec, reader: &Reader) -> Result<(Vec<usize>, Option<usize>), Error> {
    let schema = reader.snapshot().schema();
    let mut columns =
        spec.key.iter().map(|name| find_column("key", name, schema)).collect::<Result<Vec<_>, _>>()?;
    if let Some(twice) = columns.iter().enumerate().find(|(at, column)| columns[..*at].contains(column)) {
        return Err(Error::invalid("key", format!("'{}' is named twice", schema.field(*twice.1).name())));
    }
    let Some(order) = &spec.order_by else { return Ok((columns, None)) };
    let order = find_column("order_by", order, schema)?;
    if let Some(place) = columns.iter().position(|column| *column == order) {
        return Ok((columns, Some(place)));
    }
    columns.push(order);
    let place = columns.len() - 1;
    Ok((columns, Some(place)))
}

fn shard_count(rows: u64) -> usize {
    let wanted = (rows / SHARD_ROWS).max(1).next_power_of_two();
    usize::try_from(wanted).unwrap_or(MAX_SHARDS).min(MAX_SHARDS)
}

/// Which of so many shards, a power of two.
fn shard_of(hash: u64, shards: usize) -> usize {
    (hash & (shards as u64 - 1)) as usize
}

/// Where to look first among so many places.
fn first_of(hash: u64, places: usize) -> usize {
    ((u128::from(hash) * places as u128) >> 64) as usize
}

/// Slots for so many keys.
fn room_for(keys: u64) -> u64 {
    (keys * SLOTS.0).div_ceil(SLOTS.1)
}

/// Whether of two rows of one key the later is meant.
fn is_meant(blocks: &[BlockKeys], later: u64, earlier: u64) -> bool {
    let of = |row: u64| {
        let block = &blocks[blocks.partition_point(|block| block.first_row <= row) - 1];
        Some(block.order.as_ref()?.row((row - block.first_row) as usize))
    };
    match (of(later), of(earlier)) {
        (Some(later), Some(earlier)) => later >= earlier,
        _ => true,
    }
}

impl BlockKeys {
    fn of(
        key: &KeyType,
        chunks: &[RecordBatch],
        order: Option<usize>,
        first_row: u64,
        shards: usize,
    ) -> Result<Self, Error> {
        let columns = key.columns().len();
        let internal = |error: arrow_schema::ArrowError| Error::Internal(error.to_string());
        let mut keys = EncodedKeys::none(key);
        let mut converter = match (order, chunks.first()) {
            (Some(place), Some(chunk)) => {
                let field = SortField::new(chunk.column(place).data_type().clone());
                Some((place, RowConverter::new(vec![field]).map_err(internal)?))
            }
            _ => None,
        };
        let mut order = converter.as_ref().map(|(_, converter)| converter.empty_rows(0, 0));
        for chunk in chunks {
            keys.append(&key.encode_columns(&chunk.columns()[..columns], chunk.num_rows()));
            if let (Some((place, converter)), Some(order)) = (&mut converter, &mut order) {
                converter.append(order, &[chunk.column(*place).clone()]).map_err(internal)?;
            }
        }
        let mut of_shards = vec![Vec::with_capacity(keys.len() / shards * 9 / 8); shards];
        for row in 0..keys.len() {
            if let Some(key) = keys.get(row) {
                let hash = hash(key);
                of_shards[shard_of(hash, shards)].push((hash, row as u32));
            }
        }
        Ok(Self { keys, order, first_row, of_shards })
    }
}
