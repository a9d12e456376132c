//! Columns of lists of 64-bit integers.

use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, ListArray};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, Field};
use serde::{Deserialize, Serialize};

use super::{random::Random, writer::Table};

const IDS: u64 = 1_000_000;

/// Sizes of the table: columns `list0`, `list1`, ...
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Lists {
    /// Number of rows.
    rows: u64,
    /// Number of files.
    files: u64,
    /// Rows per row group.
    row_group_rows: u64,
    /// Number of columns.
    columns: usize,
    /// Mean values per list. Lengths are uniform between 0 and twice the mean.
    mean_values: u64,
}

impl Lists {
    pub(super) fn table(&self) -> Table {
        let mut table = Table::new(self.rows, self.files, self.row_group_rows);
        let max = 2 * self.mean_values;
        let item = Arc::new(Field::new("item", DataType::Int64, true));
        for number in 0..self.columns {
            let random = Random::of_column(table.width());
            let field = Arc::clone(&item);
            let values = move |rows: std::ops::Range<u64>| -> ArrayRef {
                let lengths = random.other(0);
                let length = |row| lengths.below(row, max + 1);
                let offsets = OffsetBuffer::from_lengths(rows.clone().map(|row| length(row) as usize));
                let ids = rows
                    .flat_map(|row| (0..length(row)).map(move |at| row * max + at))
                    .map(|place| random.skewed(place, IDS) as i64);
                let ids = Int64Array::from_iter_values(ids);
                Arc::new(ListArray::new(Arc::clone(&field), offsets, Arc::new(ids), None))
            };
            table.push(format!("list{number}"), DataType::List(Arc::clone(&item)), values);
        }
        table
    }
}
