//! Encoded keys of a lookup.

use std::sync::Arc;

use crate::{index::KeyIndex, keys::EncodedKeys};

/// Keys of a batch, validated and encoded for each dataset of a [`Lookup`](super::Lookup).
#[derive(Clone)]
pub struct LookupKeys {
    /// For each dataset, the index for which the keys were encoded, and the keys.
    pub(super) datasets: Vec<(Arc<KeyIndex>, EncodedKeys)>,
    pub(super) row_bytes: u64,
}

impl LookupKeys {
    /// Number of keys.
    pub fn len(&self) -> usize {
        self.datasets.first().map_or(0, |(_, keys)| keys.len())
    }

    /// True if there are no keys.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Memory of the keys, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.datasets.iter().map(|(_, keys)| keys.memory_bytes()).sum()
    }

    /// Mean bytes per row of the answer.
    pub fn row_bytes(&self) -> u64 {
        self.row_bytes
    }

    /// Appends keys of the same lookup. Returns false, without changes, if the type of the key changed between the two.
    #[must_use]
    pub fn append(&mut self, others: &Self) -> bool {
        let same_type = |((index, _), (other, _)): (&(Arc<KeyIndex>, _), &(Arc<KeyIndex>, _))| {
            Arc::ptr_eq(index, other) || index.key() == other.key()
        };
        if self.datasets.len() != others.datasets.len()
            || !self.datasets.iter().zip(&others.datasets).all(same_type)
        {
            return false;
        }
        for ((_, keys), (_, others)) in self.datasets.iter_mut().zip(&others.datasets) {
            keys.append(others);
        }
        true
    }
}
