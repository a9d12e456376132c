//! Wide tables of four-byte numbers.

use arrow_array::types::{Float32Type, Int32Type, Int64Type};
use serde::{Deserialize, Serialize};

use super::{random::Random, writer::Table};

/// Distinct values of an integer column.
const INTEGERS: u64 = 1 << 20;

/// Sizes of the table: columns `f000`, `f001`, ... and `i000`, `i001`, ..., and perhaps `id`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Columns {
    /// Number of rows.
    rows: u64,
    /// Number of files.
    files: u64,
    /// Rows per row group.
    row_group_rows: u64,
    /// Number of float32 columns.
    float32: usize,
    /// Number of int32 columns.
    int32: usize,
    /// True for a column `id` (int64) with a permutation of the row numbers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    id: bool,
}

/// A prime that divides no number of rows up to a billion.
const STRIDE: u64 = 1_000_000_007;

impl Columns {
    pub(super) fn table(&self) -> Table {
        let mut table = Table::new(self.rows, self.files, self.row_group_rows);
        for number in 0..self.float32 {
            let random = Random::of_column(table.width());
            table.push_numbers::<Float32Type>(format!("f{number:03}"), move |row| random.unit(row) as f32);
        }
        for number in 0..self.int32 {
            let random = Random::of_column(table.width());
            let value = move |row| random.skewed(row, INTEGERS) as i32;
            table.push_numbers::<Int32Type>(format!("i{number:03}"), value);
        }
        if self.id {
            let rows = self.rows;
            table.push_numbers::<Int64Type>("id", move |row| (row * STRIDE % rows) as i64);
        }
        table
    }
}
