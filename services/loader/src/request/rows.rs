//! Rows and groups of each block that a job reads.

use std::sync::Arc;

use forebay_sql::SEMANTICS;
use forebay_storage::Snapshot;
use xxhash_rust::xxh3::xxh3_64;

use super::quoted::{quoted, quoted_list};
use crate::{
    Counts, View,
    cpu::off_io::{LongWork, assert_off_io_threads},
    selection::groups::{BlockRows, Groups},
    view::{row_selection::RowSelection, source::Source},
};

/// Kept rows of each block of a snapshot, and the groups that they form.
///
/// An *item* is the unit that the order permutes: a kept row, or a group with `group_by`.
#[derive(Debug)]
pub(crate) struct JobRows {
    /// Number of rows of each block that the filter keeps; all rows without a filter.
    pub(crate) kept: Arc<[u32]>,
    pub(crate) groups: Option<Groups>,
    /// Number of items of each block: its kept rows, or the groups that begin in it.
    pub(crate) items: Arc<[u32]>,
    /// Number of kept rows per epoch: the sum of `kept`.
    pub(crate) epoch_rows: u64,
    /// Number of items per epoch: the sum of `items`.
    pub(crate) epoch_items: u64,
}

impl JobRows {
    /// Rows of `snapshot` as `counts` give them; all rows without counts.
    pub(crate) fn new(snapshot: &Snapshot, counts: Option<&Counts>) -> Self {
        assert_off_io_threads(LongWork::Rows);
        let kept: Arc<[u32]> = match counts {
            None => snapshot.blocks().iter().map(|block| block.rows).collect(),
            Some(counts) => Arc::clone(counts.rows()),
        };
        let groups = counts.and_then(Counts::groups).cloned();
        let items = groups.as_ref().map_or_else(|| Arc::clone(&kept), |groups| Arc::clone(&groups.begun));
        let sum = |counts: &[u32]| counts.iter().map(|count| u64::from(*count)).sum::<u64>();
        let (epoch_rows, epoch_items) = (sum(&kept), sum(&items));
        Self { kept, groups, items, epoch_rows, epoch_items }
    }

    /// Filter and groups as part of the identity of the order: their text, hashes of the rows and groups of each block, and the
    /// version of the semantics of expressions if the rows depend on one.
    pub(crate) fn identity(&self, view: &View, filter: &str) -> String {
        let mut identity = String::new();
        if view.filter().is_some() {
            identity = format!("/{}/{:016x}", quoted(filter), hash_of(&self.kept));
        }
        for set in view.filter().map_or(&[][..], |filter| filter.sets()) {
            identity += &format!("/values {set}");
        }
        if let Some(groups) = &self.groups {
            let keys = quoted_list(view.grouped_by().iter().map(String::as_str));
            let (begun, heads) = (hash_of(&groups.begun), hash_of(&groups.heads));
            identity += &format!("/groups {keys}/{begun:016x}/{heads:016x}");
        }
        let RowSelection { filter, keys, .. } = view.row_selection();
        if filter.is_some() || keys.iter().any(|key| matches!(key, Source::Computed(_))) {
            identity += &format!("/semantics {SEMANTICS}");
        }
        identity
    }

    /// Blocks of which at least one row is kept.
    pub(crate) fn kept_blocks(&self) -> impl Iterator<Item = u32> {
        (0..self.kept.len() as u32).filter(|block| self.kept[*block as usize] > 0)
    }

    /// Number of groups that begin in a block; 0 without groups.
    pub(crate) fn groups_in(&self, block: u32) -> usize {
        self.groups.as_ref().map_or(0, |groups| groups.begun[block as usize] as usize)
    }

    /// Blocks and kept rows that form the frame of a block.
    pub(crate) fn of_frame(&self, block: u32) -> Vec<BlockRows> {
        match &self.groups {
            None => vec![BlockRows { block, rows: 0..self.kept[block as usize] }],
            Some(groups) => groups.block_rows(block, &self.kept),
        }
    }
}

fn hash_of(counts: &[u32]) -> u64 {
    xxh3_64(&counts.iter().flat_map(|count| count.to_le_bytes()).collect::<Vec<u8>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_of_counts_is_a_part_of_identities_and_stays_the_same() {
        let hashes = [&[][..], &[1, 2], &[2, 1]].map(hash_of);
        assert_eq!(hashes, [0x2d06_8005_38d3_94c2, 0x0389_e2c8_892d_5450, 0x2b0b_237e_d148_b1e8]);
    }
}
