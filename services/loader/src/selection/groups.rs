//! Groups: consecutive rows with equal keys. A group belongs to the block in which it begins. Its rows at the head of
//! later blocks are read together with that block.

use std::{ops::Range, sync::Arc};

use arrow_array::ArrayRef;
use arrow_row::{RowConverter, SortField};
use serde::{Deserialize, Serialize};
use tokio::sync::OwnedSemaphorePermit;
use xxhash_rust::xxh3::xxh3_128;

use super::group_lengths::Lengths;
use crate::{
    Error,
    cpu::off_io::{LongWork, assert_off_io_threads},
};

/// Encodes the keys of rows as bytes, which are equal exactly for equal keys. Nulls are equal to each other, and so are
/// NaNs with the same bits.
pub(crate) fn keys_as_bytes(keys: &[ArrayRef]) -> Result<arrow_row::Rows, Error> {
    let fields = keys.iter().map(|key| SortField::new(key.data_type().clone())).collect();
    let rows = RowConverter::new(fields).and_then(|rows| rows.convert_columns(keys));
    rows.map_err(|error| Error::Internal(error.to_string()))
}

/// Finds the starts of runs of equal keys, over several chunks of rows.
#[derive(Default)]
pub(crate) struct RunsBuilder {
    first: Option<u128>,
    last: Option<Vec<u8>>,
    starts: Vec<u32>,
    rows: u32,
}

impl RunsBuilder {
    pub(crate) fn append(&mut self, keys: &[ArrayRef]) -> Result<(), Error> {
        for key in &keys_as_bytes(keys)? {
            let key: &[u8] = key.as_ref();
            if self.last.as_deref() != Some(key) {
                self.starts.push(self.rows);
                self.first.get_or_insert_with(|| xxh3_128(key));
                let last = self.last.get_or_insert_default();
                last.clear();
                last.extend_from_slice(key);
            }
            self.rows += 1;
        }
        Ok(())
    }

    /// Returns the start of each run, followed by the number of rows.
    pub(crate) fn offsets(mut self) -> Vec<u32> {
        self.starts.push(self.rows);
        self.starts.shrink_to_fit();
        self.starts
    }

    /// Returns a summary of the runs, including the length of each if `with_lengths` is set.
    pub(crate) fn summary(self, with_lengths: bool) -> Runs {
        let (first, last) = (self.first.unwrap_or(0), self.last.as_deref().map_or(0, xxh3_128));
        let offsets = self.offsets();
        let lengths = || offsets.windows(2).map(|ends| ends[1] - ends[0]);
        Runs {
            count: (offsets.len() - 1) as u32,
            first,
            last,
            first_rows: lengths().next().unwrap_or(0),
            last_rows: lengths().next_back().unwrap_or(0),
            longest: lengths().max().unwrap_or(0),
            lengths: with_lengths.then(|| lengths().collect()),
            permit: None,
        }
    }
}

/// Summary of the runs of one block, sufficient to join them with those of neighbouring blocks.
#[derive(Debug)]
pub(crate) struct Runs {
    count: u32,
    /// Hashes of the keys of the first and of the last run.
    first: u128,
    last: u128,
    first_rows: u32,
    last_rows: u32,
    longest: u32,
    /// Number of rows of each run, if requested, and the memory reserved for them.
    lengths: Option<Box<[u32]>>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Runs {
    pub(crate) fn builder() -> RunsBuilder {
        RunsBuilder::default()
    }

    /// Number of runs with known lengths.
    pub(crate) fn known_lengths(&self) -> usize {
        self.lengths.as_ref().map_or(0, |lengths| lengths.len())
    }

    /// Attaches the reservation for the lengths, which is released with them.
    pub(crate) fn with_permit(self, permit: OwnedSemaphorePermit) -> Self {
        Self { permit: Some(permit), ..self }
    }
}

/// The groups of a snapshot, by the block in which they begin.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Groups {
    /// Number of groups that begin in each block.
    pub(crate) begun: Arc<[u32]>,
    /// Number of rows at the head of each block that belong to a group of an earlier block.
    pub(crate) heads: Arc<[u32]>,
    /// Number of rows of the longest group.
    pub(crate) longest: u64,
    /// Number of rows of each group, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lengths: Option<Arc<Lengths>>,
}

impl Groups {
    /// Joins runs that continue from one block to the next. No row is kept of a block that is `None`.
    pub(crate) fn joined(blocks: impl Iterator<Item = Option<Runs>>) -> Self {
        assert_off_io_threads(LongWork::Groups);
        let (mut begun, mut heads, mut longest) = (Vec::new(), Vec::new(), 0);
        let (mut lengths, mut permit): (Option<Vec<u32>>, Option<OwnedSemaphorePermit>) = (None, None);
        // Key and number of rows of the last group of the previous block.
        let mut open: Option<(u128, u64)> = None;
        for runs in blocks {
            let Some(mut runs) = runs.filter(|runs| runs.count > 0) else {
                begun.push(0);
                heads.push(0);
                continue;
            };
            let continued = open.filter(|(key, _)| *key == runs.first);
            let head = if continued.is_some() { runs.first_rows } else { 0 };
            begun.push(runs.count - u32::from(continued.is_some()));
            heads.push(head);
            let first = continued.map_or(0, |(_, rows)| rows) + u64::from(runs.first_rows);
            longest = longest.max(first).max(u64::from(runs.longest));
            open = Some((runs.last, if runs.count == 1 { first } else { u64::from(runs.last_rows) }));
            if let Some(of_block) = runs.lengths.take() {
                let lengths = lengths.get_or_insert_default();
                let (joined, own) = of_block.split_at(usize::from(continued.is_some()));
                if let (Some(last), [rows]) = (lengths.last_mut(), joined) {
                    *last = last.saturating_add(*rows);
                }
                lengths.extend_from_slice(own);
            }
            match (&mut permit, runs.permit.take()) {
                (Some(permit), Some(more)) => permit.merge(more),
                (permit, more) => *permit = permit.take().or(more),
            }
        }
        let lengths = lengths.map(|rows| Arc::new(Lengths::new(rows.into(), permit)));
        Self { begun: begun.into(), heads: heads.into(), longest, lengths }
    }

    /// Attaches the reservation for the lengths, which is released with them.
    pub(crate) fn with_permit(self, permit: OwnedSemaphorePermit) -> Self {
        let with_permit = |lengths| match Arc::try_unwrap(lengths) {
            Ok(Lengths { rows, .. }) => Arc::new(Lengths::new(rows, Some(permit))),
            Err(shared) => shared,
        };
        Self { lengths: self.lengths.map(with_permit), ..self }
    }

    /// Number of groups.
    pub(crate) fn count(&self) -> u64 {
        self.begun.iter().map(|begun| u64::from(*begun)).sum()
    }

    /// True if the groups are consistent with blocks that keep `rows` rows each.
    pub(crate) fn fit(&self, rows: &[u32]) -> bool {
        let blocks = self.begun.iter().zip(self.heads.iter()).zip(rows);
        let mut is_open = false;
        let mut one_by_one = blocks.map(|((begun, head), rows)| {
            let fits = (*head == 0 || is_open)
                && head.checked_add(*begun).is_some_and(|least| least <= *rows)
                && (*begun > 0 || head == rows);
            is_open |= *begun > 0;
            fits
        });
        self.begun.len() == rows.len()
            && self.heads.len() == rows.len()
            && one_by_one.all(|fits| fits)
            && self.lengths.as_ref().is_none_or(|lengths| lengths.fit(self.count(), self.longest, rows))
    }

    /// Returns the blocks, with ranges of their kept rows, that contain the groups that begin in `block`. `rows` is the
    /// number of kept rows of each block.
    pub(crate) fn block_rows(&self, block: u32, rows: &[u32]) -> Vec<BlockRows> {
        let at = block as usize;
        if self.begun[at] == 0 {
            return Vec::new();
        }
        let mut block_rows = vec![BlockRows { block, rows: self.heads[at]..rows[at] }];
        for next in at + 1..rows.len() {
            if self.heads[next] > 0 {
                block_rows.push(BlockRows { block: next as u32, rows: 0..self.heads[next] });
            }
            if self.begun[next] > 0 {
                break;
            }
        }
        block_rows
    }
}

/// A range of the kept rows of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BlockRows {
    pub(crate) block: u32,
    pub(crate) rows: Range<u32>,
}

#[cfg(test)]
mod tests;
