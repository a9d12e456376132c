//! A click log: a label, a query, counts, and ids of very different cardinalities.

use std::{ops::Range, sync::Arc};

use arrow_array::{
    ArrayRef, ArrowPrimitiveType, PrimitiveArray, StringArray,
    types::{Float32Type, Int8Type, Int64Type},
};
use arrow_schema::DataType;
use serde::{Deserialize, Serialize};

use super::{random::Random, writer::Table};

const FLOATS: usize = 13;
const IDS: usize = 26;
/// Rows of one query: its impressions.
const ROWS_A_QUERY: u64 = 10;
const CLICKED_PERCENT: u32 = 3;
/// Range of the cardinalities of id columns, which increase by equal ratios.
const FEWEST_IDS: f64 = 4.0;
const MOST_IDS: f64 = 10_000_000.0;
/// Interval of the id columns with nulls.
const ID_COLUMNS_A_NULLABLE: usize = 4;
const WORDS: u64 = 100_000;

/// Sizes of the log: `label`, `query_id`, `dense00` to `dense12`, `id00` to `id25`, `text0`, ...
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Clicks {
    /// Number of rows.
    rows: u64,
    /// Number of files.
    files: u64,
    /// Rows per row group.
    row_group_rows: u64,
    /// Nulls among the values of each float column, in percent. Default: 0.
    #[serde(default)]
    float_null_percent: u32,
    /// Nulls among the values of every fourth id column, in percent. Default: 0.
    #[serde(default)]
    id_null_percent: u32,
    /// Number of string columns with 4 to 16 bytes per value. Default: 0.
    #[serde(default)]
    strings: usize,
}

impl Clicks {
    pub(super) fn table(&self) -> Table {
        let mut table = Table::new(self.rows, self.files, self.row_group_rows);
        let random = Random::of_column(0);
        table.push_numbers::<Int8Type>("label", move |row| i8::from(random.happens(row, CLICKED_PERCENT)));
        table.push_numbers::<Int64Type>("query_id", |row| (row / ROWS_A_QUERY) as i64);
        for number in 0..FLOATS {
            let (random, nulls) = (Random::of_column(table.width()), self.float_null_percent);
            // Whole numbers with a long tail.
            let count = move |row| (random.unit(row).powi(4) * 1000.0).floor() as f32;
            table.push(format!("dense{number:02}"), DataType::Float32, move |rows| {
                nullable::<Float32Type>(random, nulls, rows, count)
            });
        }
        for number in 0..IDS {
            let is_nullable = number % ID_COLUMNS_A_NULLABLE == 0;
            let nulls = if is_nullable { self.id_null_percent } else { 0 };
            let (random, cardinality) = (Random::of_column(table.width()), cardinality(number));
            let id = move |row| random.skewed(row, cardinality) as i64;
            table.push(format!("id{number:02}"), DataType::Int64, move |rows| {
                nullable::<Int64Type>(random, nulls, rows, id)
            });
        }
        for number in 0..self.strings {
            let random = Random::of_column(table.width());
            table.push(format!("text{number}"), DataType::Utf8, move |rows| words(random, rows));
        }
        table
    }
}

fn cardinality(number: usize) -> u64 {
    let step = number as f64 / (IDS - 1) as f64;
    (FEWEST_IDS * (MOST_IDS / FEWEST_IDS).powf(step)) as u64
}

/// Returns an array with `value` of each row, or null for `null_percent` of the rows.
fn nullable<T: ArrowPrimitiveType>(
    random: Random,
    null_percent: u32,
    rows: Range<u64>,
    value: impl Fn(u64) -> T::Native,
) -> ArrayRef {
    let nulls = random.other(0);
    let values = rows.map(|row| (!nulls.happens(row, null_percent)).then(|| value(row)));
    Arc::new(values.collect::<PrimitiveArray<T>>())
}

/// Returns words of 4 to 16 letters. Equal ids give equal words.
fn words(random: Random, rows: Range<u64>) -> ArrayRef {
    let (lengths, letters) = (random.other(1), random.other(2));
    let word = |row| {
        let id = random.skewed(row, WORDS);
        let length = 4 + lengths.below(id, 13);
        let letter = |at| char::from(b'a' + letters.below(id * 16 + at, 26) as u8);
        (0..length).map(letter).collect::<String>()
    };
    Arc::new(StringArray::from_iter_values(rows.map(word)))
}
