//! Decoder: converts the encoded columns of a block to record batches. This is the CPU part of reading.

use std::{ops::Range, sync::Arc};

use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_schema::{DataType, SchemaRef};
use parquet::{
    arrow::{ProjectionMask, arrow_reader::ParquetRecordBatchReader, parquet_to_arrow_field_levels},
    basic::{ConvertedType, Type},
    errors::ParquetError,
};

use crate::{
    Config, Error, PartitionValue,
    dataset::schema::relabel,
    read::{chunks::Chunks, ranges::Sparse},
    validate::{
        block_size::check_block,
        footer::{Footer, catch_panics},
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
/// an error. Malformed files result in [`Error::Corrupt`] or [`Error::Limit`], never in a panic.
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
    columns: Vec<Column>,
    /// Positions of the decoded columns in the file, ascending.
    roots: Vec<usize>,
    /// For each of `roots`, true if the decoder does not check that its strings are UTF-8.
    unchecked_strings: Vec<bool>,
    reader: Option<Rows>,
    batch_rows: usize,
    rows_left: usize,
    bytes: u64,
    max_bytes: u64,
}

/// Parquet decoder with its position among the row groups.
struct Rows {
    reader: ParquetRecordBatchReader,
    footer: Arc<Footer>,
    groups: Range<usize>,
    done: i64,
}

impl std::fmt::Debug for Rows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rows").field("groups", &self.groups).field("done", &self.done).finish_non_exhaustive()
    }
}

impl Rows {
    /// Row group of the next row.
    fn group(&self) -> Option<usize> {
        let mut end = 0;
        self.groups.clone().find(|group| {
            end += self.footer.metadata().row_group(*group).num_rows();
            self.done < end
        })
    }
}

impl Running {
    fn start(block: EncodedBlock, batch_rows: usize) -> Result<Self, Error> {
        let EncodedBlock { encoded, config, max_batch_bytes } = block;
        let Encoded { url, rows, schema, columns, data } = encoded;
        let root = |column: &Column| if let Column::Root(root) = column { Some(*root) } else { None };
        let mut roots: Vec<usize> = columns.iter().filter_map(root).collect();
        roots.sort_unstable();

        let (mut reader, mut unchecked_strings) = (None, Vec::new());
        if let Some((footer, groups, sparse)) = data {
            let (chunks, rows) =
                check_block(&url, &footer, &groups, &roots, sparse, (batch_rows, max_batch_bytes), &config)?;
            unchecked_strings = roots.iter().map(|root| has_unchecked_strings(&footer, *root)).collect();
            reader = Some(open(&url, footer, groups, &roots, &chunks, rows)?);
        }
        Ok(Self {
            url,
            schema,
            columns,
            roots,
            unchecked_strings,
            reader,
            batch_rows,
            rows_left: rows as usize,
            bytes: 0,
            max_bytes: config.max_block_bytes,
        })
    }

    fn step(&mut self) -> Result<Option<RecordBatch>, Error> {
        let decoded = match &mut self.reader {
            None if self.rows_left == 0 => return Ok(None),
            None => None,
            Some(rows) => {
                let group = rows.group();
                let next =
                    catch_panics(&self.url, || rows.reader.next().transpose().map_err(ParquetError::from));
                match next.map_err(|error| error.at(group, None))? {
                    Some(batch) => Some(batch),
                    None if self.rows_left == 0 => return Ok(None),
                    None => return Err(self.wrong_row_count("fewer")),
                }
            }
        };
        let rows = decoded.as_ref().map_or(self.batch_rows.min(self.rows_left), RecordBatch::num_rows);
        let Some(left) = self.rows_left.checked_sub(rows) else { return Err(self.wrong_row_count("more")) };
        let batch = self.assemble(decoded.as_ref(), rows)?;
        self.rows_left = left;
        if let Some(reader) = &mut self.reader {
            reader.done += rows as i64;
        }
        Ok(Some(batch))
    }

    fn assemble(&mut self, decoded: Option<&RecordBatch>, rows: usize) -> Result<RecordBatch, Error> {
        let mut columns: Vec<ArrayRef> = Vec::with_capacity(self.columns.len());
        for (column, field) in self.columns.iter().zip(self.schema.fields()) {
            let column = match (column, decoded) {
                (Column::Root(root), Some(batch)) => {
                    let position = self.roots.partition_point(|other| other < root);
                    if self.unchecked_strings[position] {
                        let valid = batch.column(position).to_data().validate_full();
                        valid
                            .map_err(|error| self.corrupt(error.to_string()).at(None, Some(field.name())))?;
                    }
                    relabel(batch.column(position), field.data_type())
                        .map_err(|error| self.corrupt(error.to_string()).at(None, Some(field.name())))?
                }
                (Column::Partition(value), _) => value.repeat(field.data_type(), rows),
                (Column::Root(_), None) => unreachable!("file columns require a reader"),
            };
            let bytes = column.to_data().get_slice_memory_size();
            let bytes = bytes.map_err(|error| self.corrupt(error.to_string()))?;
            self.bytes = self.bytes.saturating_add(bytes as u64);
            columns.push(column);
        }
        if self.bytes > self.max_bytes {
            let what = "decoded size of one block's columns in bytes (max_block_bytes)";
            return Err(Error::limit(&self.url, what, self.max_bytes, self.bytes));
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)
            .map_err(|error| self.corrupt(error.to_string()))
    }

    fn wrong_row_count(&self, comparison: &str) -> Error {
        self.corrupt(format!("the pages hold {comparison} rows than the footer claims"))
    }

    fn corrupt(&self, detail: String) -> Error {
        Error::corrupt(&self.url, detail).at(self.reader.as_ref().and_then(Rows::group), None)
    }
}

/// True if a top-level column contains strings whose Parquet type is not UTF8. The decoder checks only UTF8. Other types become
/// strings if they are JSON, or if the Arrow schema in the footer says so.
fn has_unchecked_strings(footer: &Footer, root: usize) -> bool {
    let schema = footer.reader.parquet_schema();
    let is_other = |leaf: &usize| {
        let column = schema.column(*leaf);
        schema.get_column_root_idx(*leaf) == root
            && column.physical_type() == Type::BYTE_ARRAY
            && column.converted_type() != ConvertedType::UTF8
    };
    (0..schema.num_columns()).any(|leaf| is_other(&leaf))
        && has_strings(footer.schema().field(root).data_type())
}

fn has_strings(data_type: &DataType) -> bool {
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => true,
        DataType::Dictionary(_, values) => has_strings(values),
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _) => has_strings(item.data_type()),
        DataType::Struct(fields) => fields.iter().any(|field| has_strings(field.data_type())),
        _ => false,
    }
}

fn open(
    url: &str,
    footer: Arc<Footer>,
    groups: Range<usize>,
    roots: &[usize],
    chunks: &Chunks,
    batch_rows: usize,
) -> Result<Rows, Error> {
    let reader = catch_panics(url, || {
        let schema = footer.reader.parquet_schema();
        let projection = ProjectionMask::roots(schema, roots.iter().copied());
        let levels = parquet_to_arrow_field_levels(schema, projection, Some(footer.schema().fields()))?;
        ParquetRecordBatchReader::try_new_with_row_groups(&levels, chunks, batch_rows, None)
    });
    let reader = reader.map_err(|error| error.at(Some(groups.start), None))?;
    Ok(Rows { reader, footer, groups, done: 0 })
}
