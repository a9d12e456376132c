//! Decoder: converts the encoded columns of a block to record batches. This is the CPU part of reading.

use std::{ops::Range, sync::Arc};

use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, new_empty_array};
use arrow_schema::{ArrowError, DataType, Field, Fields, SchemaRef};
use parquet::{
    arrow::{ProjectionMask, arrow_reader::ParquetRecordBatchReader, parquet_to_arrow_field_levels},
    errors::ParquetError,
};

use crate::{
    Config, Error, PartitionValue,
    dataset::{intervals::decoded_type, schema::relabel},
    read::{chunks::Chunks, ranges::Sparse},
    validate::{
        block_size::{RequestedRoot, check_block},
        decoder_errors::catch_panics,
        footer::Footer,
    },
};

/// Source of a requested column.
#[derive(Clone, Debug)]
pub(crate) enum Column {
    /// The top-level column of the file at this position.
    Root(usize),
    /// A partition value.
    Partition(PartitionValue),
}

/// Fetched columns of one block.
#[derive(Debug)]
pub(crate) struct Encoded {
    pub(crate) url: String,
    pub(crate) rows: u32,
    /// Schema of the requested columns, in request order.
    pub(crate) schema: SchemaRef,
    pub(crate) columns: Vec<Column>,
    /// Footer, row groups and their column chunks; `None` if all columns are partition columns.
    pub(crate) data: Option<(Arc<Footer>, Range<usize>, Sparse)>,
}

/// Requested columns of one block, encoded as in the file.
#[derive(Debug)]
pub struct EncodedBlock {
    encoded: Encoded,
    config: Arc<Config>,
    /// Maximum size of the variable-width values and fixed-size lists of a batch of several rows, in bytes.
    max_batch_bytes: u64,
}

impl EncodedBlock {
    pub(crate) fn new(encoded: Encoded, config: Arc<Config>) -> Self {
        let max_batch_bytes = config.max_block_bytes;
        Self { encoded, config, max_batch_bytes }
    }

    /// Sets the maximum size of the strings, binary values and fixed-size lists of a batch, in bytes. A batch of one row may exceed
    /// it. Default: the maximum size of a block.
    #[must_use]
    pub fn with_max_batch_bytes(self, bytes: u64) -> Self {
        Self { max_batch_bytes: bytes.min(self.config.max_block_bytes), ..self }
    }

    /// Number of fetched bytes, with the gaps between column chunks.
    pub fn bytes(&self) -> usize {
        self.encoded.data.as_ref().map_or(0, |(_, _, sparse)| sparse.fetched())
    }

    /// Number of rows in the block.
    pub fn rows(&self) -> usize {
        self.encoded.rows as usize
    }

    /// Schema of the batches that [`decode`](Self::decode) returns.
    pub fn schema(&self) -> &SchemaRef {
        &self.encoded.schema
    }

    /// Returns a decoder that yields batches of at most `batch_rows` rows. The work is done as the iterator is
    /// advanced, which should happen on a CPU thread.
    pub fn decode(self, batch_rows: usize) -> Decoder {
        Decoder { stage: Stage::Ready { block: Box::new(self), batch_rows: batch_rows.max(1) } }
    }
}

/// Iterator over the batches of one block, in order.
///
/// Columns are in request order and have the snapshot's types. The iterator yields all rows of the block, or ends with
/// an error that names the column. Malformed files result in [`Error::Corrupt`], [`Error::Limit`] or [`Error::Unsupported`], never in a
/// panic.
#[derive(Debug)]
pub struct Decoder {
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Ready { block: Box<EncodedBlock>, batch_rows: usize },
    Running(Box<Running>),
    Done,
}

impl Iterator for Decoder {
    type Item = Result<RecordBatch, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let running = match std::mem::replace(&mut self.stage, Stage::Done) {
            Stage::Ready { block, batch_rows } => Running::start(*block, batch_rows).map(Box::new),
            Stage::Running(running) => Ok(running),
            Stage::Done => return None,
        };
        let mut running = match running {
            Ok(running) => running,
            Err(error) => return Some(Err(error)),
        };
        let batch = running.step().transpose()?;
        if batch.is_ok() {
            self.stage = Stage::Running(running);
        }
        Some(batch)
    }
}

#[derive(Debug)]
struct Running {
    url: String,
    schema: SchemaRef,
    columns: Vec<Values>,
    /// Index of the first row group, and the last row of each as an offset in the block.
    groups: (usize, Vec<usize>),
    batch_rows: usize,
    rows: usize,
    rows_done: usize,
    bytes: u64,
    max_bytes: u64,
}

/// Source of the values of a requested column.
#[derive(Debug)]
enum Values {
    File(Box<FileValues>),
    Partition(PartitionValue),
}

/// Decoder of one column. Each column has its own, so that an error names its column.
struct FileValues {
    reader: ParquetRecordBatchReader,
    has_unchecked_strings: bool,
    has_signed_intervals: bool,
}

impl std::fmt::Debug for FileValues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileValues").finish_non_exhaustive()
    }
}

impl Running {
    fn start(block: EncodedBlock, batch_rows: usize) -> Result<Self, Error> {
        let EncodedBlock { encoded, config, max_batch_bytes } = block;
        let Encoded { url, rows, schema, columns, data } = encoded;
        let (mut decoded, mut batch_rows, mut groups) = (Vec::new(), batch_rows, (0, Vec::new()));
        if let Some((footer, range, sparse)) = data {
            let fields = columns.iter().zip(schema.fields());
            let roots: Vec<RequestedRoot<'_>> = fields
                .filter_map(|(column, field)| match column {
                    Column::Root(root) => Some(RequestedRoot { root: *root, field }),
                    Column::Partition(_) => None,
                })
                .collect();
            let limits = (batch_rows, max_batch_bytes);
            let (chunks, rows) = check_block(&url, &footer, &range, &roots, sparse, limits, &config)?;
            batch_rows = rows;
            for (chunks, requested) in chunks.iter().zip(&roots) {
                let opened = open(&url, &footer, requested, chunks, rows);
                let place = |error: Error| error.at(Some(range.start), Some(requested.field.name()));
                decoded.push(opened.map_err(place)?);
            }
            let of_group = footer.metadata().row_groups()[range.clone()].iter();
            let ends = of_group.scan(0, |end, group| {
                *end += usize::try_from(group.num_rows()).unwrap_or(0);
                Some(*end)
            });
            groups = (range.start, ends.collect());
        }
        let mut decoded = decoded.into_iter();
        let values = |column| match column {
            Column::Root(_) => Values::File(Box::new(decoded.next().expect("one per column of the file"))),
            Column::Partition(value) => Values::Partition(value),
        };
        let columns = columns.into_iter().map(values).collect();
        let (rows, max_bytes) = (rows as usize, config.max_block_bytes);
        Ok(Self { url, schema, columns, groups, batch_rows, rows, rows_done: 0, bytes: 0, max_bytes })
    }

    fn step(&mut self) -> Result<Option<RecordBatch>, Error> {
        let expected = self.batch_rows.min(self.rows - self.rows_done);
        let (group, mut columns) = (self.group(), Vec::with_capacity(self.columns.len()));
        for (values, field) in self.columns.iter_mut().zip(self.schema.fields()) {
            let column = match values {
                Values::File(values) => values
                    .next(&self.url, field, expected)
                    .map_err(|error| error.at(group, Some(field.name())))?,
                Values::Partition(value) => value.repeat(field.data_type(), expected),
            };
            columns.push(column);
        }
        if expected == 0 {
            return Ok(None);
        }
        let batch = self.assemble(columns, expected)?;
        self.rows_done += expected;
        Ok(Some(batch))
    }

    fn assemble(&mut self, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch, Error> {
        for column in &columns {
            let bytes = column.to_data().get_slice_memory_size();
            let bytes = bytes.map_err(|error| self.corrupt(error.to_string()))?;
            self.bytes = self.bytes.saturating_add(bytes as u64);
        }
        if self.bytes > self.max_bytes {
            let what = "decoded size of one block's columns in bytes (max_block_bytes)";
            return Err(Error::limit(&self.url, what, self.max_bytes, self.bytes));
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)
            .map_err(|error| self.corrupt(error.to_string()))
    }

    /// Row group of the next row.
    fn group(&self) -> Option<usize> {
        let (first, ends) = &self.groups;
        let index = ends.partition_point(|end| *end <= self.rows_done);
        (!ends.is_empty()).then(|| first + index.min(ends.len() - 1))
    }

    fn corrupt(&self, detail: String) -> Error {
        Error::corrupt(&self.url, detail).at(self.group(), None)
    }
}

impl FileValues {
    /// Decodes the next rows, of which `expected` must remain in the pages of the column.
    fn next(&mut self, url: &str, field: &Field, expected: usize) -> Result<ArrayRef, Error> {
        let batch =
            catch_panics(url, || self.reader.next().transpose().map_err(decoder_error))?.map(|batch| {
                let column = batch.columns().first().map(Arc::clone);
                column.unwrap_or_else(|| new_empty_array(&DataType::Null))
            });
        let found = batch.as_ref().map_or(0, arrow_array::Array::len);
        if found != expected {
            let comparison = if found < expected { "fewer" } else { "more" };
            let detail = format!("the pages hold {comparison} rows than the footer claims");
            return Err(Error::corrupt(url, detail));
        }
        let Some(column) = batch else { return Ok(new_empty_array(field.data_type())) };
        if self.has_unchecked_strings {
            let valid = column.to_data().validate_full();
            valid.map_err(|error| Error::corrupt(url, error.to_string()))?;
        }
        relabel(&column, field.data_type(), self.has_signed_intervals).map_err(|error| match error {
            ArrowError::NotYetImplemented(detail) => Error::unsupported(url, detail),
            other => Error::corrupt(url, other.to_string()),
        })
    }
}

/// Converts an error of the reader. Errors of its source were converted to Arrow's, which contain them.
fn decoder_error(error: ArrowError) -> ParquetError {
    match error {
        ArrowError::NotYetImplemented(detail) => ParquetError::NYI(detail),
        ArrowError::ParquetError(text) => match text.strip_prefix("NYI: ") {
            Some(detail) => ParquetError::NYI(detail.to_owned()),
            None => ParquetError::General(text),
        },
        other => ParquetError::from(other),
    }
}

fn open(
    url: &str,
    footer: &Footer,
    requested: &RequestedRoot<'_>,
    chunks: &Chunks,
    batch_rows: usize,
) -> Result<FileValues, Error> {
    let column = &footer.columns()[requested.root];
    let reader = catch_panics(url, || {
        let schema = footer.single_column(requested.root)?;
        let field = Field::clone(requested.field);
        let field = field.with_data_type(decoded_type(requested.field.data_type()));
        let hint = Fields::from(vec![field]);
        let levels = parquet_to_arrow_field_levels(&schema, ProjectionMask::all(), Some(&hint))?;
        ParquetRecordBatchReader::try_new_with_row_groups(&levels, chunks, batch_rows, None)
    })?;
    Ok(FileValues {
        reader,
        has_unchecked_strings: column.has_unchecked_strings,
        has_signed_intervals: column.has_signed_intervals,
    })
}
