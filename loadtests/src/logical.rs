//! The bytes of a result that are compared: Arrow's buffers without padding.
//!
//! Systems pad, split and encode differently. The rates of all systems refer to the same bytes: values, one offset per row,
//! and one validity bit per row if a batch of 16,384 rows has a null.

use std::{fs::File, path::Path};

use anyhow::{Context, bail, ensure};
use arrow_array::{Array, OffsetSizeTrait, RecordBatch, cast::AsArray};
use arrow_schema::DataType;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde::{Deserialize, Serialize};

use crate::{request::Request, table};

const BATCH_ROWS: usize = 16_384;
/// Bytes of an offset in the plain form of a view.
const VIEW_OFFSET_BYTES: usize = size_of::<i32>();
/// Version of the counting. Stored sizes of another version are counted again.
const VERSION: u32 = 2;

/// Rows of a dataset, and bytes of its columns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sizes {
    version: u32,
    pub(crate) rows: u64,
    /// Name and bytes of each column, in the order of the schema.
    columns: Vec<(String, u64)>,
}

impl Sizes {
    /// Returns the sizes of the data at `path`, from `file` or by reading all data once.
    pub(crate) fn load(file: &Path, path: &Path) -> anyhow::Result<Self> {
        let stored = std::fs::read(file).ok().and_then(|text| serde_json::from_slice::<Self>(&text).ok());
        if let Some(stored) = stored.filter(|stored| stored.version == VERSION) {
            return Ok(stored);
        }
        let sizes = Self::read(path)?;
        let unfinished = file.with_extension(format!("json.{}", std::process::id()));
        std::fs::write(&unfinished, serde_json::to_vec(&sizes)?)?;
        std::fs::rename(&unfinished, file)?;
        Ok(sizes)
    }

    fn read(path: &Path) -> anyhow::Result<Self> {
        let mut sizes = Self { version: VERSION, rows: 0, columns: Vec::new() };
        for file in table::files(path)? {
            let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(&file)?)?;
            for batch in reader.with_batch_size(BATCH_ROWS).build()? {
                sizes.add(&batch?)?;
            }
        }
        Ok(sizes)
    }

    fn add(&mut self, batch: &RecordBatch) -> anyhow::Result<()> {
        let schema = batch.schema();
        if self.columns.is_empty() {
            self.columns = schema.fields().iter().map(|field| (field.name().clone(), 0)).collect();
        }
        self.rows += batch.num_rows() as u64;
        for ((_, bytes), column) in self.columns.iter_mut().zip(batch.columns()) {
            *bytes += array_bytes(column)? as u64;
        }
        Ok(())
    }

    /// Returns the names of the columns, in the order of the schema.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.columns.iter().map(|(name, _)| name.as_str())
    }

    /// Returns the bytes of an epoch of `request`.
    pub(crate) fn epoch_bytes(&self, request: &Request) -> anyhow::Result<u64> {
        let of = |name: &str| {
            let found = self.columns.iter().find(|(column, _)| column == name);
            found.map(|(_, bytes)| *bytes).with_context(|| format!("the data have no column {name}"))
        };
        if request.is_all() {
            return Ok(self.columns.iter().map(|(_, bytes)| bytes).sum());
        }
        let mut bytes = 0;
        for name in &request.columns {
            bytes += of(name)?;
        }
        for tensor in &request.tensors {
            let names = table::expand(&tensor.columns, self.names())?;
            bytes += self.rows * names.len() as u64 * width(&tensor.dtype)?;
        }
        Ok(bytes)
    }
}

/// Bytes of one value of a tensor.
fn width(dtype: &str) -> anyhow::Result<u64> {
    let bits = dtype.trim_start_matches(|c: char| c.is_ascii_alphabetic());
    let bits: u64 = bits.parse().with_context(|| format!("dtype '{dtype}': expected one such as float32"))?;
    Ok(bits / 8)
}

/// Checks that a system delivered `logical` bytes, except for padding and validity.
pub(crate) fn check_bytes(bytes: u64, logical: u64) -> anyhow::Result<()> {
    const TOLERANCE: f64 = 0.05;
    let ratio = bytes as f64 / logical.max(1) as f64;
    ensure!((ratio - 1.0).abs() <= TOLERANCE, "received {bytes} bytes, expected about {logical}");
    Ok(())
}

/// Returns the bytes of values, offsets and validity of the slice of `array`. Views count as plain strings.
pub(crate) fn array_bytes(array: &dyn Array) -> anyhow::Result<usize> {
    let rows = array.len();
    let validity = if array.null_count() > 0 { rows.div_ceil(8) } else { 0 };
    let values = match array.data_type() {
        DataType::Boolean => rows.div_ceil(8),
        DataType::Utf8 => offsets_and_bytes(array.as_string::<i32>().value_offsets()),
        DataType::LargeUtf8 => offsets_and_bytes(array.as_string::<i64>().value_offsets()),
        DataType::Binary => offsets_and_bytes(array.as_binary::<i32>().value_offsets()),
        DataType::LargeBinary => offsets_and_bytes(array.as_binary::<i64>().value_offsets()),
        DataType::Utf8View => {
            rows * VIEW_OFFSET_BYTES + array.as_string_view().iter().flatten().map(str::len).sum::<usize>()
        }
        DataType::BinaryView => {
            rows * VIEW_OFFSET_BYTES + array.as_binary_view().iter().flatten().map(<[u8]>::len).sum::<usize>()
        }
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            let offsets = list.value_offsets();
            let items = list.values().slice(offsets[0] as usize, span(offsets));
            rows * size_of::<i32>() + array_bytes(&items)?
        }
        DataType::FixedSizeList(_, _) => array_bytes(array.as_fixed_size_list().values())?,
        DataType::FixedSizeBinary(width) => rows * *width as usize,
        other => match other.primitive_width() {
            Some(width) => rows * width,
            None => bail!("columns of type {other} are not supported by the load tests"),
        },
    };
    Ok(values + validity)
}

fn offsets_and_bytes<O: OffsetSizeTrait>(offsets: &[O]) -> usize {
    (offsets.len() - 1) * size_of::<O>() + span(offsets)
}

/// Difference of the last and the first offset.
fn span<O: OffsetSizeTrait>(offsets: &[O]) -> usize {
    (offsets[offsets.len() - 1] - offsets[0]).as_usize()
}

#[cfg(test)]
mod tests;
