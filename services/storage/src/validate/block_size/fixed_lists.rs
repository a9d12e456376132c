//! Decoded size of null fixed-size lists.
//!
//! A page stores a null list as one definition level, but the list is decoded to as many items as any other. A page of a few bytes
//! can therefore stand for gigabytes.

use arrow_schema::{DataType, Field};
use parquet::{column::page::Page, errors::ParquetError};

use crate::{
    dataset::column_sizes::null_bytes,
    validate::{
        block_size::shared_values::{Runs, sum_runs},
        delta_lengths,
    },
};

/// Fixed-size lists that the decoder builds from the levels of a leaf column. If a list contains several leaf columns, these are the
/// levels of the first.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct FixedLists {
    /// Size in bytes of the null list that each definition level stands for. 0 if the level stands for no null list, or for a list that
    /// occurs once per row, which `row_bytes` counts.
    level_bytes: Vec<u64>,
    /// Size in bytes of a list if no other list contains it, so that a row has one; otherwise 0.
    pub(super) row_bytes: u64,
    /// True if a list or map contains a fixed-size list, so that a row can have any number of them.
    pub(super) is_repeated: bool,
    /// Lower bound for the `level_bytes` of nested lists. The decoder allocates lists for each item that a repeated fixed-size list has
    /// room for, also for null items. Each of these items has a definition level.
    min_level_bytes: u64,
}

impl FixedLists {
    /// Returns the fixed-size lists of each leaf column of a top-level column, in Parquet's leaf order.
    pub(super) fn of_leaves(root: &Field) -> Vec<Self> {
        let mut leaves = Vec::new();
        Self::default().descend(root, 0, false, &mut leaves);
        leaves
    }

    /// Adds the leaf columns of a field to `leaves`. `defined` is the definition level at which the parent of the field is present.
    fn descend(mut self, field: &Field, defined: usize, in_list: bool, leaves: &mut Vec<Self>) {
        let defined = defined + usize::from(field.is_nullable());
        match field.data_type() {
            DataType::FixedSizeList(item, length) => {
                let bytes = null_bytes(field.data_type());
                if in_list {
                    self.is_repeated = true;
                    self.level_bytes.resize(defined + 1, bytes.max(self.min_level_bytes));
                    if has_lists(item.data_type()) {
                        let of_item = bytes.div_ceil(u64::from(length.unsigned_abs()).max(1));
                        self.min_level_bytes = self.min_level_bytes.max(of_item);
                    }
                } else {
                    self.row_bytes = bytes;
                    self.level_bytes.resize(defined + 1, 0);
                }
                self.descend(item, defined + 1, true, leaves);
            }
            DataType::List(item) | DataType::LargeList(item) | DataType::Map(item, _) => {
                self.level_bytes.resize(defined + 1, self.min_level_bytes);
                self.descend(item, defined + 1, true, leaves);
            }
            DataType::Struct(fields) => {
                let levels = self.level_bytes.len();
                let mut first = Some(self);
                for field in fields {
                    let other = || Self { level_bytes: vec![0; levels], ..Self::default() };
                    first.take().unwrap_or_else(other).descend(field, defined, in_list, leaves);
                }
            }
            _ => {
                self.level_bytes.resize(defined + 1, self.min_level_bytes);
                leaves.push(self);
            }
        }
    }

    /// Maximum size in bytes of the null list that one definition level stands for.
    pub(super) fn max_level_bytes(&self) -> u64 {
        self.level_bytes.iter().copied().max().unwrap_or(0)
    }

    /// Decoded size in bytes of the null lists in the pages of a column chunk. The counting ends as soon as the size exceeds
    /// `limit`.
    ///
    /// Levels that cannot be decoded count as the largest list.
    pub(super) fn null_list_bytes(
        &self,
        pages: impl Iterator<Item = Result<Page, ParquetError>>,
        max_rep_level: i16,
        max_def_level: i16,
        limit: u64,
    ) -> Result<u64, ParquetError> {
        let max_level = max_def_level.unsigned_abs();
        let width = (u32::BITS - u32::from(max_level).leading_zeros()) as u8;
        let largest = self.max_level_bytes();
        let has_all_levels = self.level_bytes.len() == usize::from(max_level) + 1;
        let of_level = |level: u32| match self.level_bytes.get(level as usize) {
            _ if !has_all_levels => largest,
            Some(bytes) => *bytes,
            None => self.min_level_bytes,
        };
        let mut total = 0_u64;
        for page in pages {
            let page = page?;
            if page.is_dictionary_page() {
                continue;
            }
            let values = u64::from(page.num_values());
            let bytes = match delta_lengths::split(&page, max_rep_level, max_def_level) {
                Some((levels, _)) => {
                    let Runs { sum, malformed } = sum_runs(levels, width, values, of_level);
                    sum.saturating_add(malformed.saturating_mul(largest))
                }
                None => values.saturating_mul(largest),
            };
            total = total.saturating_add(bytes);
            if total > limit {
                break;
            }
        }
        Ok(total)
    }
}

/// True if the type is or contains a list or map.
fn has_lists(data_type: &DataType) -> bool {
    match data_type {
        DataType::List(_) | DataType::LargeList(_) | DataType::Map(..) => true,
        DataType::FixedSizeList(item, _) => has_lists(item.data_type()),
        DataType::Struct(fields) => fields.iter().any(|field| has_lists(field.data_type())),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
