//! Binary rows of the size of images, and a label.

use std::sync::Arc;

use arrow_array::{ArrayRef, BinaryArray, types::Int32Type};
use arrow_schema::DataType;
use serde::{Deserialize, Serialize};

use super::{random::Random, writer::Table};

const CLASSES: u64 = 1000;

/// Sizes of the table: `image` and `label`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Images {
    /// Number of rows.
    rows: u64,
    /// Number of files.
    files: u64,
    /// Rows per row group.
    row_group_rows: u64,
    /// Mean bytes per image. Sizes are uniform between 50% and 150% of the mean.
    mean_bytes: u64,
}

impl Images {
    pub(super) fn table(&self) -> Table {
        let mut table = Table::new(self.rows, self.files, self.row_group_rows);
        let (random, mean) = (Random::of_column(0), self.mean_bytes);
        table.push("image", DataType::Binary, move |rows| -> ArrayRef {
            let image = |row| {
                let bytes = mean / 2 + random.below(row, mean + 1);
                let noise = random.other(row);
                let words = (0..bytes.div_ceil(8)).flat_map(move |word| noise.bits(word).to_le_bytes());
                words.take(bytes as usize).collect::<Vec<u8>>()
            };
            Arc::new(BinaryArray::from_iter_values(rows.map(image)))
        });
        let random = Random::of_column(1);
        table.push_numbers::<Int32Type>("label", move |row| random.below(row, CLASSES) as i32);
        table
    }
}
