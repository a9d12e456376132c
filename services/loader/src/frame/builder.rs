//! Conversion of decoded columns to rows.

use std::{sync::Arc, time::Duration};

use arrow_array::{Array, ArrayRef, RecordBatch, cast::AsArray, make_array};
use arrow_buffer::NullBuffer;
use arrow_data::transform::MutableArrayData;
use arrow_select::concat::concat;
use forebay_cache::Slabs;
use forebay_sql::array_bytes;

use super::{
    Frame, Tail,
    fixed::{Input, scatter_all},
    table::TableBuilder,
    variable::Values,
};
use crate::{
    Error, View,
    cpu::off_io::{LongWork, assert_off_io_threads},
    selection::groups::RunsBuilder,
    view::{Nulls, Output, TensorSource, TensorValues, tensor},
};

/// Builds a [`Frame`] from decoded chunks of a block.
pub struct FrameBuilder {
    view: Arc<View>,
    place: String,
    /// Columns whose statistics decide the number of rows, separated by commas; empty without a filter.
    counted_by: String,
    /// Number of rows that the frame will have.
    rows: usize,
    /// Maximum size of the frame in bytes.
    limit: u64,
    frame: Frame,
    nested: Vec<Vec<ArrayRef>>,
    /// Bytes of `nested`.
    nested_bytes: u64,
    tables: Vec<TableBuilder>,
    runs: RunsBuilder,
}

impl FrameBuilder {
    /// Creates a builder for `rows` rows, in memory from `slabs`. `place` identifies the block in errors.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the system is out of memory.
    pub fn new(view: Arc<View>, rows: usize, place: String, slabs: &Slabs) -> Result<Self, Error> {
        let fixed = slabs.take(rows * view.stride).map_err(Error::out_of_memory)?;
        let frame = Frame {
            rows: 0,
            fixed,
            heap: Vec::new(),
            nested: Vec::new(),
            tables: Vec::new(),
            groups: Vec::new(),
            load_time: Duration::ZERO,
        };
        let nested = vec![Vec::new(); view.nested_count];
        let tables = view.outputs.iter().filter_map(|output| match output {
            Output::Distinct { source, len, .. } => Some(TableBuilder::new(len * source.width)),
            _ => None,
        });
        let tables = tables.collect();
        let (limit, nested_bytes, runs) = (u64::MAX, 0, RunsBuilder::default());
        let counted_by = String::new();
        Ok(Self { view, place, counted_by, rows, limit, frame, nested, nested_bytes, tables, runs })
    }

    /// Sets the maximum size of the frame in bytes.
    #[must_use]
    pub(crate) fn within(self, limit: u64) -> Self {
        Self { limit, ..self }
    }

    /// Sets the columns whose statistics decide the number of rows, for errors.
    #[must_use]
    pub(crate) fn counted_by(self, columns: String) -> Self {
        Self { counted_by: columns, ..self }
    }

    /// Sets the place that identifies the block of the following chunks in errors.
    #[must_use]
    pub(crate) fn at(self, place: String) -> Self {
        Self { place, ..self }
    }

    /// Appends a chunk whose columns are the view's projection.
    ///
    /// # Errors
    /// - [`Error::Value`] for a value that a tensor can't hold, and for more than 4 GiB of strings, binary values and lists.
    /// - [`Error::TooLarge`] if the values exceed the maximum size of the frame.
    /// - [`Error::Storage`] of corrupt data for more rows than announced, and for a null in a column without nulls according to the
    ///   footers.
    pub fn append(&mut self, chunk: &RecordBatch) -> Result<(), Error> {
        assert_off_io_threads(LongWork::Frame);
        let start = self.frame.rows;
        let end = start + chunk.num_rows();
        if end > self.rows {
            return Err(self.miscounted("more"));
        }
        let view = Arc::clone(&self.view);
        let mut outputs = ChunkParts::default();
        for output in &view.outputs {
            self.output(output, chunk, &mut outputs)?;
        }
        if !view.group_keys.is_empty() {
            let keys = view.group_keys.iter().map(|key| Arc::clone(chunk.column(*key)));
            self.runs.append(&keys.collect::<Vec<_>>())?;
        }
        self.frame.rows = end;
        self.check_size()?;
        if view.stride == 0 {
            return Ok(());
        }
        let out = &mut self.frame.fixed[start * view.stride..end * view.stride];
        scatter_all(&outputs.inputs, chunk.num_rows(), out, view.stride, view.validity);
        for (bit, nulls) in &outputs.validities {
            mark_valid(out, &view, *bit, nulls.as_ref());
        }
        if outputs.variable.is_empty() {
            return Ok(());
        }
        for (row, out) in out.chunks_exact_mut(view.stride).enumerate() {
            append_values(&outputs.variable, row, &mut out[view.tail..view.validity], &mut self.frame.heap)
                .map_err(|(input, reason)| value_error(&self.place, chunk, input, reason))?;
        }
        self.check_size()
    }

    /// Error of a block that has more or fewer rows than were announced.
    fn miscounted(&self, than: &str) -> Error {
        let detail = format!(
            "{than} rows than the {} that follow from its statistics or the stored counts",
            self.rows
        );
        Error::contradiction(&self.place, &self.counted_by, detail)
    }

    /// Checks the size of the rows so far.
    fn check_size(&self) -> Result<(), Error> {
        let tables = self.tables.iter().map(TableBuilder::bytes).sum::<usize>();
        let bytes = (self.frame.rows * self.view.stride + self.frame.heap.len() + tables) as u64;
        let bytes = bytes.saturating_add(self.nested_bytes);
        if bytes > self.limit {
            return Err(Error::block_too_large(&self.place, bytes, self.limit));
        }
        Ok(())
    }

    /// Returns the finished frame.
    ///
    /// # Errors
    /// [`Error::Storage`] of corrupt data if rows are missing.
    pub fn finish(mut self) -> Result<Frame, Error> {
        if self.frame.rows != self.rows {
            return Err(self.miscounted("fewer"));
        }
        for chunks in &self.nested {
            self.frame.nested.push(joined(chunks)?);
        }
        self.frame.heap.shrink_to_fit();
        if !self.view.group_keys.is_empty() {
            self.frame.groups = self.runs.offsets();
        }
        self.frame.tables = self.tables.into_iter().map(TableBuilder::finish).collect();
        Ok(self.frame)
    }

    fn output(
        &mut self,
        output: &Output,
        chunk: &RecordBatch,
        outputs: &mut ChunkParts,
    ) -> Result<(), Error> {
        let failed = |input: &usize, reason: String| value_error(&self.place, chunk, *input, reason);
        match output {
            Output::Fixed { input, offset, width, nulls, .. } => {
                outputs.validities.extend(self.validity(chunk, *input, *nulls)?);
                outputs.inputs.push(Input::new(chunk.column(*input), *offset, *width, None));
            }
            Output::Tensor { source, offset, values, .. } => {
                let width = values.len() * source.width;
                for (input, first, count) in source.places() {
                    let (array, offset) = (chunk.column(input), offset + first * width);
                    outputs.inputs.push(match values {
                        TensorValues::Value => self.values(source, chunk, (input, count), offset)?,
                        TensorValues::Items(len) => {
                            let padding = tensor::fill_bytes(source.fill.unwrap_or(0.0), &source.dtype);
                            let padded = tensor::convert_lists(array, &source.dtype, source.fill, *len)
                                .and_then(|lists| tensor::padded(&lists, *len, &padding));
                            Input::of_bytes(padded.map_err(|reason| failed(&input, reason))?, offset, width)
                        }
                        TensorValues::Mask(len) => {
                            let mask = tensor::mask(array, *len).map_err(|reason| failed(&input, reason))?;
                            Input::of_bytes(mask, offset, width)
                        }
                    });
                }
            }
            Output::Ragged { source, .. } => {
                for input in &source.inputs {
                    let values =
                        tensor::convert_lists(chunk.column(*input), &source.dtype, source.fill, usize::MAX)
                            .and_then(|lists| Values::new(&lists));
                    outputs.variable.push((*input, values.map_err(|reason| failed(input, reason))?));
                }
            }
            Output::Distinct { source, len, table, keys } => {
                let stride = len * source.width;
                let inputs = source.places().map(|(input, first, count)| {
                    self.values(source, chunk, (input, count), first * source.width)
                });
                let mut rows = vec![0; chunk.num_rows() * stride];
                scatter_all(
                    &inputs.collect::<Result<Vec<_>, _>>()?,
                    chunk.num_rows(),
                    &mut rows,
                    stride,
                    stride,
                );
                let keys = keys.iter().map(|key| Arc::clone(chunk.column(*key))).collect::<Vec<_>>();
                self.tables[*table].append(&keys, &rows)?;
            }
            Output::Real => {}
            Output::Variable { input, nulls, .. } => {
                outputs.validities.extend(self.validity(chunk, *input, *nulls)?);
                let values = Values::new(chunk.column(*input))
                    .map_err(|reason| value_error(&self.place, chunk, *input, reason))?;
                outputs.variable.push((*input, values));
            }
            Output::Nested { input, index } => {
                let column = chunk.column(*input);
                self.nested_bytes += array_bytes(column);
                self.nested[*index].push(Arc::clone(column));
            }
        }
        Ok(())
    }

    /// Converts a column of a tensor, which has `count` values per row, at `offset` of a row.
    fn values(
        &self,
        source: &TensorSource,
        chunk: &RecordBatch,
        (input, count): (usize, usize),
        offset: usize,
    ) -> Result<Input, Error> {
        let failed = |reason: String| value_error(&self.place, chunk, input, reason);
        let (column, width) = (chunk.column(input), source.width);
        let null = || failed("a null; set null_value for the tensor".to_owned());
        let fill = source.fill.map(|fill| tensor::fill_bytes(fill, &source.dtype));
        if let Some(lists) = column.as_fixed_size_list_opt() {
            if fill.is_none() && lists.null_count() > 0 {
                return Err(null());
            }
            let bytes = tensor::fixed_size_items(lists, &source.dtype, source.fill).map_err(failed)?;
            let nulls = lists.nulls().cloned();
            let fill = fill.map(|fill| fill.repeat(count)).unwrap_or_default();
            return Ok(Input::of_bytes(bytes, offset, count * width).with_nulls(nulls, fill));
        }
        let array = tensor::convert(column, &source.dtype).map_err(failed)?;
        if fill.is_none() && array.null_count() > 0 {
            return Err(null());
        }
        Ok(Input::new(&array, offset, width, fill))
    }

    /// Returns the validity bit of a column and its nulls in this chunk.
    ///
    /// # Errors
    /// [`Error::Storage`] of corrupt data if the column has nulls but no validity bit.
    fn validity(&self, chunk: &RecordBatch, input: usize, bit: Nulls) -> Result<Option<Validity>, Error> {
        let array = chunk.column(input);
        match bit {
            Some(bit) => Ok(Some((bit, array.nulls().filter(|nulls| nulls.null_count() > 0).cloned()))),
            None if array.null_count() == 0 => Ok(None),
            None => {
                let detail = "a null, although the footer has a null count of 0".to_owned();
                Err(Error::contradiction(&self.place, chunk.schema_ref().field(input).name(), detail))
            }
        }
    }
}

/// Columns of one chunk, ready to be written into rows.
#[derive(Default)]
struct ChunkParts {
    inputs: Vec<Input>,
    /// Variable-width columns, each with its position in the chunk.
    variable: Vec<(usize, Values)>,
    validities: Vec<Validity>,
}

/// Validity bit of a column, and its nulls in a chunk if it has any.
type Validity = (usize, Option<NullBuffer>);

/// Appends the values of one row to the heap and writes the tail of the row. An error includes the position of the
/// column.
fn append_values(
    columns: &[(usize, Values)],
    row: usize,
    tail: &mut [u8],
    heap: &mut Vec<u8>,
) -> Result<(), (usize, String)> {
    Tail::move_to(tail, heap.len()).map_err(|reason| (columns[0].0, reason))?;
    let (words, _) = tail.as_chunks_mut::<4>();
    for ((input, values), word) in columns.iter().zip(&mut words[1..]) {
        *word = values.append(row, heap).map_err(|reason| (*input, reason))?.to_le_bytes();
    }
    Ok(())
}

/// Sets `bit` in each row that is not null.
fn mark_valid(rows: &mut [u8], view: &View, bit: usize, nulls: Option<&NullBuffer>) {
    for (row, bytes) in rows.chunks_exact_mut(view.stride).enumerate() {
        let valid = nulls.is_none_or(|nulls| nulls.is_valid(row));
        bytes[view.validity + bit / 8] |= u8::from(valid) << (bit % 8);
    }
}

/// Concatenates the chunks into an array that owns its memory. Chunks from disk share memory that was read for several
/// columns.
fn joined(chunks: &[ArrayRef]) -> Result<ArrayRef, Error> {
    let internal = |error: arrow_schema::ArrowError| Error::Internal(error.to_string());
    let [only] = chunks else {
        let chunks: Vec<&dyn Array> = chunks.iter().map(AsRef::as_ref).collect();
        return concat(&chunks).map_err(internal);
    };
    let data = only.to_data();
    let mut copy = MutableArrayData::new(vec![&data], false, data.len());
    copy.try_extend(0, 0, data.len()).map_err(internal)?;
    Ok(make_array(copy.freeze()))
}

fn value_error(place: &str, chunk: &RecordBatch, input: usize, reason: String) -> Error {
    let column = chunk.schema_ref().field(input).name().clone();
    Error::Value { column, place: place.to_owned(), reason }
}
