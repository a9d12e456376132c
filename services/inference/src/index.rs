//! Which row of a snapshot has a key.

mod file;

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_row::{RowConverter, Rows, SortField};
use forebay_loader::{Error, Pool, Priority, find_column, prefetch, prefetch_value};
use forebay_storage::Reader;
use futures::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use crate::keys::{EncodedKeys, KeyType, hash};

/// Part of every identity: another form on disk is another version.
const VERSION: u32 = 1;
/// Rows for which an index is cut into one more shard, so that threads can build it.
const SHARD_ROWS: u64 = 1 << 17;
const MAX_SHARDS: usize = 256;
/// Of five slots, four are taken.
const SLOTS: (u64, u64) = (5, 4);
/// A slot that is free.
const EMPTY: u64 = u64::MAX;
/// Bits of a slot that are the row's number; the others are the key's hash.
const ROW_BITS: u32 = 40;
/// Rows of one snapshot that can be indexed.
const MAX_ROWS: u64 = (1 << ROW_BITS) - 1;
/// Keys of no fixed width are found from the start of so many.
const CHUNK_ROWS: usize = 1 << 16;
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
///
/// ```text
/// shard by the hash's first bits: | slot | slot | slot | ...   24 bits of hash, 40 of row number; linear probing
/// keys by row number:             | key | key | key | ...      as bytes
/// ```
#[derive(Debug)]
pub struct KeyIndex {
    key: KeyType,
    keys: Keys,
    shards: Vec<Box<[u64]>>,
    /// Different keys.
    count: u64,
}

/// The keys of all rows, by the rows' numbers.
#[derive(Debug, Default)]
struct Keys {
    width: Option<usize>,
    bytes: Vec<u8>,
    /// Without a width: where each ends, from the start of its chunk on.
    ends: Vec<u32>,
    /// Where each chunk starts.
    chunks: Vec<u64>,
    rows: u64,
}

/// What was read of one block.
struct BlockKeys {
    keys: EncodedKeys,
    order: Option<Rows>,
    first_row: u64,
    /// For each shard the hashes and rows of its keys.
    buckets: Vec<Vec<(u64, u32)>>,
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
        if snapshot.rows() > MAX_ROWS {
            let reason = format!("the snapshot has {} rows, at most {MAX_ROWS} are indexed", snapshot.rows());
            return Err(Error::invalid("key", reason));
        }
        let shards = shard_count(snapshot.rows());
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
                    pool.run(Priority::Second, read).await
                }
            })
            .buffered(concurrent_blocks.max(1));
        let (mut blocks, mut keys) = (Vec::new(), Keys::default());
        while let Some(block) = read.try_next().await? {
            keys.append(&block.keys)?;
            done.rows_done += block.keys.len() as u64;
            blocks.push(block);
            progress(done);
        }
        drop(read);
        let (blocks, keys) = (Arc::new(blocks), Arc::new(keys));
        let fill = |shard| {
            let (blocks, keys) = (Arc::clone(&blocks), Arc::clone(&keys));
            pool.run(Priority::Second, move || Ok(fill(&blocks, &keys, shard)))
        };
        // All are handed over at once; the threads are the limit.
        let filled = futures::future::try_join_all((0..shards).map(fill)).await?;
        drop(blocks);
        let keys = Arc::into_inner(keys).ok_or_else(|| Error::Internal("keys are still shared".into()))?;
        let count = filled.iter().map(|(_, count)| count).sum();
        let key = (*key).clone();
        Ok(Self { key, keys, shards: filled.into_iter().map(|(slots, _)| slots).collect(), count })
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
        let slots = self.shards.iter().map(|shard| size_of_val(&**shard)).sum::<usize>();
        let Keys { bytes, ends, chunks, .. } = &self.keys;
        (slots + bytes.len() + size_of_val(&ends[..]) + size_of_val(&chunks[..])) as u64
    }

    /// For each of `keys` the number of its row, if there is one.
    pub fn rows(&self, keys: &EncodedKeys) -> Vec<Option<u64>> {
        // Where the width is known, hashing and comparing take a few instructions.
        match self.keys.width {
            Some(4) => self.rows_of::<&[u8; 4]>(keys),
            Some(8) => self.rows_of::<&[u8; 8]>(keys),
            _ => self.rows_of::<&[u8]>(keys),
        }
    }

    fn rows_of<'a, K: KeyBytes<'a>>(&'a self, keys: &'a EncodedKeys) -> Vec<Option<u64>> {
        // Step by step for all keys: what each step reads is on its way while it is taken for others.
        let mut probes: Vec<Option<Probe<'a, K>>> =
            (0..keys.len()).map(|row| Some(Probe::new(K::new(keys.get(row)?), &self.shards))).collect();
        for probe in probes.iter_mut().flatten() {
            if let Some(row) = probe.candidate() {
                prefetch(self.keys.get(row));
            }
        }
        probes.into_iter().map(|probe| probe?.row(&self.keys)).collect()
    }
}

/// A key of a width that is known when this is compiled, or of any.
trait KeyBytes<'a>: Copy + Eq {
    /// `key` has that width.
    fn new(key: &'a [u8]) -> Self;

    fn hash(self) -> u64;
}

impl<'a> KeyBytes<'a> for &'a [u8] {
    fn new(key: &'a [u8]) -> Self {
        key
    }

    fn hash(self) -> u64 {
        hash(self)
    }
}

impl<'a, const WIDTH: usize> KeyBytes<'a> for &'a [u8; WIDTH] {
    #[inline]
    fn new(key: &'a [u8]) -> Self {
        key.as_array().expect("a key has the index's width")
    }

    #[inline]
    fn hash(self) -> u64 {
        hash(self)
    }
}

/// A key on its way to its row.
struct Probe<'a, K> {
    key: K,
    fingerprint: u64,
    slots: &'a [u64],
    at: usize,
}

impl<'a, K: KeyBytes<'a>> Probe<'a, K> {
    #[inline]
    fn new(key: K, shards: &'a [Box<[u64]>]) -> Self {
        let hash = key.hash();
        let slots = &*shards[shard_of(hash, shards.len())];
        let at = first_slot(hash, slots.len());
        prefetch_value(&slots[at]);
        Self { key, fingerprint: fingerprint(hash), slots, at }
    }

    /// The row in the next slot whose key has the same bits of hash; `None` if there is none any more.
    #[inline]
    fn candidate(&mut self) -> Option<u64> {
        loop {
            let slot = self.slots[self.at];
            if slot == EMPTY {
                return None;
            }
            if slot >> ROW_BITS == self.fingerprint {
                return Some(slot & MAX_ROWS);
            }
            self.step();
        }
    }

    #[inline]
    fn step(&mut self) {
        self.at = if self.at + 1 == self.slots.len() { 0 } else { self.at + 1 };
    }

    /// The key's row.
    #[inline]
    fn row(mut self, keys: &'a Keys) -> Option<u64> {
        loop {
            let row = self.candidate()?;
            if K::new(keys.get(row)) == self.key {
                return Some(row);
            }
            self.step();
        }
    }
}

/// About how many bytes an index takes, and how many more while it is built.
pub(crate) fn estimate(reader: &Reader, spec: &KeySpec) -> Result<(u64, u64), Error> {
    let (columns, order) = positions(spec, reader)?;
    let snapshot = reader.snapshot();
    let blocks = 0..snapshot.blocks().len();
    let bytes = |column: usize| blocks.clone().map(|block| snapshot.column_bytes(block, column)).sum::<u64>();
    let keys: u64 = columns[..spec.key.len()].iter().map(|column| bytes(*column)).sum();
    let slots = snapshot.rows() * SLOTS.0 / SLOTS.1 * size_of::<u64>() as u64;
    let order = order.map_or(0, |place| 2 * bytes(columns[place]) + 16 * snapshot.rows());
    Ok((keys + slots, keys + order + BUILDING_BYTES * snapshot.rows()))
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

/// Where to look first among so many slots.
fn first_slot(hash: u64, slots: usize) -> usize {
    ((u128::from(hash) * slots as u128) >> 64) as usize
}

/// The bits of a hash that a slot has.
fn fingerprint(hash: u64) -> u64 {
    // Those that choose neither shard nor slot.
    hash >> 8 & ((1 << (64 - ROW_BITS)) - 1)
}

/// The slots of one shard, and how many keys are in them.
fn fill(blocks: &[BlockKeys], keys: &Keys, shard: usize) -> (Box<[u64]>, u64) {
    let rows: usize = blocks.iter().map(|block| block.buckets[shard].len()).sum();
    let slots = (rows as u64 * SLOTS.0).div_ceil(SLOTS.1) + 1;
    let mut slots = vec![EMPTY; slots as usize].into_boxed_slice();
    let mut count = 0;
    for block in blocks {
        for (hash, row) in &block.buckets[shard] {
            let row = block.first_row + u64::from(*row);
            let key = keys.get(row);
            let mut at = first_slot(*hash, slots.len());
            loop {
                let slot = slots[at];
                if slot == EMPTY {
                    slots[at] = fingerprint(*hash) << ROW_BITS | row;
                    count += 1;
                    break;
                }
                if slot >> ROW_BITS == fingerprint(*hash) && keys.get(slot & MAX_ROWS) == key {
                    if is_meant(blocks, row, slot & MAX_ROWS) {
                        slots[at] = fingerprint(*hash) << ROW_BITS | row;
                    }
                    break;
                }
                at = if at + 1 == slots.len() { 0 } else { at + 1 };
            }
        }
    }
    (slots, count)
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
        let mut buckets = vec![Vec::with_capacity(keys.len() / shards * 9 / 8); shards];
        for row in 0..keys.len() {
            if let Some(key) = keys.get(row) {
                let hash = hash(key);
                buckets[shard_of(hash, shards)].push((hash, row as u32));
            }
        }
        Ok(Self { keys, order, first_row, buckets })
    }
}

impl Keys {
    fn append(&mut self, block: &EncodedKeys) -> Result<(), Error> {
        self.width = block.width();
        if self.width.is_some() {
            self.bytes.extend_from_slice(block.bytes());
            self.rows += block.len() as u64;
            return Ok(());
        }
        let mut at = self.bytes.len() as u64;
        for length in block.lengths() {
            if self.rows.is_multiple_of(CHUNK_ROWS as u64) {
                self.chunks.push(at);
            }
            at += length as u64;
            let start = self.chunks.last().copied().unwrap_or(0);
            let end = u32::try_from(at - start)
                .map_err(|_| Error::invalid("key", format!("{CHUNK_ROWS} keys have more than 4 GiB")))?;
            self.ends.push(end);
            self.rows += 1;
        }
        self.bytes.extend_from_slice(block.bytes());
        Ok(())
    }

    /// The key of a row.
    fn get(&self, row: u64) -> &[u8] {
        let row = row as usize;
        if let Some(width) = self.width {
            return &self.bytes[row * width..][..width];
        }
        let chunk = self.chunks[row / CHUNK_ROWS] as usize;
        let start = if row.is_multiple_of(CHUNK_ROWS) { 0 } else { self.ends[row - 1] as usize };
        &self.bytes[chunk + start..chunk + self.ends[row] as usize]
    }
}
