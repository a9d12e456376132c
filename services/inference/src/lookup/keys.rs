//! Encoded keys of a lookup.

use std::sync::Arc;

use arrow_array::RecordBatch;

use crate::{index::KeyIndex, keys::EncodedKeys};

/// Keys of a batch, validated and encoded for each dataset of a [`Lookup`](super::Lookup), and the request columns that came with
/// them.
#[derive(Clone)]
pub struct LookupKeys {
    /// For each dataset, the index for which the keys were encoded, and the keys.
    pub(super) datasets: Vec<(Arc<KeyIndex>, EncodedKeys)>,
    /// Request columns of each appended batch; empty for a lookup without request columns.
    pub(super) columns: Vec<RecordBatch>,
    /// Bytes of the values of the request columns.
    pub(super) column_bytes: u64,
    /// Mean bytes per row of the features.
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

    /// Memory of the keys and of the request columns, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        let keys: u64 = self.datasets.iter().map(|(_, keys)| keys.memory_bytes()).sum();
        keys + self.columns.iter().map(|columns| columns.get_array_memory_size() as u64).sum::<u64>()
    }

    /// Estimated bytes of the answer: the mean size of a row of features for each key, and the request columns.
    pub fn answer_bytes(&self) -> u64 {
        self.row_bytes.saturating_mul(self.len() as u64).saturating_add(self.column_bytes)
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
        self.columns.extend(others.columns.iter().cloned());
        self.column_bytes += others.column_bytes;
        true
    }
}
