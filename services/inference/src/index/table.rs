//! Hash table of an index, by the width of its keys.

use super::{
    key_hash::KeyHash,
    narrow_table::{self, NarrowTable},
    wide_table::WideTable,
};
use crate::keys::EncodedKeys;

#[derive(Debug)]
pub(super) enum Table {
    Four(NarrowTable<4, 8>),
    Eight(NarrowTable<8, 12>),
    Any(WideTable),
}

impl Table {
    /// Returns the key width of the narrow table for such keys, 4 or 8 bytes; `None` if they require a wide table.
    pub(super) fn narrow_width(width: Option<usize>, rows: u64) -> Option<usize> {
        width.filter(|width| matches!(width, 4 | 8) && rows <= narrow_table::MAX_ROWS)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        match self {
            Self::Four(table) => table.memory_bytes(),
            Self::Eight(table) => table.memory_bytes(),
            Self::Any(table) => table.memory_bytes(),
        }
    }

    /// Passes up to `count` keys at equal distances in the table to `take`.
    pub(super) fn sample(&self, count: usize, take: &mut dyn FnMut(&[u8])) {
        match self {
            Self::Four(table) => table.sample(count, take),
            Self::Eight(table) => table.sample(count, take),
            Self::Any(table) => table.sample(count, take),
        }
    }

    /// Returns the row number of each of `keys`; `None` for keys that are not in the table. `hash` is the function with which the table
    /// was filled.
    pub(super) fn rows(&self, keys: &EncodedKeys, hash: KeyHash) -> Vec<Option<u64>> {
        match self {
            Self::Four(table) => table.rows(keys, hash),
            Self::Eight(table) => table.rows(keys, hash),
            Self::Any(table) => table.rows(keys, hash),
        }
    }
}
