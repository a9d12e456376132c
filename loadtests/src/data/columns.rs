//! Wide tables of four-byte numbers.

use std::sync::Arc;

use arrow_array::{Float32Array, Int32Array, Int64Array};
use arrow_schema::DataType;
use serde::{Deserialize, Serialize};

use super::{layout::Layout, random::Random, writer::Table};

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
        let layout = Layout { rows: self.rows, files: self.files, row_group_rows: self.row_group_rows };
        let mut table = Table::new(layout);
        for number in 0..self.float32 {
            let random = Random::of_column(table.width());
            table.push(format!("f{number:03}"), DataType::Float32, move |rows| {
                Arc::new(Float32Array::from_iter_values(rows.map(|row| random.unit(row) as f32)))
            });
        }
        for number in 0..self.int32 {
            let random = Random::of_column(table.width());
            table.push(format!("i{number:03}"), DataType::Int32, move |rows| {
                Arc::new(Int32Array::from_iter_values(rows.map(|row| random.skewed(row, INTEGERS) as i32)))
            });
        }
        if self.id {
            let rows_in_all = self.rows;
            table.push("id".to_owned(), DataType::Int64, move |rows| {
                Arc::new(Int64Array::from_iter_values(rows.map(|row| (row * STRIDE % rows_in_all) as i64)))
            });
        }
        table
    }
}
