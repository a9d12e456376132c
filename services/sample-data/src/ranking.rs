//! A log of rankings, generated once and kept: queries with features, and the items that were shown for each query.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::ensure;
use arrow_array::{ArrayRef, Float32Array, Int64Array, ListArray, RecordBatch, types::Int64Type};
use arrow_schema::ArrowError;
use xxhash_rust::xxh3::xxh3_64;

use crate::{file, once};

/// Items per query.
pub const ITEMS: u64 = 20;
/// Features per query (columns `q_00`, `q_01`, ...), equal in all rows of the query.
pub const QUERY_FEATURES: u64 = 40;
/// Features per item (columns `i_00`, `i_01`, ...).
pub const ITEM_FEATURES: u64 = 20;
/// Maximum number of categories per item, in the list column `categories`.
const CATEGORIES: u64 = 6;
const QUERIES_PER_FILE: u64 = 20_000;
/// Queries that are generated per batch.
const QUERIES_PER_BATCH: u64 = 3_000;

/// Returns the folder of the data inside `folder`: `queries` times [`ITEMS`] rows of `query_id`, features, `categories` and
/// `clicked`. Generates the data if the folder does not exist.
///
/// # Errors
/// If the number is out of range, or a failure of the disk.
pub fn at(folder: &Path, queries: u64) -> anyhow::Result<PathBuf> {
    ensure!((1..=10_000_000).contains(&queries), "{queries} queries: expected 1 to 10,000,000");
    let finished = folder.join(format!("ranking-{queries}"));
    once::generated(&finished, |folder| {
        eprintln!("generating {} rows in {}", queries * ITEMS, finished.display());
        let firsts = (0..queries).step_by(QUERIES_PER_FILE as usize).enumerate();
        for (number, first) in firsts {
            let path = folder.join(format!("part-{number:04}.parquet"));
            write(&path, first..(first + QUERIES_PER_FILE).min(queries))?;
        }
        Ok(())
    })
}

fn write(path: &Path, queries: std::ops::Range<u64>) -> anyhow::Result<()> {
    let mut writer = file::create(path, rows(0..0)?.schema())?;
    let mut first = queries.start;
    while first < queries.end {
        let end = (first + QUERIES_PER_BATCH).min(queries.end);
        writer.write(&rows(first * ITEMS..end * ITEMS)?)?;
        first = end;
    }
    writer.close()?;
    Ok(())
}

/// Generates rows from their indices.
fn rows(rows: std::ops::Range<u64>) -> Result<RecordBatch, ArrowError> {
    let floats = |of: &dyn Fn(u64) -> f32| -> ArrayRef {
        Arc::new(Float32Array::from_iter_values(rows.clone().map(of)))
    };
    let queries = Int64Array::from_iter_values(rows.clone().map(|row| (row / ITEMS) as i64));
    let mut columns = vec![("query_id".to_owned(), Arc::new(queries) as ArrayRef)];
    for feature in 0..QUERY_FEATURES {
        columns.push((format!("q_{feature:02}"), floats(&|row| uniform(row / ITEMS, feature))));
    }
    for feature in 0..ITEM_FEATURES {
        columns.push((format!("i_{feature:02}"), floats(&|row| uniform(row, 1000 + feature))));
    }
    let categories = rows.clone().map(|row| {
        let count = (uniform(row, 2000) * CATEGORIES as f32) as u64;
        Some((0..count).map(move |at| Some((uniform(row, 2001 + at) * 1000.0) as i64)))
    });
    columns.push((
        "categories".to_owned(),
        Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(categories)),
    ));
    // Clicks depend on features of the query and the item, and on chance.
    let clicked = |row: u64| {
        let affinity =
            uniform(row / ITEMS, 0) * uniform(row, 1000) + uniform(row / ITEMS, 1) * uniform(row, 1001);
        f32::from(affinity + 0.3 * uniform(row, 3000) > 0.8)
    };
    columns.push(("clicked".to_owned(), floats(&clicked)));
    RecordBatch::try_from_iter(columns)
}

/// Returns a pseudorandom number in [0, 1) for a row or query and a feature.
fn uniform(row: u64, feature: u64) -> f32 {
    let bytes: [u8; 16] = (u128::from(row) << 64 | u128::from(feature)).to_le_bytes();
    (xxh3_64(&bytes) >> 40) as f32 / (1 << 24) as f32
}
