//! Keys of one block, as read for an index.

use arrow_array::RecordBatch;
use arrow_row::{RowConverter, Rows, SortField};
use forebay_loader::Error;

use super::{key_hash::KeyHash, sharding::shard_of};
use crate::keys::{EncodedKeys, KeyType};

/// Keys of a block and the values that order rows with the same key.
pub(super) struct BlockKeys {
    pub(super) keys: EncodedKeys,
    order: Option<Rows>,
    pub(super) first_row: u64,
    /// For each shard, the hashes and rows of its keys.
    pub(super) shards: Vec<Vec<(u64, u32)>>,
}

impl BlockKeys {
    /// Encodes the keys of a block, and assigns them to `shard_count` shards by `hash`. `order` is the position of the ordering
    /// column, if any.
    pub(super) fn new(
        key: &KeyType,
        chunks: &[RecordBatch],
        order: Option<usize>,
        first_row: u64,
        (hash, shard_count): (KeyHash, usize),
    ) -> Result<Self, Error> {
        let columns = key.columns().len();
        let internal = |error: arrow_schema::ArrowError| Error::Internal(error.to_string());
        let mut keys = EncodedKeys::empty(key);
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
        let mut shards = vec![Vec::with_capacity(keys.len() / shard_count * 9 / 8); shard_count];
        for row in 0..keys.len() {
            if let Some(key) = keys.get(row) {
                let hash = hash.hash(key);
                shards[shard_of(hash, shard_count)].push((hash, row as u32));
            }
        }
        Ok(Self { keys, order, first_row, shards })
    }
}

/// Returns true if row `later` replaces row `earlier` of the same key.
pub(super) fn replaces(blocks: &[BlockKeys], later: u64, earlier: u64) -> bool {
    let order = |row: u64| {
        let block = &blocks[blocks.partition_point(|block| block.first_row <= row) - 1];
        Some(block.order.as_ref()?.row((row - block.first_row) as usize))
    };
    match (order(later), order(earlier)) {
        (Some(later), Some(earlier)) => later >= earlier,
        _ => true,
    }
}
