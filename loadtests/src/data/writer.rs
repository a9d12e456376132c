//! Writes a generated table as Parquet files, once and atomically.

use std::{
    fs::File,
    ops::Range,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use anyhow::Context;
use arrow_array::{ArrayRef, ArrowPrimitiveType, PrimitiveArray, RecordBatch};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use forebay_sample_data::once;
use parquet::{
    arrow::ArrowWriter,
    basic::{Compression, ZstdLevel},
    file::properties::WriterProperties,
    schema::types::ColumnPath,
};
use std::sync::Arc;

/// The values of one column in a range of rows.
type Values = Box<dyn Fn(Range<u64>) -> ArrayRef + Send + Sync>;

/// A table that is a function of its row numbers.
pub(super) struct Table {
    rows: u64,
    files: u64,
    row_group_rows: u64,
    fields: Vec<Field>,
    columns: Vec<Values>,
}

impl Table {
    /// Creates a table without columns, to be divided into `files` files with row groups of `row_group_rows` rows.
    pub(super) fn new(rows: u64, files: u64, row_group_rows: u64) -> Self {
        Self { rows, files, row_group_rows, fields: Vec::new(), columns: Vec::new() }
    }

    pub(super) fn push(
        &mut self,
        name: impl Into<String>,
        data_type: DataType,
        values: impl Fn(Range<u64>) -> ArrayRef + Send + Sync + 'static,
    ) {
        self.fields.push(Field::new(name, data_type, true));
        self.columns.push(Box::new(values));
    }

    /// Adds a column with `value` of each row.
    pub(super) fn push_numbers<T: ArrowPrimitiveType>(
        &mut self,
        name: impl Into<String>,
        value: impl Fn(u64) -> T::Native + Send + Sync + 'static,
    ) {
        self.push(name, T::DATA_TYPE, move |rows| {
            Arc::new(PrimitiveArray::<T>::from_iter_values(rows.map(&value)))
        });
    }

    /// Number of columns.
    pub(super) fn width(&self) -> usize {
        self.fields.len()
    }

    fn batch(&self, schema: &SchemaRef, rows: Range<u64>) -> anyhow::Result<RecordBatch> {
        let columns = self.columns.iter().map(|values| values(rows.clone())).collect();
        Ok(RecordBatch::try_new(SchemaRef::clone(schema), columns)?)
    }
}

/// Writes the files of `table` to the folder `place`, unless it exists. An interrupted write leaves no incomplete folder.
pub(super) fn at(place: &Path, table: &Table) -> anyhow::Result<PathBuf> {
    once::generated(place, |folder| {
        eprintln!("generating {} rows in {}", table.rows, place.display());
        write_files(folder, table)
    })
}

fn write_files(folder: &Path, table: &Table) -> anyhow::Result<()> {
    let files = table.files.clamp(1, table.rows.max(1));
    let next = AtomicU64::new(0);
    let work = || -> anyhow::Result<()> {
        loop {
            let file = next.fetch_add(1, Ordering::Relaxed);
            if file >= files {
                return Ok(());
            }
            let rows = table.rows * file / files..table.rows * (file + 1) / files;
            write_file(&folder.join(format!("part-{file:04}.parquet")), table, rows)?;
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            worker.join().map_err(|_| anyhow::anyhow!("the generator panicked"))??;
        }
        Ok(())
    })
}

fn write_file(path: &Path, table: &Table, rows: Range<u64>) -> anyhow::Result<()> {
    let schema = Arc::new(Schema::new(table.fields.clone()));
    let group_rows = table.row_group_rows.max(1);
    let mut properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_max_row_group_row_count(Some(group_rows as usize));
    for field in &table.fields {
        // A dictionary of mostly distinct values would be discarded by the writer.
        if matches!(field.data_type(), DataType::Float32 | DataType::Binary) {
            properties =
                properties.set_column_dictionary_enabled(ColumnPath::new(vec![field.name().clone()]), false);
        }
    }
    let file = File::create(path).with_context(|| format!("can't write {}", path.display()))?;
    let mut writer = ArrowWriter::try_new(file, SchemaRef::clone(&schema), Some(properties.build()))?;
    let mut first = rows.start;
    while first < rows.end {
        let end = (first + group_rows).min(rows.end);
        writer.write(&table.batch(&schema, first..end)?)?;
        first = end;
    }
    writer.close()?;
    Ok(())
}
