//! A dataset in memory, in the layout of a request, for the systems compared.

use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, ensure};
use arrow_array::{
    Array, ArrayRef, FixedSizeListArray, Float32Array, RecordBatch, cast::AsArray, types::Float32Type,
};
use arrow_cast::cast;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use arrow_select::concat::concat_batches;
use forebay_proto::v1;
use parquet::arrow::{ProjectionMask, arrow_reader::ParquetRecordBatchReaderBuilder};

use crate::request::Request;

const READ_ROWS: usize = 65_536;

/// Returns the Parquet files at `path`, sorted by name.
pub(crate) fn files(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if path.is_file() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = std::fs::read_dir(path).with_context(|| format!("can't list {}", path.display()))?;
    let mut files: Vec<PathBuf> =
        entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<PathBuf>>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "parquet"));
    files.sort();
    ensure!(!files.is_empty(), "{} contains no Parquet file", path.display());
    Ok(files)
}

/// Reads the first `rows` rows of the data at `path` as one batch with the layout of `request`.
pub(crate) fn load(path: &Path, request: &Request, rows: usize) -> anyhow::Result<RecordBatch> {
    let mut batches = Vec::new();
    let mut remaining = rows;
    for file in files(path)? {
        let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(&file)?)?;
        let (reader, all) = projected(reader, request)?;
        for batch in reader.with_batch_size(READ_ROWS.min(rows.max(1))).build()? {
            if remaining == 0 {
                break;
            }
            let batch = batch?;
            let batch = batch.slice(0, batch.num_rows().min(remaining));
            remaining -= batch.num_rows();
            batches.push(delivered(&batch, request, &all)?);
        }
    }
    let first = batches.first().context("the data have no rows")?;
    Ok(concat_batches(&first.schema(), &batches)?)
}

/// Restricts `reader` to the columns of `request`. Also returns the names of all columns.
pub(crate) fn projected(
    reader: ParquetRecordBatchReaderBuilder<File>,
    request: &Request,
) -> anyhow::Result<(ParquetRecordBatchReaderBuilder<File>, Vec<String>)> {
    let all: Vec<String> = reader.schema().fields().iter().map(|field| field.name().clone()).collect();
    let needed = columns(request, &all)?;
    let mask = ProjectionMask::columns(reader.parquet_schema(), needed.iter().map(String::as_str));
    Ok((reader.with_projection(mask), all))
}

/// Returns all columns that `request` reads, including those of tensors.
fn columns(request: &Request, all: &[String]) -> anyhow::Result<Vec<String>> {
    if request.is_all() {
        return Ok(all.to_vec());
    }
    let mut needed = request.columns.clone();
    for tensor in &request.tensors {
        needed.extend(expand(&tensor.columns, all.iter().map(String::as_str))?);
    }
    Ok(needed)
}

/// Returns the same columns as plain columns. `all` lists the columns of the dataset.
pub(crate) fn without_tensors<'a>(
    request: &Request,
    all: impl Iterator<Item = &'a str>,
) -> anyhow::Result<Request> {
    let all: Vec<String> = all.map(str::to_owned).collect();
    Ok(Request { columns: columns(request, &all)?, tensors: Vec::new() })
}

/// Returns the names that match `patterns`. A trailing `*` matches any suffix.
pub(crate) fn expand<'a>(
    patterns: &[String],
    names: impl Iterator<Item = &'a str>,
) -> anyhow::Result<Vec<String>> {
    let names: Vec<&str> = names.collect();
    let mut found = Vec::new();
    for pattern in patterns {
        let before = found.len();
        let matches = |name: &&&str| match pattern.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => *name == pattern,
        };
        found.extend(names.iter().filter(matches).map(|name| (*name).to_owned()));
        ensure!(found.len() > before, "no column is named {pattern}");
    }
    Ok(found)
}

/// Returns `batch` with the columns and tensors of `request`.
fn delivered(batch: &RecordBatch, request: &Request, all: &[String]) -> anyhow::Result<RecordBatch> {
    let plain_columns = if request.is_all() { all } else { &request.columns };
    let (mut fields, mut arrays) = (Vec::new(), Vec::new());
    for name in plain_columns {
        let array = plain(column(batch, name)?)?;
        fields.push(Field::new(name, array.data_type().clone(), true));
        arrays.push(array);
    }
    for tensor in &request.tensors {
        let names = expand(&tensor.columns, all.iter().map(String::as_str))?;
        let array = matrix(batch, tensor, &names)?;
        fields.push(Field::new(&tensor.name, array.data_type().clone(), false));
        arrays.push(array);
    }
    let schema: SchemaRef = Arc::new(Schema::new(fields));
    Ok(RecordBatch::try_new(schema, arrays)?)
}

fn column(batch: &RecordBatch, name: &str) -> anyhow::Result<ArrayRef> {
    Ok(Arc::clone(batch.column_by_name(name).with_context(|| format!("the data have no column {name}"))?))
}

/// Converts views to plain strings, as Forebay does.
fn plain(array: ArrayRef) -> anyhow::Result<ArrayRef> {
    match array.data_type() {
        DataType::Utf8View => Ok(cast(&array, &DataType::Utf8)?),
        DataType::BinaryView => Ok(cast(&array, &DataType::Binary)?),
        _ => Ok(array),
    }
}

/// Returns the columns as one row-major list of fixed size.
fn matrix(batch: &RecordBatch, tensor: &v1::Tensor, names: &[String]) -> anyhow::Result<ArrayRef> {
    ensure!(
        tensor.dtype == "float32",
        "tensor {}: the systems compared support dtype float32 only",
        tensor.name
    );
    let width = names.len();
    let mut values = vec![0f32; batch.num_rows() * width];
    for (at, name) in names.iter().enumerate() {
        let array = cast(&column(batch, name)?, &DataType::Float32)?;
        let array = array.as_primitive::<Float32Type>();
        ensure!(
            array.null_count() == 0,
            "column {name} has nulls, which the systems compared do not support in tensors"
        );
        for (row, value) in array.values().iter().enumerate() {
            values[row * width + at] = *value;
        }
    }
    let item = Arc::new(Field::new("item", DataType::Float32, false));
    let list = FixedSizeListArray::new(item, width as i32, Arc::new(Float32Array::from(values)), None);
    Ok(Arc::new(list))
}
