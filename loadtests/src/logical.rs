//! The bytes that count: Arrow's buffers without padding.
//!
//! Contestants pad, split and encode differently. Rates are computed for all of them from the same bytes:
//! values, four bytes an offset, and a bit a row of validity where a batch of 16,384 rows has a null.

use std::{fs::File, path::Path};

use anyhow::{Context, ensure};
use arrow_array::{Array, RecordBatch, cast::AsArray};
use arrow_schema::DataType;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde::{Deserialize, Serialize};

use crate::{scenario::Request, table};

const BATCH_ROWS: usize = 16_384;
const OFFSET_BYTES: usize = 4;

/// Rows of a dataset, and bytes of its columns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sizes {
    pub(crate) rows: u64,
    /// In the order of the schema.
    columns: Vec<(String, u64)>,
}

impl Sizes {
    /// The sizes of the data at `path`, as kept in `file`, or found by reading them all once.
    pub(crate) fn kept(file: &Path, path: &Path) -> anyhow::Result<Self> {
        if let Ok(text) = std::fs::read(file) {
            return serde_json::from_slice(&text).with_context(|| file.display().to_string());
        }
        let sizes = Self::read(path)?;
        let unfinished = file.with_extension(format!("json.{}", std::process::id()));
        std::fs::write(&unfinished, serde_json::to_vec(&sizes)?)?;
        std::fs::rename(&unfinished, file)?;
        Ok(sizes)
    }

    fn read(path: &Path) -> anyhow::Result<Self> {
        let mut sizes = Self { rows: 0, columns: Vec::new() };
        for file in table::files(path)? {
            let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(&file)?)?;
            for batch in reader.with_batch_size(BATCH_ROWS).build()? {
                sizes.add(&batch?);
            }
        }
        Ok(sizes)
    }

    fn add(&mut self, batch: &RecordBatch) {
        let schema = batch.schema();
        if self.columns.is_empty() {
            self.columns = schema.fields().iter().map(|field| (field.name().clone(), 0)).collect();
        }
        self.rows += batch.num_rows() as u64;
        for ((_, bytes), column) in self.columns.iter_mut().zip(batch.columns()) {
            *bytes += array_bytes(column) as u64;
        }
    }

    /// Names of the columns, in the order of the schema.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.columns.iter().map(|(name, _)| name.as_str())
    }

    /// Bytes of an epoch of `request`.
    pub(crate) fn epoch_bytes(&self, request: &Request) -> anyhow::Result<u64> {
        let of = |name: &str| {
            let found = self.columns.iter().find(|(column, _)| column == name);
            found.map(|(_, bytes)| *bytes).with_context(|| format!("the data have no column {name}"))
        };
        let is_all = request.columns.is_empty() && request.tensors.is_empty();
        if is_all {
            return Ok(self.columns.iter().map(|(_, bytes)| bytes).sum());
        }
        let mut bytes = 0;
        for name in &request.columns {
            bytes += of(name)?;
        }
        for tensor in &request.tensors {
            let names = table::expand(&tensor.columns, self.names())?;
            bytes += self.rows * names.len() as u64 * table::FLOAT_BYTES;
        }
        Ok(bytes)
    }
}

/// Whether a contestant that counted `bytes` sent what `logical` says, but for padding and validity.
pub(crate) fn check_bytes(bytes: u64, logical: u64) -> anyhow::Result<()> {
    const TOLERANCE: f64 = 0.05;
    let ratio = bytes as f64 / logical.max(1) as f64;
    ensure!((ratio - 1.0).abs() <= TOLERANCE, "{bytes} bytes were received, expected about {logical}");
    Ok(())
}

/// Bytes of the values, offsets and validity of `array`'s own slice.
pub(crate) fn array_bytes(array: &dyn Array) -> usize {
    let rows = array.len();
    let validity = if array.null_count() > 0 { rows.div_ceil(8) } else { 0 };
    let values = match array.data_type() {
        DataType::Boolean => rows.div_ceil(8),
        DataType::Utf8 => offsets_and(rows, span(array.as_string::<i32>().value_offsets())),
        DataType::Binary => offsets_and(rows, span(array.as_binary::<i32>().value_offsets())),
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            let first = list.value_offsets()[0] as usize;
            offsets_and(rows, array_bytes(&list.values().slice(first, span(list.value_offsets()))))
        }
        DataType::FixedSizeList(_, _) => array_bytes(array.as_fixed_size_list().values()),
        DataType::FixedSizeBinary(width) => rows * *width as usize,
        other => other.primitive_width().map_or_else(|| array.get_array_memory_size(), |width| rows * width),
    };
    values + validity
}

fn offsets_and(rows: usize, bytes: usize) -> usize {
    rows * OFFSET_BYTES + bytes
}

/// From the first offset to the last.
fn span(offsets: &[i32]) -> usize {
    (offsets[offsets.len() - 1] - offsets[0]) as usize
}

#[cfg(test)]
mod tests;
